"""curves.py: the files, and what their lines are made of."""

import pytest

from paper import curves
from paper import workdirs


def test_files(results, tmp_path):
  paths = curves.draw(workdirs.read_systems(results), tmp_path)
  assert [path.name for path in paths] == [
      'plan_path_success.png', 'plan_path_turns.png', 'plan_path_rollout.png']
  for path in paths:
    assert path.read_bytes().startswith(b'\x89PNG')


def test_curves_leave_out_the_turns_that_nobody_needed():
  lines = [
      {'budget/completion_tokens': 5e5, 'validation/success': 0.0,
       'rollout/success': 0.25},
      {'budget/completion_tokens': 1e6, 'validation/success': 0.5,
       'rollout/success': 0.75, 'validation/turns_to_solve': 3.0}]
  for metric, tokens, values in (
      ('validation/success', [0.5, 1.5], [0.0, 0.5]),
      ('rollout/success', [0.5, 1.5], [0.25, 0.75]),
      ('validation/turns_to_solve', [1.5], [3.0])):
    x, y = curves.curve(lines, metric)
    assert (x.tolist(), y.tolist()) == (tokens, values)
  with pytest.raises(KeyError):
    curves.curve(lines, 'validation/turns')
