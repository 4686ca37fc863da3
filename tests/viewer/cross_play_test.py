"""cross_play.py: who played which role, and how well."""

from atgrpo_jax import evaluate
from atgrpo_jax.viewer import cross_play
from atgrpo_jax.viewer import report
from tests.rollout import scripted
from tests.viewer import runs


def _evaluation(success, *policies, **changes):
  return {
      'success': success, 'split': 'test', 'step': 30, 'sandbox': 'kernel',
      'sampling': {'temperature': 1.0},
      'policy_map': dict(zip(('tool', 'planner', 'judge'), policies)),
      **changes}


def test_a_matrix_has_a_row_for_each_policy_of_the_first_role():
  matrix, = cross_play.matrices([
      _evaluation(.9, 'tool', 'planner'), _evaluation(.1, 'planner', 'tool'),
      _evaluation(.4, 'tool', 'tool'), _evaluation(.0, 'x', 'planner', step=0)])
  assert matrix == {
      'title': 'Success on test after step 30, tool (rows) and planner '
               '(columns) played by these policies',
      'header': ['tool \\ planner', 'planner', 'tool'],
      'rows': [['tool', .9, .4], ['planner', None, .1]]}


def test_what_differs_in_more_than_its_policies_is_not_compared():
  one = _evaluation(.9, 'tool', 'planner')
  for changes in (
      {'split': 'test[:9]'}, {'step': 0}, {'sandbox': 'bwrap'},
      {'sampling': {'temperature': 0.0}}):
    assert not cross_play.matrices(
        [one, _evaluation(.1, 'planner', 'tool', **changes)])
  assert not cross_play.matrices([one, one])
  assert not cross_play.matrices([
      _evaluation(.9, 'a', 'b', 'c'), _evaluation(.9, 'b', 'a', 'c')])


def test_a_report_has_that_of_its_workdir(tmp_path, monkeypatch):
  scripted.follow_scripts(monkeypatch)
  workdir = runs.make(tmp_path / 'run')
  assert report.read_run(workdir)['cross_play'] == []
  after = evaluate.read(workdir, 'after')
  first, second = after['policy_map']
  one, two = after['policy_map'].values()
  evaluate.write(workdir, 'swapped', after | {
      'policy_map': {first: two, second: one}, 'success': 0.0,
      'successes': '0' * after['num_tasks']})
  matrix, = report.read_run(workdir)['cross_play']
  assert matrix['rows'] == [[one, after['success'], None], [two, None, 0.0]]
