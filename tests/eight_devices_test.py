"""One device and eight compute the same step.

The test runs this module as a program with eight devices.
"""

import dataclasses
import subprocess
import sys

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests import checkout
from tests import commands
from tests import specs
from tests.learner import critic_test
from tests.rl import tiny

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


def make(mesh: jax.sharding.Mesh, lora: bool):
  """Trained parameters, their rules, and the base and stack of adapters."""
  params = jax.jit(model.init_params, static_argnums=1)(
      jax.random.key(0), CONFIG)
  rules = mesh_lib.param_rules(CONFIG.tied_head)
  params = place(params, mesh, rules)
  if not lora:
    return params, rules, None, None
  rng = np.random.default_rng(1)
  trained = jax.tree.map(
      lambda x: rng.normal(0.0, 0.1, x.shape).astype(np.float32),
      jax.eval_shape(
          lambda: model.init_lora(jax.random.key(1), CONFIG, LORA)))
  trained, other = (
      place(tree, mesh, mesh_lib.ADAPTER_RULES)
      for tree in (trained, jax.tree.map(lambda x: 2 * x, trained)))
  return trained, mesh_lib.ADAPTER_RULES, params, model.stack(
      [trained, other], [LORA.scale, 1.0])


def sample(mesh: jax.sharding.Mesh, lora: bool):
  """Completions; each slot is filled twice and decoded for two chunks."""
  trained, _, base, adapters = make(mesh, lora)
  key_ids = [(5, index) for index in range(16)]
  rows = batch()
  groups = tiny.sample(
      base or trained, mesh, np.tile(rows.prompts, (2, 1)),
      np.tile(rows.prompt_lengths, 2), key_ids, budget=20, num_slots=(8,),
      adapters=adapters, adapter_ids=[0, 1] * 8, config=CONFIG,
      spec=programs.SamplerSpec(
          group_size=4, temperature=1.0, stop_ids=tuple(range(3, 9)),
          dtype='float32'))
  return [ids.tolist() for group in groups for ids in group.completions]


def train(mesh: jax.sharding.Mesh, lora: bool):
  """Loss, gradients and parameters of one step."""
  trained, rules, base, _ = make(mesh, lora)
  rows = batch()
  static = {'config': CONFIG, 'spec': dataclasses.replace(
      SPEC, adapter_scale=LORA.scale if lora else None)}
  state = place(
      policy_lib.TrainState.create(trained, SPEC.optimizer), mesh, rules)
  with jax.set_mesh(mesh):
    sums = gradients.accumulate(
        trained, gradients.zero_sums(trained, **static),
        mesh_lib.put_rows(rows, mesh), frozen_params=base, **static)
    num_tokens = np.float32(rows.completion_lengths.sum())
    total = gradients.add_up(sums, **static)
    found = jax.device_get(
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
  buckets = dataclasses.replace(critic_test.BUCKETS, prompt=(8,))
  before = update_lib.critic_values(critic, state.params, inputs, buckets)
  state, _ = update_lib.update_critic(critic, state, examples, buckets)
  return before, update_lib.critic_values(
      critic, state.params, inputs, buckets)


def relative(tree, other) -> float:
  """Norm of the difference over the norm."""
  def norm(x):
    return np.sqrt(sum(np.sum(np.square(y)) for y in jax.tree.leaves(x)))
  return float(norm(jax.tree.map(np.subtract, tree, other)) / norm(other))


def check_step(one_device, many, lora: bool) -> None:
  """Sampling and training agree on both meshes."""
  assert sample(many, lora) == sample(one_device, lora)
  expected, found = train(one_device, lora), train(many, lora)
  # Float32 sums in another order differ by about 1e-6.
  np.testing.assert_allclose(found['loss'], expected['loss'], atol=1e-6)
  for name in ('grads', 'params'):
    assert relative(found[name], expected[name]) < 1e-5, (name, lora)
  assert found['sharding_kept']


def main() -> None:
  engine_lib._MIN_ROWS = 4  # Small groups of rows are not padded.

  def mesh_of(devices, **sizes):
    return mesh_lib.make_meshes(['p'], devices, **sizes)['p']

  one_device = mesh_of(jax.devices()[:1])
  # Two devices each for data, fsdp and tensor.
  many = mesh_of(jax.devices(), fsdp=2, tensor=2)
  for lora in (False, True):
    check_step(one_device, many, lora)
  # Each of eight shards stops after its longest candidate.
  assert sample(mesh_of(jax.devices(), fsdp=8), False) == sample(
      one_device, False)
  assert relative(update_critic(many), update_critic(one_device)) < 1e-4


def test_eight_devices_compute_what_one_does():
  subprocess.run(
      [sys.executable, '-m', 'tests.eight_devices_test'], cwd=checkout.ROOT,
      check=True, timeout=600, env=commands.with_cpu_devices(8))


if __name__ == '__main__':
  main()
