"""lower.py: what it says of a small model is what a run takes."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.compile_check import calls as calls_lib
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report as report_lib
from atgrpo_jax.sampling import engine
from atgrpo_jax.sampling import placement
from atgrpo_jax.sampling import shared_prefix
from configs import pod

ROOT = pathlib.Path(__file__).resolve().parents[2]


def small_config(**changes):
  """`pod`, with a model and shapes for a CPU of eight devices."""
  config = pod.get_config('size=0.6b,topology=v5e:2x4')
  dimensions = {
      'vocab_size': 256, 'hidden_size': 32, 'intermediate_size': 64,
      'num_layers': 2,
      'num_heads': 4, 'num_kv_heads': 4, 'head_dim': 8}
  config.update_from_flattened_dict({
      'mesh.fsdp': 2, 'mesh.tensor': 4, 'mesh.pools': '',
      'buckets.groups': (8,), 'buckets.prompt': (32,),
      'buckets.completion': (16,),
      'rollout.max_new_tokens': 16, 'lora.rank': 2, **changes, **{
          f'compile_check.dimensions.{name}': size
          for name, size in dimensions.items()}})
  return config


def _make(x):
  """An array in the place of its shape."""
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


def report_and_run(changes):
  """What is said of each program, and what running it allocates."""
  shared_prefix.MIN_LENGTH = 4
  config = small_config(**changes)
  report, = report_lib.check(config, jax.devices())
  policies = lower.build_policies(config, jax.devices())
  critics = lower.build_critics(config, policies)
  said = {program.name: program for program in report.programs}
  really = {}
  for learner in (policies | critics).values():
    with jax.set_mesh(learner.mesh):
      for call in (
          calls_lib.critic_calls(config, learner) if learner.name in critics
          else calls_lib.calls(config, learner)):
        name = f'{call.name} {learner.name}'
        if name not in said:
          continue
        args, kwargs = jax.tree.map(_make, (call.args, call.kwargs))
        given = _on_first_device((args, kwargs))
        out = jax.block_until_ready(call.function(*args, **kwargs))
        # Counted once where an argument's place holds a result.
        really[name] = given, _on_first_device(
            (jax.tree.leaves((args, kwargs)), out))
  states = {
      name: jax.tree.map(_make, calls_lib.state_and_frozen_params(policy))
      for name, policy in policies.items()} | {
          name: jax.tree.map(_make, critic.state_template())
          for name, critic in critics.items()}
  return {
      'resident': report.parameters + report.optimiser,
      'really_resident': _on_first_device(states),
      'said': {n: dataclasses.asdict(p) for n, p in said.items()},
      'num_rows': calls_lib.buckets_of(config, policies['planner']).microbatch(
          config.buckets.prompt[-1], config.buckets.completion[-1],
          config.rollout.group_size),
      'really': really}


@pytest.fixture(scope='module')
def found():
  # A whole model beside an adapter, two numbers of slots, and a critic.
  changes = {
      'buckets.groups': (8, 16),
      'critic.kind': 'central',
      'policies': 'per_role', 'per_policy': 'tool.model.trained=lora'}
  done = subprocess.run(
      [sys.executable, '-c',
       'import json, sys\nfrom tests.compile_check import lower_test as test\n'
       'print(json.dumps(test.report_and_run(json.loads(sys.argv[1]))))',
       json.dumps(changes)], cwd=ROOT, check=True, text=True,
      stdout=subprocess.PIPE, timeout=300, env=os.environ | {
          'JAX_PLATFORMS': 'cpu',
          'JAX_NUM_CPU_DEVICES': '8'})
  return json.loads(done.stdout)


def test_what_a_run_keeps_is_what_is_said(found):
  assert found['really_resident'] == found['resident'] > 0


def test_products_are_those_of_a_hand_count(found):
  """Of the policy that is trained whole; in FLOPs of all devices."""
  prompt, completion, size, num_layers, heads = 32, 16, 4, 2, 4 * 8
  weights = 4 * 32 * heads + 3 * 32 * 64  # Of a layer.

  def forward(num_prompts, num_candidates, positions):
    """Of prompts, and of candidates that have read so many positions."""
    tokens = num_prompts * prompt + num_candidates
    pairs = num_prompts * prompt**2 + num_candidates * positions
    return num_layers * (2 * weights * tokens + 4 * heads * pairs)

  unembedding = 2 * 32 * 256
  num_prompts, num_held = found['num_rows'], 16
  tokens = num_prompts * size * completion
  # A layer is computed once more in the backward pass, which costs twice.
  hand = {
      'prefill': forward(num_held // 2, 0, 0),
      # Each token reads the prompt, a padded row, and the chunk it is in.
      'decode': engine.CHUNK * (
          forward(
              0, num_held * size,
              prompt + placement.padded_size(completion) + engine.CHUNK)
          + unembedding * num_held * size),
      'gradient': (
          4 * forward(num_prompts, tokens, prompt + completion)
          + 4 * unembedding * tokens)}
  for name, flops in hand.items():
    said = 8 * found['said'][f'{name} planner']['flops']
    assert said == pytest.approx(flops, rel=0.05), name


def test_chips_talk_twice_a_layer_and_no_more_than_that(found):
  # Bite: heads, or what is sampled from, whose layout nobody says.
  num_layers, hidden_size = 2, 32
  for policy in ('planner', 'tool'):
    decode, gradient = (
        found['said'][f'{name} {policy}']['collectives']
        for name in ('decode', 'gradient'))
    inside = [each for each in decode if each['loops'] == [engine.CHUNK]]
    assert 2 * num_layers <= sum(
        each['number'] for each in inside) <= 2 * num_layers + 6, policy
    # What goes between two chips for each token is of rows, not of weights.
    num_rows = 16 * 4 // 2
    assert max(each['num_bytes'] for each in inside) <= num_rows * max(
        4 * hidden_size, 4 * 128), policy
    # And for each chunk of logits of hidden states, not of the head.
    num_tokens = found['num_rows'] // 2 * 4 * 16
    chunk = max(256, min(2048, num_tokens // 8))
    chunks = [
        each for each in gradient if each['loops'] == [-(-num_tokens // chunk)]]
    assert chunks, policy
    assert max(each['num_bytes'] for each in chunks) <= (
        4 * chunk * hidden_size), policy


def test_programs_need_what_a_run_allocates(found):
  assert set(found['said']) == set(found['really'])
  assert {name.rpartition(' ')[0] for name in found['said']} == {
      'prepare', 'prefill', 'prefill suffix', 'decode', 'more capacity',
      'more slots', 'gradient', 'update', 'values'}
  assert {f'{name} critic/central' for name in (
      'values', 'gradient', 'update')} < found['said'].keys()
  for name, (given, returned) in found['really'].items():
    said = found['said'][name]
    # XLA adds what holds a tuple together, and drops what is not used.
    assert said['arguments'] == pytest.approx(given, rel=0.02), name
    assert said['peak'] >= 0.98 * returned, name
    # What has been said is kept while prompts are prefilled, and what decoding
    # reads while rows or slots are moved.
    assert (said['kept'] > found['resident']) == name.startswith(
        ('prefill', 'more')), name
