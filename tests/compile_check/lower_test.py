"""The report on a small model agrees with running its programs.

The test runs this module as a program with four devices.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.compile_check import lower
from atgrpo_jax.sampling import engine
from configs import pod
from tests import checkout
from tests import commands


def small_config():
  """`pod` with a small model: whole, as an adapter, and as a critic."""
  config = pod.get_config('size=0.6b,topology=v5e:2x4')
  config.compile_check.dimensions.update({
      'vocab_size': 256, 'hidden_size': 32, 'intermediate_size': 64,
      'num_layers': 2, 'num_heads': 4, 'num_kv_heads': 4, 'head_dim': 8})
  config.update_from_flattened_dict({
      # In bfloat16, CPUs compute sums as products; see `model.products`.
      'model.dtype': 'float32', 'model.remat': 'True',
      'policies': 'per_role', 'critic.kind': 'central',
      'per_policy': (('tool', 'model.trained', 'lora'),), 'lora.rank': 2,
      'mesh.fsdp': 2, 'mesh.tensor': 2, 'mesh.pools': (),
      'buckets.prompt': (32,), 'buckets.completion': (16,),
      'buckets.groups': (16,), 'buckets.rows': 32,
      'rollout.max_new_tokens': 16})
  return config


def _make(x):
  """An array of zeros for a shape."""
  if not isinstance(x, jax.ShapeDtypeStruct):
    return x
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    value = jax.random.split(jax.random.key(0), x.shape)
  else:
    value = np.zeros(x.shape, x.dtype)
  return jax.device_put(value, x.sharding)


def _on_first_device(tree):
  return sum(
      shard.data.nbytes for leaf in jax.tree.leaves(tree)
      if isinstance(leaf, jax.Array) and not leaf.is_deleted()
      for shard in leaf.addressable_shards
      if shard.device == jax.devices()[0])


def check_memory(run, pool, programs):
  """The reported memory equals the allocated."""
  states, names = [], set()
  for learner in (run.policies | run.critics).values():
    states.append(jax.tree.map(_make, lower.state_and_frozen_params(learner)))
    for call in lower.calls(run, learner):
      with jax.set_mesh(learner.mesh):
        args, kwargs = jax.tree.map(_make, (call.args, call.kwargs))
        given = _on_first_device((args, kwargs))
        out = jax.block_until_ready(call.function(*args, **kwargs))
      # A donated argument whose memory holds a result is counted once.
      returned = _on_first_device((jax.tree.leaves((args, kwargs)), out))
      name = f'{call.name} {learner.name}'
      names.add(name)
      # XLA adds tuples and drops unused arguments.
      assert programs[name].arguments == pytest.approx(given, rel=0.02), name
      assert programs[name].peak >= 0.98 * returned, name
      # The cache is kept while prompts are prefilled, and the decoding
      # parameters while rows are moved.
      assert (programs[name].kept > pool.state) == (
          call.name in ('prefill', 'more capacity')), name
  assert _on_first_device(states) == pool.state > 0
  assert programs.keys() == names
  assert {name.rpartition(' ')[0] for name in names} == {
      'prepare', 'prefill', 'decode', 'more capacity', 'gradient', 'update',
      'values'}
  assert {f'{name} critic/central' for name in (
      'values', 'gradient', 'update')} < names


def check_flops(run, programs):
  """FLOPs of all devices match a hand count, without an adapter."""
  prompt, completion, size, num_layers, heads = 32, 16, 4, 2, 4 * 8
  weights = 4 * 32 * heads + 3 * 32 * 64  # Per layer.

  def forward(num_prompts, num_candidates, positions):
    """FLOPs of prompts and of one token of each candidate."""
    tokens = num_prompts * prompt + num_candidates
    pairs = num_prompts * prompt**2 + num_candidates * positions
    return num_layers * (2 * weights * tokens + 4 * heads * pairs)

  unembedding = 2 * 32 * 256
  num_slots, num_rows = 16, 32
  num_prompts = lower.buckets_of(
      run.config, run.policies['planner'].mesh).microbatch(
          prompt, completion, size)
  tokens = num_prompts * size * completion
  # The backward pass costs twice the forward pass, which is recomputed.
  expected = {
      'prefill': forward(num_slots // 2, 0, 0),
      # Each token reads a padded row and its chunk. All candidates of a group
      # read the prompt, also those without a row.
      'decode': engine.CHUNK * (
          forward(
              0, num_rows, engine.row_capacity(completion) + engine.CHUNK)
          + num_layers * 4 * heads * num_slots * size * prompt
          + unembedding * num_rows),
      'gradient': (
          4 * forward(num_prompts, tokens, prompt + completion)
          + 4 * unembedding * tokens)}
  for name, flops in expected.items():
    assert 4 * programs[f'{name} planner'].flops == pytest.approx(
        flops, rel=0.05), name


def check_collectives(programs):
  """Decoding sends activations only."""
  num_layers, hidden_size, num_rows = 2, 32, 32 // 2
  for policy in ('planner', 'tool'):
    per_token = [
        collective for collective in programs[f'decode {policy}'].collectives
        if collective.num_calls == engine.CHUNK]
    # Two per layer, and a few for the logits.
    assert 2 * num_layers <= len(per_token) <= 2 * num_layers + 6, policy
    assert max(x.num_bytes for x in per_token) <= num_rows * max(
        4 * hidden_size, 4 * 128), policy


def test_report_agrees_with_running_the_programs():
  subprocess.run(
      [sys.executable, '-m', 'tests.compile_check.lower_test'],
      cwd=checkout.ROOT, check=True, timeout=300,
      env=commands.with_cpu_devices(4))


def main():
  run = lower.build(small_config(), jax.devices(), chip=None)
  pool, = lower.check(run)
  programs = {program.name: program for program in pool.programs}
  check_memory(run, pool, programs)
  check_flops(run, programs)
  check_collectives(programs)


if __name__ == '__main__':
  main()
