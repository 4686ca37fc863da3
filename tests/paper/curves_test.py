"""curves.py: what their lines are made of; tables_test.py makes the files."""

from paper import curves


def test_curves_leave_out_the_turns_that_nobody_needed():
  steps = [
      {'budget/completion_tokens': 5e5, 'validation/success': 0.0},
      {'budget/completion_tokens': 1e6, 'validation/success': 0.5,
       'validation/turns_to_solve': 3.0}]
  for metric, tokens, values in (
      ('validation/success', [0.5, 1.5], [0.0, 0.5]),
      ('validation/turns_to_solve', [1.5], [3.0])):
    x, y = curves.curve(steps, metric)
    assert (x.tolist(), y.tolist()) == (tokens, values)
