"""The best of k answers: estimates without bias, from a run's files."""

import itertools
import math
import statistics

import pytest

from atgrpo_jax.rollout import records
from environments.programming import metrics
from tests.rollout import scripted
from tests.viewer import runs


def test_pass_at_k_by_hand():
  # 2 of 5 are right: a pair is wrong in 3 of 10 cases, a triple in 1 of 10.
  assert metrics.pass_at_k(5, 2, 1) == pytest.approx(2 / 5)
  assert metrics.pass_at_k(5, 2, 2) == pytest.approx(7 / 10)
  assert metrics.pass_at_k(5, 2, 3) == pytest.approx(9 / 10)
  assert metrics.pass_at_k(5, 2, 4) == metrics.pass_at_k(5, 5, 1) == 1
  assert metrics.pass_at_k(5, 0, 5) == 0


@pytest.mark.parametrize('k', [1, 3, 10, 200])
@pytest.mark.parametrize('num_right', [0, 1, 57, 200])
def test_pass_at_k_is_that_of_the_paper(num_right, k):
  n = 200
  product = math.prod(1 - k / i for i in range(n - num_right + 1, n + 1))
  expected = 1 - product if n - num_right >= k else 1
  assert metrics.pass_at_k(n, num_right, k) == pytest.approx(expected)


@pytest.mark.parametrize('k', [1, 2, 3, 4, 5])
def test_best_at_k_is_the_mean_over_all_sets(k):
  values = [0.5, 0.25, 1.0, 0.25, 0.0]
  assert metrics.best_at_k(values, k) == pytest.approx(statistics.fmean(
      map(max, itertools.combinations(values, k))))


@pytest.mark.parametrize('k', [0, 6])
def test_k_of_fewer_answers(k):
  with pytest.raises(ValueError, match='there are 5 answers; k is 1 to 5'):
    metrics.best_at_k([1] * 5, k)


def node(role, turn, *terms, outcome='ok'):
  """As `rollout.records` writes it, of one role's answers."""
  return {
      'turn': turn, 'joint_actions': [[i] for i in range(len(terms))],
      'groups': [{'role': role, 'candidates': [{}] * len(terms)}],
      'steps': [{'terms': x, 'outcomes': {role: outcome}} for x in terms]}


def test_trees():
  trees = [{'nodes': [
      node('coder', 0, {'golden': 1.0}, {'golden': 0.5}),
      node('tester', 0, {'correct': 1.0}, {'correct': 0.25}),
      node('coder', 1, {'golden': 1.0})]}, {'nodes': [
      node('coder', 0, {'golden': 0.0}, {'golden': 0.5}),
      node('coder', 0, {}, {}, outcome='infrastructure')]}, {'nodes': [
      node('main', 0, {'tests': 1.0, 'cooperation': 0.5},
           {'tests': 0.5, 'cooperation': 1.5})]}]
  assert metrics.of_trees(trees, 1) == pytest.approx({
      ('coder', 0, 'pass'): .25, ('coder', 0, 'accuracy'): .5,
      ('coder', 1, 'pass'): 1, ('coder', 1, 'accuracy'): 1,
      ('tester', 0, 'pass'): .5, ('tester', 0, 'accuracy'): .625,
      ('main', 0, 'pass'): .5, ('main', 0, 'accuracy'): .75,
      ('main', 0, 'maxcoop'): 1})
  assert metrics.of_trees(trees, 2) == pytest.approx({
      ('coder', 0, 'pass'): .5, ('coder', 0, 'accuracy'): .75,
      ('tester', 0, 'pass'): 1, ('tester', 0, 'accuracy'): 1,
      ('main', 0, 'pass'): 1, ('main', 0, 'accuracy'): 1,
      ('main', 0, 'maxcoop'): 1.5})


def test_roles_that_act_at_once():
  # Two answers each, crossed: the helper's first is in joint actions 0 and 1.
  crossed = {
      'turn': 0, 'joint_actions': [[0, 0], [0, 1], [1, 0], [1, 1]],
      'groups': [
          {'role': role, 'candidates': [{}, {}]} for role in ('aux', 'main')],
      'steps': [
          {'terms': {'tests': x}, 'outcomes': {'aux': 'ok', 'main': outcome}}
          for x, outcome in (
              (1.0, 'ok'), (0.5, 'ok'), (0.0, 'ok'), (9.0, 'infrastructure'))]}
  found = metrics.of_trees([{'nodes': [crossed]}], 1)
  assert found['aux', 0, 'accuracy'] == pytest.approx((.75 + 0) / 2)
  assert found['main', 0, 'accuracy'] == pytest.approx((.5 + .5) / 2)


def test_what_a_run_writes_is_read(tmp_path, monkeypatch, capsys):
  scripted.follow_scripts(monkeypatch)
  environment = runs.Game((('a',), ('b',)))
  path = tmp_path / 'groups' / '000000.jsonl.gz'
  trees = scripted.collect(
      runs.runner(environment), runs.GOALS, group_size=4)
  records.write_trees(path, trees, environment, with_tokens=True)
  name = next(iter(trees[0].nodes[0].steps[0].reward_terms))
  monkeypatch.setitem(metrics._METRICS, 'pass', ((name,), float))
  assert metrics.main(['--k=1,2', str(path)]) == 0
  out = capsys.readouterr().out
  assert 'a, turn 1: pass@1 ' in out and 'b, turn 1: pass@2 ' in out
  path.write_bytes(path.read_bytes()[:-20])
  assert metrics.main([str(path)]) == 1
  assert 'EOFError' in capsys.readouterr().err
