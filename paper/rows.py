"""What the seeds of a row of the paper's tables gave, together.

A row is called `<table>/<task>/<row>`; its runs are those of the workdirs
`seed-<n>` below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import measures
from paper import game_cells
from paper import records

# The systems in OUT/main: title -> folder, which evaluation, and the row of the
# paper's tables 1 and 2.
SYSTEMS = {
    'Single agent': ('sa_grpo', 'before', 'SA'),
    'Single agent, several turns': ('sa_grpo_turns', 'before', ''),
    'Single agent + GRPO': ('sa_grpo', 'after', 'SA+GRPO'),
    'Single agent + GRPO, several turns': ('sa_grpo_turns', 'after', ''),
    'Team': ('at_grpo', 'before', 'MAS'),
    'Team + GRPO, by task': ('mas_grpo', 'after', 'MAS+GRPO'),
    'Team + GRPO, by task, as many tasks in a step as AT-GRPO':
        ('mas_grpo_same_tasks', 'after', ''),
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
  """What the seeds of a row gave.

  Attributes:
    successes: [seeds, tasks] bool.
    clusters: [tasks], the same number for tasks of one kind.
    turns: mean turns of an episode.
    turns_to_solve: mean turns of solved episodes, over the seeds that have
      some; NaN if none has.
    tokens_a_task: mean tokens that were generated for a task.
    split_hash: of the tasks.
    sandbox: the level at which programs ran; '' if there were none.
    evaluations: of each seed, what `evaluate.evaluate` gave.
    timed: the same of each seed that was timed.
    steps: metric -> value, of each step of each seed; empty if nothing was
      trained.
    budget_used: share of the tokens that it was given, for each seed that was
      given some.
  """

  successes: np.ndarray
  clusters: Sequence[int]
  turns: float
  turns_to_solve: float
  tokens_a_task: float
  split_hash: str
  sandbox: str
  evaluations: Sequence[Mapping[str, Any]]
  timed: Sequence[Mapping[str, Any]] = ()
  steps: tuple[Sequence[Mapping[str, float]], ...] = ()
  budget_used: tuple[float, ...] = ()

  @property
  def success(self) -> float:
    return float(self.successes.mean())

  @property
  def peak_gib(self) -> float:
    """Of a device, or of the host where devices do not tell."""
    values = self.values('memory/device_peak_gib') or self.values(
        'memory/host_peak_gib')
    return max(map(max, values))

  def total(self, metric: str) -> float:
    """The sum over the steps of a run, in the mean over seeds."""
    return float(np.mean([
        sum(step[metric] for step in steps) for steps in self.steps]))

  def values(self, metric: str) -> list[list[float]]:
    """What was logged of it, for each seed that has some."""
    found = [
        [step[metric] for step in steps if metric in step]
        for steps in self.steps]
    return [values for values in found if values]

  def num_updates(self) -> dict[str, float]:
    """Policy -> what its optimiser counted, in the mean over seeds."""
    names = dict.fromkeys(
        name for steps in self.steps for name in steps[-1]
        if name.endswith(records.UPDATES))
    return {
        name.removesuffix(records.UPDATES):
            float(np.mean([values[-1] for values in self.values(name)]))
        for name in names}


def check_comparable(title: str, rows: Iterable[Row]) -> None:
  """Raises UserError if rows of a table cannot be compared.

  They must be of the same tasks, with programs at the same sandbox level.
  """
  rows = list(rows)
  if len({row.split_hash for row in rows}) > 1:
    raise errors.UserError(
        f'{title}: rows were evaluated on different tasks and cannot be '
        'compared; evaluate all on the same config.evaluation.test.')
  levels = sorted({row.sandbox for row in rows} - {''})
  if len(levels) > 1:
    raise errors.UserError(
        f'{title}: rows were evaluated at different sandbox levels '
        f'({", ".join(levels)}) and cannot be compared; evaluate all at the '
        'same config.sandbox.level.')


# Task -> title -> row, of all of SYSTEMS.
SystemRows = Mapping[str, Mapping[str, Row | None]]


def read_systems(runs: records.Runs) -> SystemRows:
  """The compared systems on each game; None where nothing is finished."""
  return {
      task: {
          title: read_row(runs, f'main/{task}/{system}', evaluation)
          for title, (system, evaluation, _) in SYSTEMS.items()}
      for task in game_cells.TASKS}


def read_row(runs: records.Runs, row: str, name: str) -> Row | None:
  """The finished seeds of a row, or None if there are none.

  `name` is that of the evaluation; of one before training, nothing was spent.
  """
  seeds = [
      run for workdir, run in sorted(runs.items())
      if workdir.startswith(f'{row}/seed-') and name in run.evaluations]
  if not seeds:
    return None
  evaluations = [run.evaluations[name] for run in seeds]
  hashes = {evaluation['split_hash'] for evaluation in evaluations}
  if len(hashes) > 1:
    raise errors.UserError(
        f'The seeds of {row} were evaluated on different tasks; evaluate all '
        'on the same config.evaluation.test.')
  levels = {evaluate.sandbox_of(evaluation) for evaluation in evaluations}
  if len(levels - {''}) > 1:
    raise errors.UserError(
        f'The seeds of {row} were evaluated at different sandbox levels '
        f'({", ".join(sorted(levels))}); evaluate all at the same '
        'config.sandbox.level.')
  if any(measures.FAILED in found['successes'] for found in evaluations):
    # Training reads `before` when it goes on, so that one is not made again.
    made_again = 'workdir' if name == 'before' else f'evals/{name}.json'
    raise errors.UserError(
        f'An evaluation {name!r} of {row} left out tasks that failed through '
        'no fault of the team, and rows are compared task by task; delete its '
        f'{made_again} and run the same command again.')
  steps = tuple(run.steps for run in seeds) if name == 'after' else ()
  successes = np.array(
      [[x == '1' for x in result['successes']] for result in evaluations])
  to_solve = [
      result['mean_turns_to_solve'] for result in evaluations
      if result['mean_turns_to_solve'] is not None]
  tokens = [result['budget']['completion_tokens'] for result in evaluations]
  return Row(
      successes, clusters=evaluations[0]['clusters'],
      turns=float(np.mean([result['mean_turns'] for result in evaluations])),
      turns_to_solve=float(np.mean(to_solve or [math.nan])),
      tokens_a_task=float(np.mean(tokens)) / successes.shape[1],
      split_hash=hashes.pop(), sandbox=max(levels), evaluations=evaluations,
      timed=[
          found for run in seeds for found in run.evaluations.values()
          if 'num_timed' in found],
      steps=steps,
      budget_used=tuple(
          sum(step[records.LEDGER['generated tokens']] for step in trained)
          / evaluation['token_budget']
          for trained, evaluation in zip(steps, evaluations)
          if evaluation['token_budget']))
