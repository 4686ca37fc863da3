"""A row of a table: the seeds `<table>/<task>/<row>/seed-<n>` together.

Also formats cells and tables.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import statistics
from paper import records as records_lib

# Title -> system, evaluation, and row of the paper's tables 1 and 2. The
# systems are `experiments.GAME_SYSTEMS` and `experiments.PROBLEM_SYSTEMS`.
SYSTEMS = {
    'Single agent': ('sa_grpo', 'before', 'SA'),
    'Single agent, several turns': ('sa_grpo_turns', 'before', ''),
    'Single agent + GRPO': ('sa_grpo', 'after', 'SA+GRPO'),
    'Single agent + GRPO, several turns': ('sa_grpo_turns', 'after', ''),
    'Single agent with the tool': ('sa_tool_grpo', 'before', ''),
    'Single agent with the tool + GRPO': ('sa_tool_grpo', 'after', ''),
    'Team': ('at_grpo', 'before', 'MAS'),
    'Team + GRPO, by task': ('mas_grpo', 'after', 'MAS+GRPO'),
    'Team + GRPO, by task and agent': ('mas_grpo_agent', 'after', ''),
    'Team + GRPO, by task and turn': ('mas_grpo_turn', 'after', ''),
    'Team + GRPO, by task, agent and turn':
        ('mas_grpo_agent_turn', 'after', ''),
    'Team + GRPO, by task, agent and turn, immediate':
        ('mas_grpo_immediate', 'after', ''),
    'Team + AT-GRPO': ('at_grpo', 'after', 'shared'),
    'Team + AT-GRPO, per role': ('at_grpo_per_role', 'after', 'per role'),
}
# The system that all others are compared with.
AT_GRPO = 'Team + AT-GRPO'


@dataclasses.dataclass(frozen=True)
class Row:
  """The seeds of a row, which played the same tasks."""

  # One per seed, as `evaluate.evaluate` returns it.
  evaluations: Sequence[Mapping[str, Any]]
  timed: Sequence[Mapping[str, Any]]  # The evaluations with a response time.
  # Training steps of all seeds, indexed by workdir; empty if nothing was
  # trained.
  steps: pd.DataFrame

  @property
  def successes(self) -> np.ndarray:
    """[seeds, tasks] bool."""
    return np.array([
        [success == '1' for success in evaluation['successes']]
        for evaluation in self.evaluations])

  @property
  def clusters(self) -> Sequence[int]:
    """[tasks], the same number for tasks of one kind."""
    return self.evaluations[0]['clusters']

  def mean(self, name: str) -> float:
    """Mean of a field over the seeds that know it; NaN if none does."""
    values = [evaluation[name] for evaluation in self.evaluations]
    return pd.Series(values, dtype=float).mean()

  def mean_per_task(self, cost: str) -> float:
    """Mean of a field of `budget` over seeds and tasks."""
    totals = [evaluation['budget'][cost] for evaluation in self.evaluations]
    return float(np.mean(totals)) / len(self.clusters)

  def score_cells(self, title: str, values: np.ndarray) -> dict[str, str]:
    """Mean of [seeds, tasks] values in percent, its interval, the seeds."""
    return {
        f'{title} %': percent(values.mean()),
        '95 %': '' if len(values) < 2 else between(
            *statistics.interval(values, self.clusters)),
        'seeds': seeds(len(values))}

  def training_cells(self) -> dict[str, str]:
    """Cost of the training; empty if nothing was trained."""
    if self.steps.empty:
      return {}
    seeds = self.steps.groupby(level='workdir', sort=False)
    totals = seeds.sum().mean()
    num_updates = seeds.last().filter(regex=f'{records_lib.UPDATES}$').mean()
    generated = seeds[records_lib.COSTS['generated tokens']].sum()
    budgets = np.array([found['token_budget'] for found in self.evaluations])
    # Devices of a CPU report no memory.
    peaks = self.steps.filter(
        items=['memory/device_peak_gib', 'memory/host_peak_gib']).max()
    return {
        'updates': _updates(num_updates.dropna()),
        'budget used': _ratios(
            generated.to_numpy()[budgets > 0] / budgets[budgets > 0]),
        **{title: _short(totals[metric])
           for title, metric in records_lib.COSTS.items()},
        'minutes': f'{totals["time/step"] / 60:.1f}',
        'peak GiB': f'{peaks.dropna().iloc[0]:.1f}'}


@dataclasses.dataclass(frozen=True)
class Table:
  """A titled table of text with a note below it."""

  title: str
  columns: Sequence[str]
  rows: Sequence[Mapping[str, str]]  # Column -> text.
  note: str

  def lines(self) -> list[list[str]]:
    """The texts of each row, '' for a missing column."""
    return [[row.get(name, '') for name in self.columns] for row in self.rows]

  def markdown(self) -> str:
    lines = [self.columns, ['---'] * len(self.columns), *self.lines()]
    table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
    return f'## {self.title}\n\n{table}\n{self.note}\n'


# Title -> row, for all of SYSTEMS; None if no seed is finished.
Systems = Mapping[str, Row | None]


def read_systems(records: records_lib.Records, folder: str) -> Systems:
  """The compared systems in the folder of a task."""
  return {
      title: read_row(records, f'{folder}/{system}', evaluation)
      for title, (system, evaluation, _) in SYSTEMS.items()}


def read_row(
    records: records_lib.Records, row: str, name: str) -> Row | None:
  """The seeds of a row that have the evaluation `name`; None if none has."""
  found = {
      workdir: evaluation
      for (workdir, found_name), evaluation in sorted(
          records.evaluations.items(), key=lambda item: item[0])
      if found_name == name and workdir.startswith(f'{row}/seed-')}
  if not found:
    return None
  evaluations = list(found.values())
  if any(evaluate.FAILED in x['successes'] for x in evaluations):
    # A training that resumes reads `before` instead of making it again.
    remedy = 'workdir' if name == 'before' else f'evals/{name}.json'
    raise errors.UserError(
        f'Evaluation {name!r} of {row} lacks tasks that failed for reasons '
        'outside the model, and rows are compared task by task; delete its '
        f'{remedy} and run the same command again.')
  steps = records.steps
  check_comparable(f'The seeds of {row}', evaluations)
  return Row(
      evaluations, timed=[
          evaluation for (workdir, _), evaluation in records.evaluations.items()
          if workdir in found and 'num_timed' in evaluation],
      steps=steps.loc[list(found)] if name == 'after' else steps.iloc[:0])


def read_last(records: records_lib.Records, row: str) -> Row | None:
  """The seeds of a row after training, or as evaluated without one."""
  return (
      read_row(records, row, 'after') or read_row(records, row, 'evaluation'))


def check_comparable(
    title: str, evaluations: Sequence[Mapping[str, Any]]) -> None:
  """Raises UserError unless all have the same tasks and sandbox level."""
  if len({found['split_hash'] for found in evaluations}) > 1:
    raise errors.UserError(
        f'{title} were evaluated on different tasks; evaluate all on the same '
        'config.evaluation.test.')
  levels = sorted(set(map(evaluate.sandbox_of, evaluations)) - {''})
  if len(levels) > 1:
    raise errors.UserError(
        f'{title} were evaluated at different sandbox levels '
        f'({", ".join(levels)}); evaluate all at the same '
        'config.sandbox.level.')


def seeds(num: int) -> str:
  """The number of seeds, marked if it makes a row a pilot."""
  return f'{num}, pilot' if num < statistics.MIN_SEEDS else str(num)


def p_text(p: float) -> str:
  return f'{p:.4f}' if p >= 1e-4 else '< 0.0001'


def percent(mean: float) -> str:
  return f'{100 * mean:.1f}'


def between(low: float, high: float) -> str:
  return f'{percent(low)} … {percent(high)}'


def signed(number: str) -> str:
  return number.replace('-', '−')


def _short(number: float) -> str:
  """Three significant digits with a unit."""
  number = float(f'{number:.3g}')  # 999 700 is 1 M.
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.0f}'


def _updates(num_updates: pd.Series) -> str:
  """Updates of each policy, then of each critic."""
  if len(num_updates) == 1:
    return f'{num_updates.iloc[0]:.0f}'
  learners = {
      name.removesuffix(records_lib.UPDATES): num
      for name, num in num_updates.items()}
  return ', '.join(
      f'{learner} {learners[learner]:.0f}'
      for learner in sorted(learners, key=lambda name: ('/' in name, name)))


def _ratios(values: np.ndarray) -> str:
  """Mean of ratios in percent, and their range if they differ."""
  if not len(values):
    return ''
  percents = 100 * values
  text = f'{percents.mean():.0f} %'
  if percents.max() - percents.min() > 1:
    text += f' ({percents.min():.0f} … {percents.max():.0f})'
  return text
