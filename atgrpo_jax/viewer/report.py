"""The report of a run: one HTML file with numbers, curves and the trees.

  python -m atgrpo_jax.main --mode report --workdir W
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import gzip
import itertools
import json
import math
import pathlib
from typing import Any

import jinja2

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import progress
from atgrpo_jax.io import provenance
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import pages
from atgrpo_jax.viewer import trees

# Maximum size of the embedded trees, compressed. Base64 adds a third.
_MAX_BYTES = 12 << 20

_SCRIPTS = 'dom', 'tree', 'detail', 'browse'  # In the order of their use.

# Plot -> label -> metric.
_PLOTS = {
    'Success': {
        'rollout (with selection)': 'rollout/success',
        'validation (one candidate)': 'validation/success'},
    'Return': {'rollout': 'return/mean', 'validation': 'validation/return'},
}
# Title of a plot -> metric of each role or policy.
_PLOTS_BY_ROLE = {
    'Return of the candidates': 'return',
    'Tokens of a completion': 'length',
    'Share of parse errors': 'outcome/parse_error',
    'Share of groups without an advantage': 'zero_advantage',
    'Share of distinct texts in a group': 'distinct',
    'Entropy, nats per token': 'entropy',
    'KL to the policy before the step': 'approx_kl'}


def write(workdir: pathlib.Path) -> pathlib.Path:
  """Writes the report of a run into its workdir and returns its path.

  Raises UserError if a file of the workdir cannot be read.
  """
  with (unreadable_as_user_errors(workdir),
        progress.activity(lambda: 'writing the report …')):
    run = read_run(workdir)
    sources = trees.read(
        workdir, [it['name'] for it in run['evaluations']], _MAX_BYTES)
    index = json.dumps([
        {name: value for name, value in vars(source).items() if name != 'chunk'}
        for source in sources])
    text = pages.render(
        'report.html', _SCRIPTS, run=run, sandbox_of=evaluate.sandbox_of,
        chunks={'sources': gzip.compress(index.encode(), mtime=0)} | {
            f'trees-{i}': it.chunk for i, it in enumerate(sources)})
  path = workdir / workdir_lib.REPORT
  files.write_whole(path, text)
  return path


def write_after_training(workdir: pathlib.Path) -> None:
  """Writes the report and prints its path; the run is complete without one."""
  try:
    print(f'report: {write(workdir)}')
  except errors.UserError as error:
    print(f'no report was written: {error}')


@contextlib.contextmanager
def unreadable_as_user_errors(workdir: pathlib.Path) -> Iterator[None]:
  """Converts the errors of a file with other content than this version's."""
  try:
    yield
  except (LookupError, TypeError, jinja2.UndefinedError) as error:
    raise errors.UserError(
        f'{workdir} lacks {errors.one_line(error)}, which a report needs: it '
        'was written by another version. Give a workdir of --mode=train or '
        '--mode=evaluate.') from error


def read_run(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the content of a report, except its trees."""
  config = workdir_lib.read_config(workdir)
  has_steps = (workdir / 'metrics.jsonl').exists()
  steps = metrics_lib.read(workdir) if has_steps else []
  num_steps = int(steps[-1]['step']) if steps else 0
  names = sorted(
      (path.stem for path in (workdir / 'evals').glob('*.json')),
      key=lambda name: (name != 'before', name != 'after', name))
  evaluations = [
      {'name': name} | evaluate.read(workdir, name) for name in names]
  task = config['environment']['module'].removesuffix('.env')
  return {
      'name': workdir.resolve().name,
      'task': task.rpartition('.')[2].replace('_', ' ').capitalize(),
      'team': config['environment']['team'],
      'mode': config['rollout']['mode'],
      'policies': config['policies'],
      'hash': workdir_lib.config_hash(config),
      'state': _state(workdir, num_steps, evaluations),
      'steps': num_steps,
      'metrics': steps,
      'tokens': sum(step['budget/completion_tokens'] for step in steps),
      'seconds': sum(step['time/step'] for step in steps),
      'evaluations': evaluations,
      # The newest evaluation shows the state of the run.
      'problems': evaluate.find_problems(
          max(evaluations, key=lambda it: it['step'])) if evaluations else [],
      'config': {
          name: repr(value)
          for name, value in sorted(workdir_lib.flatten(config).items())},
      'provenance': [
          workdir_lib.flatten(event) for event in provenance.read(workdir)],
      'plots': _plots(steps) if steps else []}


def _state(
    workdir: pathlib.Path, num_steps: int,
    evaluations: Sequence[Mapping[str, Any]]) -> str:
  done = {evaluation['name']: evaluation['step'] for evaluation in evaluations}
  if workdir_lib.is_in_use(workdir):
    return 'running'
  if done.get('after') == num_steps:
    return 'finished'
  if 'before' not in done:
    return 'evaluated only' if evaluations else 'nothing recorded yet'
  # A bucket has no lock that would tell.
  return 'running or stopped' if files.is_remote(workdir) else 'stopped'


def _plots(steps: Sequence[Mapping[str, float]]) -> list[pages.Plot]:
  """Plots of the team, then of each role and policy."""
  names = sorted(set(itertools.chain(*steps)))
  metrics = dict(_PLOTS)
  for title, metric in _PLOTS_BY_ROLE.items():
    # A role without parse errors does not log them.
    logged = 'return' if metric.startswith('outcome/') else metric
    owners = [name.removesuffix(f'/{logged}') for name in names
              if name.endswith(f'/{logged}')]
    metrics[title] = {
        owner: f'{owner}/{metric}' for owner in owners
        if owner != 'validation' and '/' not in owner}
  last_step = int(steps[-1]['step'])
  return [
      pages.Plot(title, [
          pages.Line(label, points(steps, metric))
          for label, metric in lines.items()], last_step, f'step {last_step}',
          style='line' if title in _PLOTS else 'group')
      for title, lines in metrics.items() if lines]


def points(
    steps: Sequence[Mapping[str, float]],
    metric: str) -> list[tuple[float, float]]:
  """Points (step, finite value) of a metric.

  The log repeats the last validation in every step, so a validation is placed
  at the step where it was made. An outcome is logged only where it occurs.
  """
  missing = 0.0 if '/outcome/' in metric else math.nan
  x = 'validation/step' if metric.startswith('validation/') else 'step'
  values = {
      step[x]: step.get(metric, missing) for step in steps
      if math.isfinite(step.get(metric, missing))}
  return sorted(values.items())
