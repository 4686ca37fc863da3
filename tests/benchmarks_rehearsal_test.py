"""benchmarks/rehearsal.py says whether a run was as if nothing had been.

What it rehearses takes minutes; with trainers that are stand-ins,
launch_tpu_test.py does.
"""

import pytest

from benchmarks import rehearsal


@pytest.mark.parametrize('parameters, num_done, said, good', [
    ('a', 10, 'equal', True), ('a', 9, 'equal', False),
    ('b', 10, 'differs in parameters', False)])
def test_what_differs_or_is_missing_is_said(
    tmp_path, monkeypatch, capsys, parameters, num_done, said, good):
  expected = {'metrics': 'a', 'parameters': 'a'}

  class Rehearsal:

    def __init__(self, folder, num_slices, num_workers, game, changes):
      assert (num_slices, num_workers) == (2, 3)
      assert changes == {'train.num_steps': 40}

    def undisturbed(self):
      return expected

    def disturbed(self, preemptions, rng):
      assert preemptions == 10
      return (
          expected | {'parameters': parameters}, num_done, [2.0, 9.04],
          'the table')

  monkeypatch.setattr(rehearsal, 'Rehearsal', Rehearsal)
  assert good == rehearsal.rehearse(
      '2x3', 'plan_path', 40, 10, 0, tmp_path)
  assert capsys.readouterr().out == (
      f'the table\n2x3: {num_done} preemptions, 2 with a notice, after which '
      f'it ended within 9.0 seconds: {said}\n')
