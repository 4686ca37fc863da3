"""Evaluations and training steps behind the tables, from workdirs or stored.

A folder of records holds three files, sorted by workdir:

  evaluations.jsonl  one evaluation per line: `workdir` relative to OUT, `name`
                     (before, after, ...), the content of `evals/<name>.json`,
                     and `token_budget`, 0 if the number of steps is limited
  splits.jsonl       the cluster of each task, by `split_hash`
  steps.csv          one step of a finished training per line, with the metrics
                     that tables and curves read

Numbers survive writing and reading bit for bit.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from typing import Any

import pandas as pd

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics

EVALUATIONS, SPLITS, STEPS = 'evaluations.jsonl', 'splits.jsonl', 'steps.csv'

# Cost of a run: title -> metric of a step.
LEDGER = {
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
    'memory/host_peak_gib', *LEDGER.values())
_STORED = '|'.join([
    *_REQUIRED, 'validation/(?!step).*', 'memory/.*', f'.*{UPDATES}',
    '.*/without_signal', '.*/advantage_.*', 'diagnosis/.*'])
_REQUIRED_OF_EVALUATION = (
    'success', 'mean_turns', 'mean_turns_to_solve', 'budget', 'token_budget')


def _no_steps() -> pd.DataFrame:
  return pd.DataFrame(index=pd.Index([], name='workdir'))


@dataclasses.dataclass(frozen=True)
class Records:
  """Everything that tables and curves are made of.

  Attributes:
    evaluations: (workdir, name) -> evaluation with its `token_budget`.
    steps: one row per step of a finished training, indexed by workdir; NaN
      where a metric was not measured.
  """

  evaluations: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(
      default_factory=dict)
  steps: pd.DataFrame = dataclasses.field(default_factory=_no_steps)

  def workdirs(self) -> set[str]:
    return {workdir for workdir, _ in self.evaluations}

  def updated(self, other: Records) -> Records:
    """These records, with the workdirs of `other` replaced or added."""
    new = other.workdirs()
    evaluations = {
        key: evaluation for key, evaluation in self.evaluations.items()
        if key[0] not in new}
    old_steps = self.steps[~self.steps.index.isin(new)]
    return Records(
        evaluations | other.evaluations, pd.concat([old_steps, other.steps]))

  def finished(self) -> Records:
    """Without workdirs that only have the evaluation before training."""
    finished = {
        workdir for workdir, name in self.evaluations if name != 'before'}
    return Records(
        {key: evaluation for key, evaluation in self.evaluations.items()
         if key[0] in finished}, self.steps)


def read_workdirs(out: pathlib.Path) -> Records:
  """Reads all workdirs below OUT; UserError names a file that is damaged."""
  evaluations, steps = {}, [_no_steps()]
  # Benchmarks have a folder between row and seed.
  for folder in sorted([*out.glob('*/*/*/*/evals'),
                        *out.glob('*/*/*/*/*/evals')]):
    workdir = folder.parent
    names = sorted(path.stem for path in folder.glob('*.json'))
    path = workdir.relative_to(out).as_posix()
    for name in names:
      evaluations[path, name] = evaluate.read(workdir, name) | {
          'token_budget': _read_budget(workdir)}
    if 'after' in names:
      frame = pd.DataFrame(metrics.read(workdir))
      # Stored columns keep the first name of this metric.
      frame = frame.rename(columns=lambda name: str(name).replace(
          '/zero_advantage', '/without_signal'))
      frame = frame.filter(regex=f'^({_STORED})$')
      _check_steps(frame, f'{workdir}/metrics.jsonl',
                   f'delete {workdir} and run it again')
      steps.append(frame.assign(workdir=path).set_index('workdir'))
  return Records(evaluations, pd.concat(steps))


def _read_budget(workdir: pathlib.Path) -> int:
  path = workdir / 'config.json'
  try:
    return json.loads(path.read_text())['config']['train']['completion_tokens']
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise errors.UserError(
        f'{path} is not the config of a run ({error!r}); restore it, or delete '
        f'{workdir} and run it again.') from error


def _check_steps(frame: pd.DataFrame, source: str, fix: str) -> None:
  """Raises UserError if a step lacks a metric that every step has."""
  missing = [
      name for name in _REQUIRED
      if name not in frame or frame[name].isna().any()]
  if frame.filter(regex=f'{UPDATES}$').isna().all(axis=1).any():
    missing.append(f'POLICY{UPDATES}')
  if missing or frame.empty:
    raise errors.UserError(
        f'{source} has steps without {", ".join(missing) or "metrics"}: it is '
        f'cut off, or another version wrote it; {fix}.')


def write(folder: pathlib.Path, records: Records) -> None:
  """Writes the three files."""
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
  steps = io.StringIO()
  records.steps.sort_index(kind='stable').to_csv(
      steps, columns=['step', *metric_names], lineterminator='\n',
      float_format=lambda value: repr(float(value)).removesuffix('.0'))
  folder.mkdir(parents=True, exist_ok=True)
  for file, objects in ((EVALUATIONS, lines), (SPLITS, [
      {'split_hash': split, 'clusters': clusters}
      for split, clusters in sorted(splits.items())])):
    files.write_whole(
        folder / file, ''.join(json.dumps(line) + '\n' for line in objects))
  files.write_whole(folder / STEPS, steps.getvalue())


def read(folder: pathlib.Path) -> Records:
  """Reads what `write` wrote; UserError names a damaged file."""
  fix = 'restore the file, or write it again from the workdirs with --keep'
  path = folder / SPLITS
  try:
    clusters = {
        line['split_hash']: line['clusters'] for line in _read_json(path)}
    path = folder / STEPS
    text = path.read_text()
    steps = pd.read_csv(
        io.StringIO(text), index_col='workdir', dtype={'workdir': str})
    if not text.endswith('\n') or not all(
        pd.api.types.is_numeric_dtype(x) for x in steps.dtypes):
      raise ValueError('a line is cut off or has no number')
    _check_steps(steps, str(path), fix)
    num_steps = steps.index.value_counts()
    path = folder / EVALUATIONS
    evaluations = {}
    for line in _read_json(path):
      workdir, name = line.pop('workdir'), line.pop('name')
      line['clusters'] = clusters[line['split_hash']]
      if missing := set(_REQUIRED_OF_EVALUATION) - line.keys():
        raise ValueError(f'{workdir} has no {", ".join(sorted(missing))}')
      if len(line['successes']) != len(line['clusters']):
        raise ValueError(f'successes of {workdir} do not match {SPLITS}')
      if name == 'after' and num_steps.get(workdir, 0) != line['step']:
        raise ValueError(f'{STEPS} lacks steps of {workdir}')
      evaluations[workdir, name] = line
  except OSError as error:
    raise errors.UserError(f'Cannot read records: {error}.') from error
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise errors.UserError(
        f'{path} is damaged ({error!r}); {fix}.') from error
  return Records(evaluations, steps.astype(float))


def _read_json(path: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in path.read_text().splitlines()]
