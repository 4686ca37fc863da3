"""Workdirs for reports, with the trees of a scripted game instead of training.

The functions of a real run write the records, metrics and evaluations.
"""

import dataclasses
import pathlib

import pytest

from atgrpo_jax import evaluate
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import tree as tree_lib
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


# In turn 1, the first candidate of a solves T1 and the second one T4. In T9,
# all candidates of a are equal, and the third one of b is not a number.
COMPLETIONS = scripted.Dice({
    'T1/a turn 0 total 0': ['1', '0', '2', '3'],
    'T4/a turn 0 total 0': ['1', HOSTILE, '2', '3'],
    'T9/a turn 0 total 0': ['1', '1', '1', '1'],
    'T9/b turn 0 total 1': ['1', '2', 'x', '0'],
})


def make(
    workdir: pathlib.Path, *, phases=(('a',), ('b',)), group_size: int = 4,
    **switches) -> pathlib.Path:
  """Makes the workdir of a finished run.

  Args:
    workdir: the folder to create.
    phases: phases of the game.
    group_size: number of candidates of a prompt.
    **switches: fields of the rollout spec.
  """
  environment, num_steps = Game(phases), 4
  config = echo.get_config()
  config.update_from_flattened_dict({
      'train.num_steps': num_steps, 'evaluation.validate_every': 2})
  workdir_lib.write_config(workdir, config.to_dict(), {})

  def runner():
    return scripted.make_runner(
        {'one': COMPLETIONS, 'two': COMPLETIONS}, environment=environment,
        max_new_tokens=30)

  tasks = [scripted.task(*pair) for pair in GOALS.items()]
  with pytest.MonkeyPatch.context() as monkeypatch:
    scripted.follow_scripts(monkeypatch)
    played = runner()
    trees = scripted.collect(played, GOALS, group_size=group_size, **switches)
    for name, step in (('before', 0), ('after', num_steps)):
      result = evaluate.evaluate(
          runner(), tasks, evaluate.transcripts_path(workdir, name))
      evaluate.write(workdir, name, result | {'split': 'test', 'step': step})
  for step in (0, 2):
    tree_lib.write(
        tree_lib.groups_path(workdir, step), trees, environment.show,
        with_tokens=True)
  values = tree_lib.metrics(trees) | {
      f'budget/{name}': count
      for name, count in played.usage.counts().items()} | {'time/step': 3.0}
  writer = metrics_lib.MetricsWriter(workdir)
  for step in range(1, num_steps + 1):
    validated = step - step % 2  # The step of the last validation.
    writer.write(step, values | {
        'validation/step': validated, 'validation/success': validated / 10,
        'validation/return': 0.5})
  return workdir
