"""What runs gave the tables: read from workdirs, and kept in three files.

A folder of kept records has, sorted by workdir:

  evaluations.jsonl  a line for each evaluation: its `workdir` below OUT, its
                     `name` (before, after, ...), what `evals/<name>.json` says,
                     and `token_budget`, of the training; 0 if that is limited
                     by steps
  splits.jsonl       the clusters of the tasks that were played, by `split_hash`
  steps.csv          a line for each step of a finished training, with what
                     tables and curves read; empty where nothing was measured

Numbers are written so that reading gives the same ones, NaN included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import io
import json
import pathlib
import re
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics

EVALUATIONS, SPLITS, STEPS = 'evaluations.jsonl', 'splits.jsonl', 'steps.csv'

# What a run has cost: title -> metric of a step.
LEDGER = {
    'generated tokens': 'budget/completion_tokens',
    'prompt tokens': 'budget/prompt_tokens',
    'model calls': 'budget/model_calls',
    'program runs': 'budget/program_runs',
    'environment steps': 'budget/environment_steps',
}
# Ends the name of the metric that counts a policy's updates since the start.
UPDATES = '/num_updates'

# Metrics of every step, and all that are read.
_ALWAYS = (
    'step', 'rollout/success', 'validation/success', 'time/step',
    'memory/host_peak_gib', *LEDGER.values())
_READ = re.compile('|'.join([
    *_ALWAYS, 'validation/(?!step).*', 'memory/.*', f'.*{UPDATES}',
    '.*/without_signal', '.*/advantage_.*', 'diagnosis/.*']))
# Of every evaluation.
_FIELDS = (
    'success', 'mean_turns', 'mean_turns_to_solve', 'budget', 'token_budget')


@dataclasses.dataclass(frozen=True)
class Run:
  """What a workdir holds.

  Attributes:
    evaluations: name -> what `evaluate.read` gives, and `token_budget`.
    steps: metric -> value, of each step of a training that is done.
  """

  evaluations: Mapping[str, Mapping[str, Any]]
  steps: Sequence[Mapping[str, float]] = ()

  @property
  def is_done(self) -> bool:
    """Whether there is more than the evaluation before training."""
    return self.evaluations.keys() != {'before'}


# Workdir below OUT, such as 'main/sokoban/at_grpo/seed-0' -> run.
Runs = Mapping[str, Run]


def read_workdirs(out: pathlib.Path) -> Runs:
  """The runs that have been evaluated, in `OUT/<table>/<task>/<row>/seed-<n>`.

  Raises UserError for a file that is not as a run has written it.
  """
  runs = {}
  for folder in out.glob('*/*/*/*/evals'):
    workdir = folder.parent
    names = sorted(path.stem for path in folder.glob('*.json'))
    if names:
      budget = {'token_budget': _read_budget(workdir)}
      runs[workdir.relative_to(out).as_posix()] = Run(
          {name: evaluate.read(workdir, name) | budget for name in names},
          _read_metrics(workdir) if 'after' in names else ())
  return runs


def _read_budget(workdir: pathlib.Path) -> int:
  """How many tokens a run may generate; 0 if its steps are limited."""
  path = workdir / 'config.json'
  try:
    return json.loads(path.read_text())['config']['train']['completion_tokens']
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path} is no config of a run that can be read ({error!r}); put back '
        f'the one that was written there, or delete {workdir} and run it again.'
    ) from error


def _read_metrics(workdir: pathlib.Path) -> list[dict[str, float]]:
  """What is read of `metrics.jsonl`, of a run that is done."""
  steps = [
      {name: value for name, value in step.items() if _READ.fullmatch(name)}
      for step in metrics.read(workdir)]
  for number, step in enumerate(steps or [{}], 1):
    if lacking := _lacking(step):
      raise errors.UserError(
          f'{workdir}/metrics.jsonl:{number} has no {lacking}: it is cut off, '
          f'or an older version wrote it. Delete {workdir} and run it again.')
  return steps


def _lacking(step: Mapping[str, float]) -> str:
  """The metrics that every step has, but this one has not."""
  lacking = [name for name in _ALWAYS if name not in step]
  if not any(name.endswith(UPDATES) for name in step):
    lacking.append(f'POLICY{UPDATES}')
  return ', '.join(lacking)


def write(folder: pathlib.Path, runs: Runs) -> None:
  """Writes the three files."""
  clusters, evaluations = {}, []
  for workdir, run in sorted(runs.items()):
    for name, evaluation in sorted(run.evaluations.items()):
      line = {'workdir': workdir, 'name': name, **evaluation}
      split, found = line['split_hash'], line.pop('clusters')
      if clusters.setdefault(split, found) != found:
        raise errors.UserError(
            f'{workdir}: the clusters of the split {split} are not those that '
            'other runs have; evaluate all with the same version.')
      evaluations.append(line)
  splits = [
      {'split_hash': split, 'clusters': found}
      for split, found in sorted(clusters.items())]
  steps = io.StringIO()
  names = {name for run in runs.values() for step in run.steps for name in step}
  writer = csv.DictWriter(
      steps, ['workdir', 'step', *sorted(names - {'step'})],
      lineterminator='\n')
  writer.writeheader()
  for workdir, run in sorted(runs.items()):
    for step in run.steps:
      writer.writerow({'workdir': workdir} | {
          name: repr(value).removesuffix('.0') for name, value in step.items()})
  folder.mkdir(parents=True, exist_ok=True)
  for file, lines in ((EVALUATIONS, evaluations), (SPLITS, splits)):
    files.write_whole(
        folder / file, ''.join(json.dumps(line) + '\n' for line in lines))
  files.write_whole(folder / STEPS, steps.getvalue())


def read(folder: pathlib.Path) -> Runs:
  """The runs that `write` was given; a UserError names a damaged line."""
  clusters, steps, evaluations = {}, {}, {}

  def add_split(line: dict[str, Any]) -> None:
    clusters[line['split_hash']] = line['clusters']

  def add_step(line: dict[str, str]) -> None:
    workdir = line.pop('workdir')
    step = {name: float(value) for name, value in line.items() if value}
    if lacking := _lacking(step):
      raise ValueError(f'no {lacking}')
    steps.setdefault(workdir, []).append(step)

  def add_evaluation(line: dict[str, Any]) -> None:
    workdir, name = line.pop('workdir'), line.pop('name')
    line['clusters'] = clusters[line['split_hash']]
    if lacking := set(_FIELDS) - line.keys():
      raise ValueError(f'no {", ".join(sorted(lacking))}')
    if len(line['successes']) != len(line['clusters']):
      raise ValueError(f'successes do not fit the tasks in {SPLITS}')
    if name == 'after' and len(steps.get(workdir, ())) != line['step']:
      raise ValueError(f'{STEPS} has not the {line["step"]} steps of this run')
    evaluations.setdefault(workdir, {})[name] = line

  for file, add_fn in (
      (SPLITS, add_split), (STEPS, add_step), (EVALUATIONS, add_evaluation)):
    _read_lines(folder / file, add_fn)
  return {
      workdir: Run(found, steps.get(workdir, ()))
      for workdir, found in evaluations.items()}


def _read_lines(
    path: pathlib.Path, add_fn: Callable[[dict[str, Any]], None]) -> None:
  """Passes on each line, of JSON or, below the line of names, of CSV."""
  number, names = 0, None
  try:
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
      if not line.endswith('\n'):
        raise ValueError('the line is cut off')
      if path.suffix == '.jsonl':
        add_fn(json.loads(line))
        continue
      values, = csv.reader([line])
      names = names or values
      if len(values) != len(names):
        raise ValueError(f'{len(values)} values for {len(names)} columns')
      if number > 1:
        add_fn(dict(zip(names, values)))
  except OSError as error:
    raise errors.UserError(f'Cannot read kept results: {error}.') from error
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise errors.UserError(
        f'{path}:{number} is damaged ({error!r}); restore the file, or make it '
        'again from the workdirs with --keep.') from error
