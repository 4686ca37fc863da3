"""One device and eight compute the same step.

The test starts `python -m tests.eight_devices_test FOLDER` with eight devices,
which writes FOLDER/report.json.
"""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests import specs
from tests.learner import critic_test
from tests.rl import tiny

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (fsdp, tensor, trains an adapter); data takes the remaining factor of eight.
CASES = {
    'fsdp': (8, 1, False), 'all three': (2, 2, False),
    'all three, adapter': (2, 2, True)}
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, tied_head=False)
LORA = model.LoraSpec(3, 6.0, ('attention/[qo]/kernel', 'down/kernel'))
SPEC = specs.learner()


def batch() -> types.TrainBatch:
  """Eight groups of four."""
  batch = tiny.make_batch()
  repeated = jax.tree.map(
      lambda x: np.concatenate([x, x + (x.dtype == np.int32), x])[:8], batch)
  return dataclasses.replace(
      repeated,
      prompts=repeated.prompts % CONFIG.vocab_size,
      completions=repeated.completions % CONFIG.vocab_size,
      prompt_lengths=np.array([7, 4, 1, 7, 5, 2, 7, 4], np.int32),
      completion_lengths=np.tile(batch.completion_lengths, (3, 1))[:8])


def place(tree, mesh, rules):
  return jax.device_put(tree, mesh_lib.tree_shardings(tree, mesh, rules))


def run(mesh: jax.sharding.Mesh, lora: bool):
  """Samples, gradients and parameters of one step."""
  params = jax.jit(model.init_params, static_argnums=1)(
      jax.random.key(0), CONFIG)
  rules = mesh_lib.param_rules(CONFIG.tied_head)
  params = place(params, mesh, rules)
  spec, base, adapters, trained = SPEC, None, None, params
  if lora:
    spec = dataclasses.replace(SPEC, adapter_scale=LORA.scale)
    rules = mesh_lib.ADAPTER_RULES
    trained = jax.tree.map(
        lambda x: 0.1 * jax.random.normal(jax.random.key(x.size), x.shape),
        model.init_lora(jax.random.key(1), CONFIG, LORA))
    trained, base = place(trained, mesh, rules), params
    other = jax.tree.map(lambda x: 2 * x, trained)
    adapters = model.stack([trained, other], [LORA.scale, 1.0])
  # Each slot is filled twice and decoded for two chunks.
  keys = programs.group_keys(jax.random.key(5), np.arange(16)[:, None])
  rows = batch()
  sample = functools.partial(
      tiny.sample, params, mesh, num_slots=(8,), adapters=adapters,
      adapter_ids=[0, 1] * 8, config=CONFIG, spec=programs.SamplerSpec(
          group_size=4, temperature=1.0, stop_ids=tuple(range(3, 9)),
          dtype='float32'))
  samples = sample(
      np.tile(rows.prompts, (2, 1)), np.tile(rows.prompt_lengths, 2), keys,
      budget=20)
  found = {
      'completions': samples.completions,
      'decoded_rows': samples.decoded_rows,
      # Rows decoded if each group stops after its longest candidate.
      'longest': 4 * int(samples.lengths.max(axis=1).sum())}
  static = {'config': CONFIG, 'spec': spec}
  state = place(
      policy_lib.TrainState.create(trained, spec.optimizer), mesh, rules)
  with jax.set_mesh(mesh):
    sums = gradients.accumulate(
        trained, gradients.zero_sums(trained, **static),
        mesh_lib.put_rows(rows, mesh), frozen_params=base, **static)
    num_tokens = np.float32(rows.completion_lengths.sum())
    total = gradients.add_up(sums, **static)
    found |= jax.device_get(
        {'grads': total.grads, 'loss': total.loss / num_tokens})
    placed = jax.tree.map(lambda x: x.sharding, state)
    state, _ = update_lib.apply_update(
        state, sums, num_tokens, num_tokens, **static)
  return found | {
      'params': jax.device_get(state.params),
      'sharding_kept': jax.tree.all(jax.tree.map(
          lambda x, at: x.sharding.is_equivalent_to(at, x.ndim), state,
          placed))}


def update_critic(mesh: jax.sharding.Mesh):
  """Values of a critic before and after an update."""
  critic = critic_test.make(mesh=mesh)
  examples = critic_test.make_examples()
  inputs = [example.inputs for example in examples]
  state = place(
      policy_lib.TrainState.create(
          critic_test.make_params(), critic.learner.optimizer), mesh,
      policy_lib.sharding_rules(critic.config, critic.learner))
  buckets = critic_test.BUCKETS
  before = update_lib.critic_values(critic, state.params, inputs, buckets)
  state, update = update_lib.update_critic(critic, state, examples, buckets)
  update.metrics('critic/p')
  return before, update_lib.critic_values(
      critic, state.params, inputs, buckets)


def relative(tree, other) -> float:
  """Norm of the difference over the norm."""
  def norm(x):
    return np.sqrt(sum(np.sum(np.square(y)) for y in jax.tree.leaves(x)))
  return float(norm(jax.tree.map(np.subtract, tree, other)) / norm(other))


def main(folder: pathlib.Path) -> None:
  report = {}
  engine_lib._MIN_SIZE = 4  # Small groups of rows are not padded.

  def one_device():
    return mesh_lib.make_meshes(['p'], jax.devices()[:1])['p']

  def mesh_of(fsdp, tensor):
    return mesh_lib.make_meshes(
        ['p'], jax.devices(), fsdp=fsdp, tensor=tensor)['p']

  single = {lora: run(one_device(), lora) for lora in (False, True)}
  for name, (fsdp, tensor, lora) in CASES.items():
    many = run(mesh_of(fsdp, tensor), lora)
    report[name] = {}
    for key, value in many.items():
      expected = single[lora][key]
      if key == 'completions':
        value = bool(np.array_equal(value, expected))
      elif key in ('grads', 'params'):
        value = relative(value, expected)
      elif key == 'loss':
        value = float(abs(value - expected))
      report[name][key] = value
  report['critic'] = relative(
      update_critic(mesh_of(2, 2)), update_critic(one_device()))
  (folder / 'report.json').write_text(json.dumps(report, indent=2))


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp('eight')
  subprocess.run(
      [sys.executable, '-m', 'tests.eight_devices_test', folder], cwd=ROOT,
      check=True, timeout=600, env=os.environ | {
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '8'})
  return json.loads((folder / 'report.json').read_text())


@pytest.mark.parametrize('name', CASES)
def test_step_equals_one_device(report, name):
  found = report[name]
  # Float32 sums in another order differ by about 1e-6.
  assert found['completions']
  assert found['loss'] < 1e-6
  assert found['grads'] < 1e-5
  assert found['params'] < 1e-5
  assert found['sharding_kept']


def test_critic_equals_one_device(report):
  assert report['critic'] < 1e-4


def test_finished_candidates_are_not_decoded(report):
  # Each of eight shards has one group at a time and stops after its longest
  # candidate. Bite: shards that stop together.
  found = report['fsdp']
  assert found['decoded_rows'] == found['longest']
  # Four shards of two groups, whose devices share heads, stop together.
  assert report['all three']['decoded_rows'] > found['longest']


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
