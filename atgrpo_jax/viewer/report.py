"""A run as one HTML file: its numbers, its curves and its trees.

  python -m atgrpo_jax.main --mode report --workdir W

The file needs nothing else and no network. What is not there yet, since the
run goes on or was stopped, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
import math
import pathlib
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import charts
from atgrpo_jax.viewer import cross_play
from atgrpo_jax.viewer import page
from atgrpo_jax.viewer import trees

# Of the trees that are embedded, compressed. Base64 adds a third.
MAX_BYTES = 12 << 20

# Of an evaluation; without what is told task by task.
_EVALUATION = (
    'num_tasks', 'num_left_out', 'success', 'interval', 'mean_return',
    'mean_turns', 'mean_turns_to_solve', 'truncated', 'outcomes', 'policy_map',
    'step', 'split', 'sampling')

Columns = dict[str, list[float | None]]


def write(
    workdir: pathlib.Path, compared: pathlib.Path | None = None, *,
    max_bytes: int = MAX_BYTES) -> pathlib.Path:
  """Writes the report of a run into its workdir.

  Args:
    workdir: of the run.
    compared: of another run, whose curves are drawn over those of this one.
    max_bytes: see `trees.read`.

  Raises:
    UserError: something in a workdir cannot be read.
  """
  run = read_run(workdir)
  runs = [run] if compared is None else [run, read_run(compared)]
  names = dict.fromkeys(
      name for it in runs for name, values in it['metrics'].items()
      if _tells(name, values))
  sources = trees.read(
      workdir, [it['name'] for it in run['evaluations']], max_bytes)
  path = workdir / workdir_lib.REPORT
  files.write_whole(path, page.make(
      {'runs': runs, 'charts': charts.charts(names)}, sources))
  return path


def _tells(name: str, values: Sequence[float | None]) -> bool:
  """Whether a metric is to be drawn.

  With one update in a step, the policy that is updated is the one that sampled.
  """
  known = [value for value in values if value is not None]
  return any(known) if name.endswith('/approx_kl') else bool(known)


def read_run(workdir: pathlib.Path) -> dict[str, Any]:
  """What a report says of a run, but for its trees; of values that JSON has."""
  config = workdir_lib.read_config(workdir)
  steps = []
  if (workdir / 'metrics.jsonl').exists():
    steps = metrics_lib.read(workdir)
    _check_steps(workdir, steps)
  evaluations = {
      name: evaluate.read(workdir, name) for name in _names(workdir)}
  for name, result in evaluations.items():
    _check_evaluation(workdir / 'evals' / f'{name}.json', result)
  try:
    run = {
        'name': workdir.resolve().name,
        'task': config['environment']['module'],
        'team': config['environment']['team'],
        'algorithm': _algorithm(config),
        'hash': workdir_lib.config_hash(config),
        'state': _state(workdir, config, steps, evaluations),
        'steps': int(steps[-1]['step']) if steps else 0,
        'tokens': sum(step['budget/completion_tokens'] for step in steps),
        'seconds': sum(step['time/step'] for step in steps),
        'evaluations': [
            {'name': name, 'sandbox': evaluate.sandbox_of(result)}
            | {field: result[field] for field in _EVALUATION}
            for name, result in evaluations.items()],
        'cross_play': cross_play.matrices([
            {'sandbox': evaluate.sandbox_of(result)} | result
            for result in evaluations.values()]),
        'config': {
            name: repr(value)
            for name, value in sorted(workdir_lib.flatten(config).items())},
        'metrics': columns(steps)}
  except (LookupError, TypeError) as error:
    raise errors.UserError(
        f'{workdir} has no {errors.one_line(error)}, which a report needs: it '
        'is of a pretraining or of another version; give a workdir of '
        '--mode=train or --mode=evaluate.') from error
  return _finite(run)


def _check_steps(
    workdir: pathlib.Path, steps: Sequence[Mapping[str, float]]) -> None:
  """Raises UserError if what is counted of a step is no number."""
  for index, step in enumerate(steps):
    for name in ('step', 'time/step', 'budget/completion_tokens'):
      if not math.isfinite(step.get(name, 0.0)):
        raise errors.UserError(
            f'{workdir / "metrics.jsonl"}, line {index + 1}: {name} is '
            f'{step[name]}, but must be a number; put the file back.')


def _check_evaluation(path: pathlib.Path, result: Mapping[str, Any]) -> None:
  """Raises UserError if it has not the fields that a report draws."""
  missing = [name for name in _EVALUATION if name not in result]
  kinds = (('interval', list), ('sampling', dict), ('outcomes', dict),
           ('policy_map', dict), ('budget', dict))
  wrong = [
      name for name, kind in kinds if not isinstance(result.get(name), kind)]
  if missing or wrong or len(result['interval']) != 2:
    raise errors.UserError(
        f'{path} is no evaluation of this version: its '
        f'{", ".join(dict.fromkeys([*missing, *wrong])) or "interval"} cannot '
        'be read; move it away.')


def _names(workdir: pathlib.Path) -> list[str]:
  """The evaluations that are done: 'before', 'after', and others by name."""
  names = sorted(path.stem for path in (workdir / 'evals').glob('*.json'))
  return sorted(names, key=lambda name: (name != 'before', name != 'after'))


def _algorithm(config: Mapping[str, Any]) -> str:
  """What the switches of a config are called."""
  rollout, critic = config['rollout'], config['critic']['kind']
  if config['environment']['team'] == 'solo' and critic == 'none':
    return 'GRPO of a single agent'
  name = {
      'tree': 'AT-GRPO', 'parallel': 'GRPO',
      'joint': {'none': 'MAGRPO', 'independent': 'IAC', 'central': 'MAAC'}[
          critic]}[rollout['mode']]
  return f'{name}, policies: {config["policies"]}'


def _state(
    workdir: pathlib.Path, config: Mapping[str, Any],
    steps: Sequence[Mapping[str, float]],
    evaluations: Mapping[str, Mapping[str, Any]]) -> str:
  """How far a run is."""
  step = int(steps[-1]['step']) if steps else 0
  of = config['train']['num_steps']
  so_far = f'step {step} of {of}' if of else f'step {step}'
  if workdir_lib.is_in_use(workdir):
    return f'still running, after {so_far}'
  if 'after' in evaluations and evaluations['after']['step'] == step:
    return f'finished after step {step}'
  if steps or 'before' in evaluations:
    return f'stopped after {so_far}; the same command resumes'
  return 'evaluated only' if evaluations else 'nothing recorded yet'


def columns(steps: Sequence[Mapping[str, float]]) -> Columns:
  """Metric -> its value of each step; None where it was not measured.

  The log repeats the last validation in every step. Kept is each where it was
  made, the first one at a step 0 of its own. New are `tokens`, generated so
  far.
  """
  steps = [dict(step) for step in steps]
  tokens = 0
  for step in steps:
    tokens += step['budget/completion_tokens']
    step['tokens'] = tokens
  if steps and steps[0]['validation/step'] == 0:
    steps.insert(0, {'step': 0, 'tokens': 0} | {
        name: value for name, value in steps[0].items()
        if name.startswith('validation/')})
  for step in steps:
    if step['step'] != step['validation/step']:
      for name in [name for name in step if name.startswith('validation/')]:
        del step[name]
  names = dict.fromkeys(itertools.chain(*steps))
  return {name: [step.get(name) for step in steps] for name in names}


def _finite(value: Any) -> Any:
  """The same, with None for each number that is not finite."""
  if isinstance(value, dict):
    return {name: _finite(part) for name, part in value.items()}
  if isinstance(value, (list, tuple)):
    return [_finite(part) for part in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
