"""The report on a small model agrees with running its programs."""

import dataclasses
import json
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


def small_config(**changes):
  """`pod` with a model and shapes for four CPU devices."""
  config = pod.get_config('size=0.6b,topology=v5e:2x4')
  dimensions = {
      'vocab_size': 256, 'hidden_size': 32, 'intermediate_size': 64,
      'num_layers': 2,
      'num_heads': 4, 'num_kv_heads': 4, 'head_dim': 8}
  config.update_from_flattened_dict({
      # In bfloat16, CPUs compute sums as products; see `model.products`.
      'model.dtype': 'float32',
      'mesh.fsdp': 2, 'mesh.tensor': 2, 'mesh.pools': (),
      'buckets.prompt': (32,), 'buckets.completion': (16,),
      'rollout.max_new_tokens': 16, 'lora.rank': 2, **changes, **{
          f'compile_check.dimensions.{name}': size
          for name, size in dimensions.items()}})
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


def check_and_run(changes):
  """The report of `lower.check` and the memory that each program allocates."""
  run = lower.build(small_config(**changes), jax.devices(), chip=None)
  pool, = lower.check(run)
  allocated, states = {}, []
  for learner in (run.policies | run.critics).values():
    states.append(jax.tree.map(_make, lower.state_and_frozen_params(learner)))
    for call in lower.calls(run, learner):
      with jax.set_mesh(learner.mesh):
        args, kwargs = jax.tree.map(_make, (call.args, call.kwargs))
        given = _on_first_device((args, kwargs))
        out = jax.block_until_ready(call.function(*args, **kwargs))
        # A donated argument whose memory holds a result is counted once.
        allocated[f'{call.name} {learner.name}'] = given, _on_first_device(
            (jax.tree.leaves((args, kwargs)), out))
  return {
      'resident': pool.state,
      'allocated_resident': _on_first_device(states),
      'programs': {
          program.name: dataclasses.asdict(program) | {'collectives': [
              collective._asdict() for collective in program.collectives]}
          for program in pool.programs},
      'num_rows': lower.buckets_of(
          run.config, run.policies['planner'].mesh).microbatch(
              run.config.buckets.prompt[-1], run.config.buckets.completion[-1],
              run.config.rollout.group_size),
      'allocated': allocated}


@pytest.fixture(scope='module')
def found():
  # A whole model beside an adapter, and a critic.
  changes = {
      'buckets.groups': (16,),
      'critic.kind': 'central',
      'policies': 'per_role', 'model.remat': 'True',
      'per_policy': (('tool', 'model.trained', 'lora'),)}
  done = subprocess.run(
      [sys.executable, '-c',
       'import json\nfrom tests.compile_check import lower_test as test\n'
       f'print(json.dumps(test.check_and_run({changes!r})))'],
      cwd=checkout.ROOT, check=True, text=True, stdout=subprocess.PIPE,
      timeout=300, env=commands.with_cpu_devices(4))
  return json.loads(done.stdout)


def test_reported_memory_equals_the_allocated(found):
  assert found['allocated_resident'] == found['resident'] > 0
  programs = found['programs']
  assert set(programs) == set(found['allocated'])
  assert {name.rpartition(' ')[0] for name in programs} == {
      'prepare', 'prefill', 'decode', 'more capacity', 'gradient', 'update',
      'values'}
  assert {f'{name} critic/central' for name in (
      'values', 'gradient', 'update')} < programs.keys()
  for name, (given, returned) in found['allocated'].items():
    program = programs[name]
    # XLA adds tuples and drops unused arguments.
    assert program['arguments'] == pytest.approx(given, rel=0.02), name
    assert program['peak'] >= 0.98 * returned, name
    # The cache is kept while prompts are prefilled, and the decoding
    # parameters while rows are moved.
    assert (program['kept'] > found['resident']) == name.startswith(
        ('prefill', 'more')), name


def test_flops_match_a_hand_count(found):
  """FLOPs of all devices for the policy without an adapter."""
  prompt, completion, size, num_layers, heads = 32, 16, 4, 2, 4 * 8
  weights = 4 * 32 * heads + 3 * 32 * 64  # Per layer.

  def forward(num_prompts, num_candidates, positions):
    """FLOPs of prompts and of one token of each candidate."""
    tokens = num_prompts * prompt + num_candidates
    pairs = num_prompts * prompt**2 + num_candidates * positions
    return num_layers * (2 * weights * tokens + 4 * heads * pairs)

  unembedding = 2 * 32 * 256
  num_prompts, num_slots = found['num_rows'], 16
  tokens = num_prompts * size * completion
  # The backward pass costs twice the forward pass, which is recomputed.
  expected = {
      'prefill': forward(num_slots // 2, 0, 0),
      # Each token reads the prompt, a padded row, and its chunk.
      'decode': engine.CHUNK * (
          forward(
              0, num_slots * size,
              prompt + engine.row_capacity(completion) + engine.CHUNK)
          + unembedding * num_slots * size),
      'gradient': (
          4 * forward(num_prompts, tokens, prompt + completion)
          + 4 * unembedding * tokens)}
  for name, flops in expected.items():
    assert 4 * found['programs'][f'{name} planner']['flops'] == pytest.approx(
        flops, rel=0.05), name


def test_decoding_sends_activations_only(found):
  num_layers, hidden_size, num_rows = 2, 32, 16 * 4 // 2
  for policy in ('planner', 'tool'):
    per_token = [
        collective for collective in
        found['programs'][f'decode {policy}']['collectives']
        if collective['num_calls'] == engine.CHUNK]
    # Two per layer, and a few for the logits.
    assert 2 * num_layers <= len(per_token) <= 2 * num_layers + 6, policy
    assert max(x['num_bytes'] for x in per_token) <= num_rows * max(
        4 * hidden_size, 4 * 128), policy
