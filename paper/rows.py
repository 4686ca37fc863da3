"""A row of a table: the seeds `<table>/<task>/<row>/seed-<n>` together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import measures
from paper import formats
from paper import records as records_lib
from paper import statistics

# Title -> system, evaluation, and row of the paper's tables 1 and 2. The
# systems are `configs.common.SYSTEMS` and `sa_tool_grpo` of configs/maths.py.
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
    'Team + IAC': ('iac', 'after', ''),
    'Team + MAAC': ('maac', 'after', ''),
    'Team + MAGRPO': ('magrpo', 'after', ''),
    'Team + AT-GRPO, shared': ('at_grpo', 'after', 'shared'),
    'Team + AT-GRPO, per role': ('at_grpo_per_role', 'after', 'per role'),
    'Team + AT-GRPO, adapter per role': ('at_grpo_lora', 'after', ''),
}
# The system that all others are compared with.
AT_GRPO = 'Team + AT-GRPO, shared'


@dataclasses.dataclass(frozen=True)
class Row:
  """The seeds of a row, which played the same tasks.

  Attributes:
    evaluations: one per seed, as `evaluate.evaluate` returns it.
    timed: the evaluations with a response time.
    steps: training steps of all seeds, indexed by workdir; empty if nothing was
      trained.
  """

  evaluations: Sequence[Mapping[str, Any]]
  timed: Sequence[Mapping[str, Any]]
  steps: pd.DataFrame

  @property
  def successes(self) -> np.ndarray:
    """[seeds, tasks] bool."""
    return np.array([
        [success == '1' for success in found['successes']]
        for found in self.evaluations])

  @property
  def clusters(self) -> Sequence[int]:
    """[tasks], the same number for tasks of one kind."""
    return self.evaluations[0]['clusters']

  @property
  def sandbox(self) -> str:
    """Level at which programs ran; '' if there were none."""
    return max(map(evaluate.sandbox_of, self.evaluations))

  def mean(self, name: str) -> float:
    """Mean of a field over the seeds that know it; NaN if none does."""
    values = [found[name] for found in self.evaluations]
    return pd.Series(values, dtype=float).mean()

  def tokens_per_task(self) -> float:
    return float(np.mean([
        found['budget']['completion_tokens']
        for found in self.evaluations])) / len(self.clusters)

  def total(self, metric: str) -> float:
    """Sum over the steps of a run, averaged over seeds."""
    return self._seeds()[metric].sum().mean()

  def num_updates(self) -> dict[str, float]:
    """Policy or critic -> number of updates, averaged over seeds."""
    counts = self._seeds().last().filter(regex=f'{records_lib.UPDATES}$')
    means = counts.mean().dropna()
    return means.rename(
        lambda name: name.removesuffix(records_lib.UPDATES)).to_dict()

  def peak_gib(self) -> float:
    """Peak memory of a device, or of the host if devices report none."""
    device = 'memory/device_peak_gib'
    if device in self.steps and self.steps[device].notna().any():
      return self.steps[device].max()
    return self.steps['memory/host_peak_gib'].max()

  def budget_used(self) -> list[float]:
    """Fraction of the token budget, for each seed that had one."""
    generated = self._seeds()[records_lib.LEDGER['generated tokens']].sum()
    return [
        tokens / found['token_budget']
        for tokens, found in zip(generated, self.evaluations)
        if found['token_budget']]

  def _seeds(self):
    return self.steps.groupby(level='workdir', sort=False)

  def success_cells(self) -> dict[str, str]:
    successes = self.successes
    return {
        'success %': formats.percent(successes.mean()),
        '95 %': '' if len(successes) < 2 else formats.interval(
            *statistics.success_interval(successes, self.clusters)),
        'seeds': str(len(successes))}

  def training_cells(self) -> dict[str, str]:
    """Cost of the training; empty if nothing was trained."""
    if self.steps.empty:
      return {}
    return {
        'updates': formats.updates(self.num_updates()),
        'budget used': formats.ratios(self.budget_used()),
        **{title: formats.short(self.total(metric))
           for title, metric in records_lib.LEDGER.items()},
        'minutes': f'{self.total("time/step") / 60:.1f}',
        'peak GiB': f'{self.peak_gib():.1f}'}


# Game -> title -> row, for all of SYSTEMS.
SystemRows = Mapping[str, Mapping[str, Row | None]]


def read_systems(
    records: records_lib.Records, tasks: Iterable[str],
    table: str = 'main') -> SystemRows:
  """The compared systems on each task; None if no seed is finished."""
  return {
      task: {
          title: read_row(records, f'{table}/{task}/{system}', evaluation)
          for title, (system, evaluation, _) in SYSTEMS.items()}
      for task in tasks}


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
  if any(measures.FAILED in x['successes'] for x in evaluations):
    # A training that resumes reads `before` instead of making it again.
    remedy = 'workdir' if name == 'before' else f'evals/{name}.json'
    raise errors.UserError(
        f'Evaluation {name!r} of {row} lacks tasks that failed for reasons '
        'outside the model, and rows are compared task by task; delete its '
        f'{remedy} and run the same command again.')
  steps = records.steps
  result = Row(
      evaluations, timed=[
          evaluation for (workdir, _), evaluation in records.evaluations.items()
          if workdir in found and 'num_timed' in evaluation],
      steps=steps.loc[list(found)] if name == 'after' else steps.iloc[:0])
  check_comparable(f'The seeds of {row}', [
      dataclasses.replace(result, evaluations=[x]) for x in evaluations])
  return result


def check_comparable(title: str, rows: Iterable[Row]) -> None:
  """Raises UserError unless rows have the same tasks and sandbox level."""
  rows = list(rows)
  if len({row.evaluations[0]['split_hash'] for row in rows}) > 1:
    raise errors.UserError(
        f'{title} were evaluated on different tasks; evaluate all on the same '
        'config.evaluation.test.')
  levels = sorted({row.sandbox for row in rows} - {''})
  if len(levels) > 1:
    raise errors.UserError(
        f'{title} were evaluated at different sandbox levels '
        f'({", ".join(levels)}); evaluate all at the same '
        'config.sandbox.level.')
