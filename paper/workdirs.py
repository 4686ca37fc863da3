"""What the workdirs of finished cells hold of a row of the paper's tables.

A row is a folder `OUT/<table>/<task>/<row>` with a workdir `seed-<n>` for each
seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib
import re
import shutil

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.runtime import metrics
from paper import cells

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
    'Team + AT-GRPO, shared': ('at_grpo', 'after', 'shared'),
    'Team + AT-GRPO, per role': ('at_grpo_per_role', 'after', 'per role'),
    'Team + AT-GRPO, adapter per role': ('at_grpo_lora', 'after', ''),
}
# The system that all others are compared with.
AT_GRPO = 'Team + AT-GRPO, shared'

# What a run has cost: title -> metric of a step.
LEDGER = {
    'generated tokens': 'budget/completion_tokens',
    'prompt tokens': 'budget/prompt_tokens',
    'model calls': 'budget/model_calls',
    'program runs': 'budget/program_runs',
    'environment steps': 'budget/environment_steps',
}
# Ends the name of the metric that counts a policy's updates since the start.
_UPDATES = '/num_updates'


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
    lines: of `metrics.jsonl`, for each seed; empty if nothing was trained.
    budget_used: share of the tokens that it was given, for each seed that was
      given some.
  """

  successes: np.ndarray
  clusters: Sequence[int]
  turns: float
  turns_to_solve: float
  tokens_a_task: float
  split_hash: str
  lines: tuple[list[dict], ...] = ()
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
        sum(line[metric] for line in lines) for lines in self.lines]))

  def values(self, metric: str) -> list[list[float]]:
    """What was logged of it, for each seed that has some."""
    found = [
        [line[metric] for line in lines if metric in line]
        for lines in self.lines]
    return [values for values in found if values]

  def num_updates(self) -> dict[str, float]:
    """Policy -> what its optimiser counted, in the mean over seeds."""
    names = dict.fromkeys(
        name for lines in self.lines for name in lines[-1]
        if name.endswith(_UPDATES))
    return {
        name.removesuffix(_UPDATES):
            float(np.mean([values[-1] for values in self.values(name)]))
        for name in names}


# Task -> title -> row, of all of SYSTEMS.
SystemRows = Mapping[str, Mapping[str, Row | None]]


def read_systems(out: pathlib.Path) -> SystemRows:
  """The compared systems on each game; None where nothing is finished."""
  return {
      task: {
          title: read_row(out / 'main' / task / folder, evaluation)
          for title, (folder, evaluation, _) in SYSTEMS.items()}
      for task in cells.TASKS}


def read_row(folder: pathlib.Path, name: str) -> Row | None:
  """The finished seeds of a row, or None if there are none.

  `name` is that of the evaluation; of one before training, nothing was spent.
  """
  workdirs = [
      path.parents[1]
      for path in sorted(folder.glob(f'seed-*/evals/{name}.json'))]
  if not workdirs:
    return None
  evals = [evaluate.read(workdir, name) for workdir in workdirs]
  hashes = {result['split_hash'] for result in evals}
  if len(hashes) > 1:
    raise errors.UserError(
        f'The seeds in {folder} were evaluated on different tasks; evaluate '
        'all on the same config.evaluation.test.')
  lines, budget_used = (), []
  if name == 'after':
    lines = tuple(map(_read_steps, workdirs))
    for workdir, steps in zip(workdirs, lines):
      if budget := _read_budget(workdir):
        generated = sum(step[LEDGER['generated tokens']] for step in steps)
        budget_used.append(generated / budget)
  successes = np.array(
      [[x == '1' for x in result['successes']] for result in evals])
  to_solve = [
      result['mean_turns_to_solve'] for result in evals
      if result['mean_turns_to_solve'] is not None]
  tokens = [result['budget']['completion_tokens'] for result in evals]
  return Row(
      successes, clusters=evals[0]['clusters'],
      turns=float(np.mean([result['mean_turns'] for result in evals])),
      turns_to_solve=float(np.mean(to_solve or [math.nan])),
      tokens_a_task=float(np.mean(tokens)) / successes.shape[1],
      split_hash=hashes.pop(), lines=lines, budget_used=tuple(budget_used))


def _read_steps(workdir: pathlib.Path) -> list[dict]:
  """The lines of `metrics.jsonl` of a run that is done."""
  lines = metrics.read(workdir)
  if not lines:
    raise errors.UserError(
        f'{workdir}/metrics.jsonl is empty, but the run is done; delete '
        f'{workdir} and run it again.')
  if not any(name.endswith(_UPDATES) for name in lines[-1]):
    raise errors.UserError(
        f'{workdir}/metrics.jsonl has no POLICY{_UPDATES}, since an older '
        f'version wrote it; delete {workdir} and run it again.')
  return lines


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


def keep(out: pathlib.Path, folder: pathlib.Path) -> None:
  """Copies to `folder` what tables and curves are made of."""
  read = re.compile('|'.join([
      'step', 'validation/.*', 'rollout/.*', *LEDGER.values(), 'time/step',
      'memory/.*',
      f'.*{_UPDATES}', '.*/without_signal', '.*/advantage_.*',
      'diagnosis/.*']))
  for path in sorted(out.glob('**/evals/*.json')):
    workdir = path.parents[1]
    copy = folder / workdir.relative_to(out)
    (copy / 'evals').mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy / 'evals')
    record = workdir / 'metrics.jsonl'
    if record.exists():
      shutil.copy(workdir / 'config.json', copy)
      lines = map(json.loads, record.read_text().splitlines())  # As they are.
      (copy / record.name).write_text(''.join(
          json.dumps({
              name: value for name, value in line.items()
              if read.fullmatch(name)}) + '\n'
          for line in lines))
