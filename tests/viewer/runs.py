"""Workdirs for reports, with the trees of a scripted game instead of training.

The functions of a real run write the records, metrics and evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from atgrpo_jax import evaluate
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from tests import echo
from tests.rollout import scripted

# A completion that tries to break a page; the game reads it as 4.
HOSTILE = '4 </script><script>hit=1//'
GOALS = {'T1': 1, 'T4': 4, 'T9': 9, '</script><b>': 3}


@dataclasses.dataclass(frozen=True)
class Game(scripted.Counting):
  """Counting, with a board that shows the total."""

  def show(self, state: scripted.State) -> dict[str, str]:
    row = ['.'] * 8
    row[state.total % 8] = 'A'
    return {'board': f'########\n{"".join(row)}', 'total': str(state.total),
            '</pre><script>': '<img src=x onerror="hit=1">'}


class Script(scripted.Dice):
  """Fixed completions for some prompts, and dice for the others."""

  def __init__(self, completions: Mapping[str, Sequence[str]]):
    self._completions = completions

  def __getitem__(self, prompt: str) -> Sequence[str]:
    return self._completions.get(prompt) or super().__getitem__(prompt)


# In turn 1, the first candidate of a solves T1 and the second one T4. In T9,
# all candidates of a are equal, and the third one of b is not a number.
COMPLETIONS = Script({
    'T1/a turn 0 total 0': ['1', '0', '2', '3'],
    'T4/a turn 0 total 0': ['1', HOSTILE, '2', '3'],
    'T9/a turn 0 total 0': ['1', '1', '1', '1'],
    'T9/b turn 0 total 1': ['1', '2', 'x', '0'],
})


def runner(environment: env_api.Environment):
  """Plays the script; call `scripted.follow_scripts` first."""
  return scripted.make_runner(
      {'one': COMPLETIONS, 'two': COMPLETIONS}, environment=environment,
      max_new_tokens=30)


def make(
    workdir: pathlib.Path, *, steps: Sequence[int] = (0, 2),
    num_steps: int = 4, phases=(('a',), ('b',)), group_size: int = 4,
    changes: Mapping[str, Any] | None = None, **switches) -> pathlib.Path:
  """A workdir of a finished run.

  Args:
    workdir: the folder to create.
    steps: recorded steps.
    num_steps: trained steps.
    phases: of the game.
    group_size: of the rollout.
    changes: config key -> value.
    **switches: fields of the rollout spec.
  """
  environment = Game(phases)
  config = echo.get_config()
  config.update_from_flattened_dict({
      'train.num_steps': num_steps, 'evaluation.validate_every': 2,
      **(changes or {})})
  workdir_lib.write_config(workdir, config.to_dict())
  played = runner(environment)
  trees = scripted.collect(played, GOALS, group_size=group_size, **switches)
  for step in steps:
    tree_lib.write(
        tree_lib.groups_path(workdir, step), trees, environment.show,
        with_tokens=True)
  values = tree_lib.metrics(trees) | {
      f'budget/{name}': count
      for name, count in played.usage.counts().items()} | {
      f'{policy}/{metric}': 1.0 for policy in ('one', 'two')
      for metric in ('num_updates', 'entropy')} | {
      'time/update': 0.5, 'time/step': 3.0}
  lines = []
  for step in range(1, num_steps + 1):
    validated = step - step % 2  # The step of the last validation.
    lines.append({'step': step} | values | {
        'validation/step': validated, 'validation/success': validated / 10,
        'validation/return': 0.5})
  (workdir / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line, default=float) + '\n' for line in lines))
  tasks = [scripted.task(*pair) for pair in GOALS.items()]
  for name, step in (('before', 0), ('after', num_steps)):
    add_evaluation(workdir, name, environment, tasks, step)
  return workdir


def add_evaluation(
    workdir: pathlib.Path, name: str, environment: env_api.Environment,
    tasks: Sequence[env_api.Task], step: int) -> None:
  """Writes an evaluation and its episodes."""
  result = evaluate.evaluate(
      runner(environment), tasks, evaluate.transcripts_path(workdir, name))
  evaluate.write(workdir, name, result | {'split': 'test', 'step': step})
