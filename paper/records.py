"""Evaluations and training steps behind the tables, from workdirs or stored.

A folder of records holds four files, sorted by workdir:

  evaluations.jsonl  one evaluation per line: `workdir` relative to OUT, `name`
                     (before, after, ...), the content of `evals/<name>.json`,
                     and `token_budget`, 0 if the number of steps is limited
  splits.jsonl       the cluster of each task, by `split_hash`
  steps.csv          one step of a finished training per line, with its costs,
                     validations, advantages and gradients
  curves.jsonl       the learning curve of a finished training on Depot per
                     line, instead of all the above (`paper.depot`)

Numbers survive writing and reading bit for bit.
"""

import collections
from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import pandas as pd

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics
from atgrpo_jax.io import workdir as workdir_lib

EVALUATIONS, SPLITS, STEPS = 'evaluations.jsonl', 'splits.jsonl', 'steps.csv'
CURVES = 'curves.jsonl'
_DEPOT = 'depot'  # Start of the tables with curves.

# Cost of a run: title -> metric of a step.
COSTS = {
    'generated tokens': 'budget/completion_tokens',
    'prompt tokens': 'budget/prompt_tokens',
    'model calls': 'budget/model_calls',
    'program runs': 'budget/program_runs',
    'environment steps': 'budget/environment_steps',
}
# Suffix of the metric that counts a policy's updates.
UPDATES = '/num_updates'

_REQUIRED = (
    'step', 'rollout/success', 'validation/success', 'time/step',
    'memory/host_peak_gib', *COSTS.values())
_STORED = '|'.join([
    *_REQUIRED, 'validation/(?!step).*', 'memory/.*', f'.*{UPDATES}',
    '.*/without_signal', '.*/advantage_.*', '.*/return', 'diagnosis/.*'])


@dataclasses.dataclass(frozen=True)
class Records:
  """The evaluations and steps behind all tables and curves."""

  # (workdir, name) -> evaluation with its `token_budget`.
  evaluations: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(
      default_factory=dict)
  # One row per step of a finished training, indexed by workdir; NaN where a
  # metric was not measured.
  steps: pd.DataFrame = dataclasses.field(
      default_factory=lambda: pd.DataFrame(index=pd.Index([], name='workdir')))
  # Workdir -> learning curve.
  curves: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

  def workdirs(self) -> set[str]:
    return {workdir for workdir, _ in self.evaluations}

  def minutes(self) -> dict[str, float]:
    """Workdir of a training -> minutes of its steps."""
    steps = {} if self.steps.empty else (
        self.steps['time/step'].groupby(level=0).sum() / 60).to_dict()
    return steps | {
        workdir: curve['minutes'] for workdir, curve in self.curves.items()
        if 'minutes' in curve}  # An evaluation has none.

  def updated(self, other: 'Records') -> 'Records':
    """These records, with the workdirs of `other` replaced or added."""
    new = other.workdirs()
    evaluations = {
        key: evaluation for key, evaluation in self.evaluations.items()
        if key[0] not in new}
    old_steps = self.steps[~self.steps.index.isin(new)]
    return Records(
        evaluations | other.evaluations, pd.concat([old_steps, other.steps]),
        self.curves | other.curves)

  def finished(self) -> 'Records':
    """Without workdirs that only have the evaluation before training."""
    finished = {
        workdir for workdir, name in self.evaluations if name != 'before'}
    return Records(
        {key: evaluation for key, evaluation in self.evaluations.items()
         if key[0] in finished}, self.steps, self.curves)


def read_workdirs(out: pathlib.Path) -> Records:
  """Reads all workdirs below OUT; UserError names a damaged file."""
  evaluations, steps, curves = {}, [Records().steps], {}
  # Benchmarks have a folder between row and seed.
  names_of = collections.defaultdict(list)
  for path in sorted([*out.glob('*/*/*/*/evals/*.json'),
                      *out.glob('*/*/*/*/*/evals/*.json')]):
    names_of[path.parents[1]].append(path.stem)
  for workdir, names in names_of.items():
    path = workdir.relative_to(out).as_posix()
    if path.startswith(_DEPOT):
      if set(names) - {'before'}:
        curves[path] = _read_curve(workdir)
      continue
    budget = workdir_lib.read_config(workdir)['train']['completion_tokens']
    for name in names:
      evaluations[path, name] = evaluate.read(workdir, name) | {
          'token_budget': budget}
    if 'after' in names:
      frame = pd.DataFrame(metrics.read(workdir))
      # Stored columns keep the first name of this metric.
      frame = frame.rename(columns=lambda name: str(name).replace(
          '/zero_advantage', '/without_signal'))
      frame = frame.filter(regex=f'^({_STORED})$')
      if missing := set(_REQUIRED) - set(frame):
        raise errors.UserError(
            f'{workdir}/metrics.jsonl has no {", ".join(sorted(missing))}: '
            f'another version wrote it; delete {workdir} and run it again.')
      steps.append(frame.assign(workdir=path).set_index('workdir'))
  return Records(evaluations, pd.concat(steps), curves)


def _read_curve(workdir: pathlib.Path) -> dict[str, Any]:
  """The return in each evaluation, and costs; one return if none was trained.
  """
  if (workdir / 'evals/evaluation.json').exists():
    evaluation = evaluate.read(workdir, 'evaluation')
    return {'choices': [0.0], 'returns': [evaluation['mean_return']],
            'invalid': _invalid(evaluation)}
  steps = pd.DataFrame(metrics.read(workdir))
  after = evaluate.read(workdir, 'after')
  choices = steps.set_index('step')[COSTS['generated tokens']].cumsum()
  # A step repeats the last validation.
  validated = steps.drop_duplicates('validation/step')
  return {
      'choices': [
          *choices.reindex(validated['validation/step']).fillna(0),
          choices.iloc[-1]],
      'returns': [*validated['validation/return'], after['mean_return']],
      'invalid': _invalid(after),
      'learning_rate': workdir_lib.read_config(workdir)['optimizer'][
          'learning_rate'],
      'num_updates': steps.filter(regex=f'{UPDATES}$').iloc[-1].max(),
      'minutes': steps['time/step'].sum() / 60,
      'peak_gib': steps['memory/host_peak_gib'].max()}


def _invalid(evaluation: Mapping[str, Any]) -> float:
  """Share of the completions that could not be parsed."""
  outcomes = pd.DataFrame(evaluation['outcomes'].values()).sum()
  return outcomes.get('parse_error', 0) / outcomes.sum()


def write(folder: pathlib.Path, records: Records) -> None:
  """Writes the four files."""
  splits, lines = {}, []
  for (workdir, name), evaluation in sorted(
      records.evaluations.items(), key=lambda item: item[0]):
    line = {'workdir': workdir, 'name': name, **evaluation}
    split, clusters = line['split_hash'], line.pop('clusters')
    if splits.setdefault(split, clusters) != clusters:
      raise errors.UserError(
          f'{workdir}: the clusters of split {split} differ between runs; '
          'evaluate all runs with one version.')
    lines.append(line)
  metric_names = sorted(set(records.steps.columns) - {'step'})
  folder.mkdir(parents=True, exist_ok=True)
  _write_lines(folder / EVALUATIONS, lines)
  _write_lines(folder / SPLITS, [
      {'split_hash': split, 'clusters': clusters}
      for split, clusters in sorted(splits.items())])
  _write_lines(folder / CURVES, [
      {'workdir': workdir, **curve}
      for workdir, curve in sorted(records.curves.items())])
  files.write_whole(
      folder / STEPS, records.steps.sort_index(kind='stable').to_csv(
          columns=['step', *metric_names], lineterminator='\n',
          float_format=lambda value: repr(float(value)).removesuffix('.0')))


def read(folder: pathlib.Path) -> Records:
  """Reads the files of `write`; UserError names a damaged file."""
  path = folder / SPLITS
  try:
    clusters = {
        line['split_hash']: line['clusters'] for line in _read_lines(path)}
    path = folder / EVALUATIONS
    evaluations = {}
    for line in _read_lines(path):
      line['clusters'] = clusters[line['split_hash']]
      evaluations[line.pop('workdir'), line.pop('name')] = line
    path = folder / CURVES
    curves = {line.pop('workdir'): line for line in _read_lines(path)}
    path = folder / STEPS
    steps = pd.read_csv(
        path, index_col='workdir', dtype={'workdir': str}).astype(float)
  except OSError as error:
    raise errors.UserError(f'Cannot read records: {error}.') from error
  except (ValueError, LookupError, TypeError) as error:
    raise errors.UserError(
        f'{path} is damaged ({error!r}); restore the file, or write it again '
        'from the workdirs with --keep.') from error
  return Records(evaluations, steps, curves)


def _write_lines(path: pathlib.Path, lines: list[dict[str, Any]]) -> None:
  files.write_whole(path, ''.join(json.dumps(line) + '\n' for line in lines))


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  return list(map(json.loads, path.read_text().splitlines()))
