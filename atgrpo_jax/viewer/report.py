"""A run as one HTML file: its numbers, a few curves and its trees.

  python -m atgrpo_jax.main --mode report --workdir W

The file needs no network and nothing else. Parts that a running or stopped run
does not have yet are left out. TensorBoard draws all other curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import page
from atgrpo_jax.viewer import trees

# Maximum size of the embedded trees, compressed. Base64 adds a third.
MAX_BYTES = 12 << 20

# Fields of an evaluation without those of single tasks.
_EVALUATION = (
    'num_tasks', 'num_left_out', 'success', 'interval', 'mean_return',
    'mean_turns', 'mean_turns_to_solve', 'truncated', 'policy_map', 'step',
    'split', 'sampling')
_TYPES = {
    'interval': list, 'sampling': dict, 'policy_map': dict, 'budget': dict}
# Evaluations that differ in one of these are not compared.
_CONDITIONS = ('split', 'step', 'sampling', 'sandbox')
# Plot -> whether its axis is a ratio, and label -> metric; `{}` is a role.
_PLOTS = {
    'Success': (True, {
        'rollout (with selection)': 'rollout/success',
        'validation (one candidate)': 'validation/success'}),
    'Return': (False, {
        'all': 'return/mean', '{}': '{}/return',
        'validation': 'validation/return'}),
    'Tokens per completion': (False, {'{}': '{}/length'}),
}


def write(
    workdir: pathlib.Path, *, max_bytes: int = MAX_BYTES) -> pathlib.Path:
  """Writes the report of a run into its workdir and returns its path.

  Args:
    workdir: the run.
    max_bytes: see `trees.read`.

  Raises:
    UserError: a file of the workdir cannot be read.
  """
  run = read_run(workdir)
  sources = trees.read(
      workdir, [it['name'] for it in run['evaluations']], max_bytes)
  path = workdir / workdir_lib.REPORT
  files.write_whole(path, page.render(run, sources))
  return path


def read_run(workdir: pathlib.Path) -> dict[str, Any]:
  """Everything that a report says about a run, except its trees."""
  config = workdir_lib.read_config(workdir)
  steps = []
  if (workdir / 'metrics.jsonl').exists():
    steps = metrics_lib.read(workdir)
    _check_steps(workdir, steps)
  evaluations = {}
  for name in _evaluation_names(workdir):
    found = evaluate.read(workdir, name)
    _check_evaluation(workdir / 'evals' / f'{name}.json', found)
    evaluations[name] = found | {'sandbox': evaluate.sandbox_of(found)}
  try:
    return {
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
            {'name': name, 'sandbox': found['sandbox']}
            | {field: found[field] for field in _EVALUATION}
            for name, found in evaluations.items()],
        'cross_play': cross_play(list(evaluations.values())),
        'config': {
            name: repr(value)
            for name, value in sorted(workdir_lib.flatten(config).items())},
        'plots': plots(steps)}
  except (LookupError, TypeError) as error:
    raise errors.UserError(
        f'{workdir} lacks {errors.one_line(error)}, which a report needs: it '
        'was written by another version. Give a workdir of --mode=train or '
        '--mode=evaluate.') from error


def _check_steps(
    workdir: pathlib.Path, steps: Sequence[Mapping[str, float]]) -> None:
  """Raises UserError if a number that is summed over steps is not finite."""
  for index, step in enumerate(steps):
    for name in ('step', 'time/step', 'budget/completion_tokens'):
      if not math.isfinite(step.get(name, 0.0)):
        raise errors.UserError(
            f'{workdir / "metrics.jsonl"}, line {index + 1}: {name} is '
            f'{step[name]}, expected a finite number; restore the file.')


def _check_evaluation(path: pathlib.Path, found: Mapping[str, Any]) -> None:
  """Raises UserError if a field that a report draws has another form."""
  wrong = [name for name in _EVALUATION if name not in found] + [
      name for name, kind in _TYPES.items()
      if not isinstance(found.get(name), kind)]
  if not wrong and len(found['interval']) != 2:
    wrong = ['interval']
  if wrong:
    raise errors.UserError(
        f'{path} was written by another version: expected other values of '
        f'{", ".join(dict.fromkeys(wrong))}; move the file away.')


def _evaluation_names(workdir: pathlib.Path) -> list[str]:
  """'before', 'after', then other evaluations by name."""
  names = sorted(path.stem for path in (workdir / 'evals').glob('*.json'))
  return sorted(names, key=lambda name: (name != 'before', name != 'after'))


def _algorithm(config: Mapping[str, Any]) -> str:
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
  step = int(steps[-1]['step']) if steps else 0
  num_steps = config['train']['num_steps']
  progress = f'step {step} of {num_steps}' if num_steps else f'step {step}'
  if workdir_lib.is_in_use(workdir):
    return f'still running, after {progress}'
  if 'after' in evaluations and evaluations['after']['step'] == step:
    return f'finished after step {step}'
  if steps or 'before' in evaluations:
    return f'stopped after {progress}; the same command resumes'
  return 'evaluated only' if evaluations else 'nothing recorded yet'


def plots(steps: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
  """Plots of the page; a plot without a finite value is left out."""
  roles = [
      name.removesuffix('/length') for name in (steps[-1] if steps else ())
      if name.endswith('/length')]
  found = []
  for title, (is_ratio, metrics) in _PLOTS.items():
    lines = {}
    for label, metric in metrics.items():
      for role in roles if '{}' in metric else ['']:
        line = _line(steps, metric.format(role))
        if line:
          lines[label.format(role)] = line
    if lines:
      found.append({'title': title, 'is_ratio': is_ratio, 'lines': lines})
  return found


def _line(
    steps: Sequence[Mapping[str, float]],
    metric: str) -> list[tuple[float, float]]:
  """Points (step, finite value) of a metric.

  The log repeats the last validation in every step, so a validation is placed
  at the step where it was made.
  """
  place = 'validation/step' if metric.startswith('validation/') else 'step'
  values = {
      step[place]: step[metric] for step in steps
      if metric in step and math.isfinite(step[metric])}
  return sorted(values.items())


def cross_play(
    evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Success of two roles by the policies that played them.

  Returns:
    For evaluations under equal conditions with at least two pairs of policies:
    `title`, `header` and `rows`, whose entries are a success or None. The last
    evaluation of a pair is shown.
  """
  tables: dict[str, dict[str, Any]] = {}
  for found in evaluations:
    if len(found['policy_map']) == 2:
      conditions = json.dumps([
          list(found['policy_map']), *(found[name] for name in _CONDITIONS)])
      group = tables.setdefault(conditions, {'of': found, 'success': {}})
      pair = tuple(found['policy_map'].values())
      group['success'][pair] = found['success']
  matrices = []
  for group in tables.values():
    found, successes = group['of'], group['success']
    if len(successes) < 2:
      continue
    first, second = found['policy_map']
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*successes))
    matrices.append({
        'title': (
            f'Success on {found["split"]} after step {found["step"]}, {first} '
            f'(rows) and {second} (columns) played by these policies'),
        'header': [f'{first} \\ {second}', *columns],
        'rows': [
            [row, *(successes.get((row, column)) for column in columns)]
            for row in rows]})
  return matrices
