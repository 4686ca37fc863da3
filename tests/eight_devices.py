"""The part of tests/eight_devices_test.py that needs eight devices.

  JAX_NUM_CPU_DEVICES=8 python -m tests.eight_devices FOLDER

Writes FOLDER/report.json, which compares one step of sampler and learner on
each mesh with one device.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from unittest import mock

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import placement
from atgrpo_jax.sampling import programs
from tests import specs
from tests.learner import critic_test
from tests.rl import tiny
from tests.rollout import scripted

# (fsdp, tensor, trains an adapter); data takes the remaining factor of eight.
CASES = {
    'fsdp': (8, 1, False), 'all three': (2, 2, False),
    'all three, adapter': (2, 2, True)}
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, tied_head=False)
LORA = model.LoraSpec(3, 6.0, ('attention/[qo]/kernel', 'down/kernel'))
LONG = 500  # Tokens of a completion that occupies a device.
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
  params = place(params, mesh, mesh_lib.param_rules(CONFIG.tied_head))
  spec, base, adapters, trained = SPEC, None, None, params
  rules = mesh_lib.param_rules(CONFIG.tied_head)
  if lora:
    spec = dataclasses.replace(SPEC, adapter_scale=LORA.scale)
    rules = mesh_lib.ADAPTER_RULES
    trained = jax.tree.map(
        lambda x: 0.1 * jax.random.normal(jax.random.key(x.size), x.shape),
        model.init_lora(jax.random.key(1), CONFIG, LORA, 1))
    trained, base = place(trained, mesh, rules), params
    other = jax.tree.map(lambda x: 2 * x, trained)
    adapters = model.stack([trained, other], [LORA.scale, 1.0])
  state = policy_lib.TrainState.create(trained, spec.optimizer)
  state = place(state, mesh, rules)
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
  alike = None
  if lora:  # Prompts with a shared prefix.
    prompts = np.concatenate(
        [np.tile(tiny.ids(1, 6, seed=7), (16, 1)), tiny.ids(16, 3)], axis=1)
    alike = sample(prompts, np.full(16, 9), keys, budget=4)
  with jax.set_mesh(mesh):
    sums = gradients.zero_sums(trained, config=CONFIG, spec=spec)
    sums = gradients.accumulate(
        trained, sums, mesh_lib.put_rows(rows, mesh), frozen_params=base,
        config=CONFIG, spec=spec)
    num_tokens = np.float32(rows.completion_lengths.sum())
    total = gradients.add_up(sums, config=CONFIG, spec=spec)
    grads, loss = jax.device_get((total.grads, total.loss / num_tokens))
    placed = jax.tree.map(lambda x: x.sharding, state)
    state, _, _ = update_lib.apply_update(
        state, sums, num_tokens, num_tokens, config=CONFIG, spec=spec)
  kept = jax.tree.all(jax.tree.map(
      lambda x, at: x.sharding.is_equivalent_to(at, x.ndim), state, placed))
  return {
      'completions': samples.completions,
      'alike': alike and alike.completions,
      'shared_prefixes': alike and alike.counts.shared_prefixes,
      'decoded_rows': samples.counts.decoded_rows,
      # Rows decoded if each group stops after its longest candidate.
      'longest': 4 * int(samples.lengths.max(axis=1).sum()),
      'loss': loss.item(), 'grads': grads,
      'params': jax.device_get(state.params),
      'sharding_kept': kept,
      'bytes': max(
          sum(shard.data.nbytes for leaf in jax.tree.leaves(
              (state.params, state.opt_state))
              for shard in leaf.addressable_shards if shard.device == device)
          for device in mesh.devices.flat)}


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


def waits(second: tuple[str, int, int]) -> bool:
  """Whether a short chunk of policy a waits for a long one of policy b.

  Each policy has one device, because XLA's CPU backend runs only one program
  with several devices at a time.
  """
  meshes = mesh_lib.make_meshes(
      ('a', 'b'), jax.devices(), mesh_lib.MeshSpec(
          pools=(('a', 0, 1), second)))
  config = dataclasses.replace(scripted.CONFIG, max_positions=LONG + 64)

  def policy(name, stop_ids):
    tokenizer = scripted.Bytes()
    tokenizer.stop_ids = stop_ids
    params = place(
        model.init_params(jax.random.key(0), config), meshes[name],
        mesh_lib.param_rules(config.tied_head))
    return policies_lib.SamplingPolicy(policies_lib.SampledModel(
        params, config, 'float32', meshes[name]), tokenizer)

  runner = dataclasses.replace(
      scripted.make_runner({}, {'a': 'a', 'b': 'b'}, max_new_tokens=LONG),
      policies={
          'a': policy('a', stop_ids=(config.vocab_size,)),
          'b': policy('b', stop_ids=tuple(range(config.vocab_size)))})
  waited = []

  class Engine(engine_lib.Engine):

    def collect(self):
      if self._chunk is not None and not waited:
        long, short = (engine._chunk for engine in runner._engines.values())
        jax.block_until_ready(short)
        waited.append(long.is_ready())
      return super().collect()

  def episode(role):
    request = runner_lib.SampleRequest(
        types.GroupKey('task', role, 0, 0), scripted.State('task', goal=5))
    sampled, = yield runner.sample([request], group_size=2)
    return len(sampled.completions[0])

  with (mock.patch.object(engine_lib, 'Engine', Engine),
        mock.patch.object(engine_lib, 'CHUNK', LONG)):
    for _ in range(2):  # The first pass compiles.
      waited.clear()
      lengths = runner.play([episode('a'), episode('b')])
  assert lengths == [LONG, 1]
  return waited[0]


def main(folder: pathlib.Path) -> None:
  report = {'waits': {
      'disjoint': waits(('b', 7, 8)), 'equal': waits(('b', 0, 1))}}
  placement._MIN_SIZE = 4  # Small groups of rows are not padded.
  placement.MIN_PREFIX_LENGTH = 4
  single = {
      lora: run(mesh_lib.make_meshes(
          ['p'], jax.devices()[:1], mesh_lib.MeshSpec())['p'], lora)
      for lora in (False, True)}
  for name, (fsdp, tensor, lora) in CASES.items():
    many = run(mesh_lib.make_meshes(
        ['p'], jax.devices(), mesh_lib.MeshSpec(fsdp, tensor))['p'], lora)
    report[name] = {
        name: many[name] for name in (
            'shared_prefixes', 'decoded_rows', 'longest', 'sharding_kept')} | {
        name: bool(np.array_equal(single[lora][name], many[name]))
        for name in ('completions', 'alike')} | {
        name: relative(many[name], single[lora][name])
        for name in ('grads', 'params')} | {
        'loss': abs(many['loss'] - single[lora]['loss']),
        'bytes': many['bytes'] / single[lora]['bytes']}
  single, many = (
      update_critic(mesh_lib.make_meshes(
          ['p'], devices, mesh_lib.MeshSpec(*shape))['p'])
      for devices, shape in (
          (jax.devices()[:1], (1, 1)), (jax.devices(), (2, 2))))
  report['critic'] = relative(many, single)
  (folder / 'report.json').write_text(json.dumps(report, indent=2))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
