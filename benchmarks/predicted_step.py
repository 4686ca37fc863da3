"""A training step of Plan-Path with `nano`: predicted, and measured.

  JAX_NUM_CPU_DEVICES=2 python -m benchmarks.predicted_step

measures products and copies of the devices, all at work at once, trains a few
steps with a learning rate of 0, so that they are alike, and predicts one by the
method of `--mode compile_check`: the chip is what was measured, and lengths and
turns are drawn from those of the steps. Steps that compile something do not
count. Waiting for environments, validations and the log are on neither side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import statistics
import tempfile
import time

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections

from atgrpo_jax import api
from atgrpo_jax.compile_check import drawn
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import whole_step
from atgrpo_jax.distributed import chips
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.rollout import tree as tree_lib
from configs import plan_path

_STEPS = flags.DEFINE_integer(
    'steps', 24, 'Steps that are trained.', lower_bound=2)

_PARTS = ('sample', 'update')
_COPY_BYTES = 4 << 20  # Of a device; about what a layer hands on.
_REPEATS = 200


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'No arguments are known, but there are {argv[1:]}.')
  config = make_config(_STEPS.value)
  dimensions = config.compile_check.dimensions
  measured = [measure_chip(dimensions)]
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    api.train(config, workdir)
    measured.append(measure_chip(dimensions))
    steps = [
        step for step in metrics_lib.read(workdir) if not step['compile/count']]
    if not steps:
      raise app.UsageError(
          f'Each of the --steps={_STEPS.value} compiled something; give more.')
    # Metrics count the steps done, and the first record is that of step 0.
    lengths = recorded(workdir, [int(step['step']) - 1 for step in steps])
  chip = chips.Chip(
      memory=0, flops=statistics.mean(chip.flops for chip in measured),
      bandwidth=statistics.mean(chip.bandwidth for chip in measured), links=1.0)
  print(f'{jax.device_count()} devices, each {chip.flops / 1e9:.0f} GFLOP/s, '
        f'{chip.bandwidth / 1e9:.0f} GB/s')
  step = whole_step.predict(
      config, lower.build_policies(config, jax.devices()), [], chip, lengths)
  print(table(step, steps))


def make_config(num_steps: int) -> ml_collections.ConfigDict:
  """That of the quickstart, with records of each step and few evaluations."""
  config = plan_path.get_config('size=nano')
  dimensions = dataclasses.asdict(
      hub.load_config(hub.resolve_folder(config.model.folder)))
  with config.unlocked():
    config.compile_check = ml_collections.ConfigDict({
        'dimensions': dimensions, 'environment_seconds': 0.0,
        'talk_seconds': 0.0, 'disk_bytes_per_second': 1e9,
        'num_validation': 8})
  config.update_from_flattened_dict({
      'train.num_steps': num_steps, 'train.groups_every': 1,
      'train.diagnose_every': 0, 'optimizer.learning_rate': 0.0,
      'evaluation.test': 'test[:8]',
      'evaluation.validation': 'validation[:8]',
      'evaluation.validate_every': num_steps})
  return config


def measure_chip(dimensions: ml_collections.ConfigDict) -> chips.Chip:
  """What each device does in a second while all are at work; medians of 7."""
  mesh = jax.make_mesh((jax.device_count(),), ('x',))
  rows, hidden = 128, dimensions.hidden_size

  def put(x, *axes):
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

  def rate(body: Callable, amount: float, x, *others) -> float:
    repeat = jax.jit(jax.shard_map(
        lambda x, *others: jax.lax.fori_loop(
            0, _REPEATS, lambda _, x: body(x, *others), x),
        mesh=mesh, in_specs=(PartitionSpec('x'), *[PartitionSpec()] * len(
            others)), out_specs=PartitionSpec('x')))
    seconds = []
    for _ in range(8):
      start = time.perf_counter()
      jax.block_until_ready(repeat(x, *others))
      seconds.append(time.perf_counter() - start)
    return _REPEATS * amount / statistics.median(seconds[1:])

  wide = put(jnp.full((hidden, dimensions.intermediate_size), 1e-3))
  flops = rate(
      lambda x, up, down: x @ up @ down, 4 * rows * wide.size,
      put(jnp.ones((rows * mesh.size, hidden)), 'x'), wide, put(wide.T))
  bandwidth = rate(
      lambda x: -x, 2 * _COPY_BYTES,
      put(jnp.ones((mesh.size, _COPY_BYTES // 4)), 'x'))
  return chips.Chip(memory=0, flops=flops, bandwidth=bandwidth, links=1.0)


def recorded(
    workdir: pathlib.Path, steps: Sequence[int]) -> whole_step.Lengths:
  """Lengths and turns of all trees of some steps."""
  trees = [
      tree for step in steps
      for tree in tree_lib.read(tree_lib.groups_path(workdir, step))]
  groups = [group for tree in trees for group in tree.groups()]
  return whole_step.Lengths(
      drawn.Recorded(tuple(len(group.prompt) for group in groups)),
      drawn.Recorded(tuple(
          len(candidate.completion) for group in groups
          for candidate in group.candidates)),
      drawn.Recorded(tuple(tree.nodes[-1].turn + 1 for tree in trees)))


def table(
    step: whole_step.Prediction,
    measured: Sequence[dict[str, float]]) -> str:
  """Seconds of each part, and what is predicted over what was measured."""
  middle = f'median of {len(measured)}'
  lines = [
      f'{"":10s} {"predicted":>9s} {middle:>12s} {"least … most":>15s} '
      f'{"ratio":>6s}']
  for name, parts in (*((part, (part,)) for part in _PARTS), ('both', _PARTS)):
    seconds = [
        sum(values[f'time/{part}'] for part in parts) for values in measured]
    predicted = sum(step.seconds[part] for part in parts)
    median = statistics.median(seconds)
    lines.append(
        f'{name:10s} {predicted:9.2f} {median:12.2f} '
        f'{min(seconds):7.2f} … {max(seconds):5.2f} {predicted / median:6.2f}')
  return '\n'.join(lines)


if __name__ == '__main__':
  app.run(main)
