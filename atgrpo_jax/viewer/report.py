"""The report of a run: one HTML file with numbers, curves and trees.

  python -m atgrpo_jax.main --mode report --workdir W

The file needs no network. Sections without data are left out. TensorBoard draws
all other curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    workdir: the workdir of the run.
    max_bytes: see `trees.read`.

  Raises:
    UserError: a file of the workdir cannot be read.
  """
  try:
    run = read_run(workdir)
    sources = trees.read(
        workdir, [it['name'] for it in run['evaluations']], max_bytes)
    text = page.render(run, sources)
  except (LookupError, TypeError) as error:
    raise errors.UserError(
        f'{workdir} lacks {errors.one_line(error)}, which a report needs: it '
        'was written by another version. Give a workdir of --mode=train or '
        '--mode=evaluate.') from error
  path = workdir / workdir_lib.REPORT
  files.write_whole(path, text)
  return path


def read_run(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the content of a report, except its trees."""
  config = workdir_lib.read_config(workdir)
  has_steps = (workdir / 'metrics.jsonl').exists()
  steps = metrics_lib.read(workdir) if has_steps else []
  evaluations = [
      {'name': name} | evaluate.read(workdir, name)
      for name in _evaluation_names(workdir)]
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
      'evaluations': evaluations,
      'config': {
          name: repr(value)
          for name, value in sorted(workdir_lib.flatten(config).items())},
      'plots': plots(steps)}


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
    evaluations: Sequence[Mapping[str, Any]]) -> str:
  step = int(steps[-1]['step']) if steps else 0
  num_steps = config['train']['num_steps']
  progress = f'step {step} of {num_steps}' if num_steps else f'step {step}'
  done = {evaluation['name']: evaluation['step'] for evaluation in evaluations}
  if workdir_lib.is_in_use(workdir):
    return f'still running, after {progress}'
  if done.get('after') == step:
    return f'finished after step {step}'
  if steps or 'before' in done:
    # A bucket has no lock that would tell.
    state = 'running or stopped' if files.is_remote(workdir) else 'stopped'
    return f'{state} after {progress}; the same command resumes'
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
  x = 'validation/step' if metric.startswith('validation/') else 'step'
  values = {
      step[x]: step[metric] for step in steps
      if metric in step and math.isfinite(step[metric])}
  return sorted(values.items())
