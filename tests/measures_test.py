"""pass@k by hand, by the paper's formula, and from the files of a run."""

import itertools
import math
import statistics

import numpy as np
import pytest

from atgrpo_jax import measures
from atgrpo_jax import types
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from tests.rollout import scripted
from tests.viewer import runs


@pytest.mark.parametrize('k', [1, 3, 10, 200])
@pytest.mark.parametrize('num_correct', [0, 1, 57, 200])
def test_best_at_k_of_zeros_and_ones_is_pass_at_k_of_the_paper(num_correct, k):
  n = 200
  product = math.prod(1 - k / i for i in range(n - num_correct + 1, n + 1))
  expected = 1 - product if n - num_correct >= k else 1
  values = [1.0] * num_correct + [0.0] * (n - num_correct)
  assert measures.best_at_k(values, k) == pytest.approx(expected)


@pytest.mark.parametrize('k', [1, 2, 3, 4, 5])
def test_best_at_k_is_the_mean_maximum_over_all_subsets(k):
  values = [0.5, 0.25, 1.0, 0.25, 0.0]
  assert measures.best_at_k(values, k) == pytest.approx(statistics.fmean(
      map(max, itertools.combinations(values, k))))


def step(roles, terms, outcome='ok'):
  return env_api.Step(
      None, 0.0, dict.fromkeys(roles, 0.0), terms, True, False, False,
      dict.fromkeys(roles, env_api.Outcome(outcome)))


def group(role, turn, num_candidates):
  empty = np.zeros(0)
  return types.Group(
      types.GroupKey('t', role, turn, 0), '', empty,
      (types.Candidate(empty, empty),) * num_candidates)


def node(role, turn, *terms, outcome='ok'):
  """A node with one group."""
  return tree_lib.Node(
      turn, 0, None, (group(role, turn, len(terms)),),
      tuple((i,) for i in range(len(terms))),
      tuple(step([role], x, outcome) for x in terms))


def test_group_measures_by_role_and_turn():
  trees = [tree_lib.Tree('t', (
      node('coder', 0, {'golden': 1.0}, {'golden': 0.5}),
      node('tester', 0, {'correct': 1.0}, {'correct': 0.25}),
      node('coder', 1, {'golden': 1.0}))), tree_lib.Tree('t', (
      node('coder', 0, {'golden': 0.0}, {'golden': 0.5}),
      node('coder', 0, {}, {}, outcome='infrastructure'))), tree_lib.Tree('t', (
      node('main', 0, {'tests': 1.0, 'cooperation': 0.5},
           {'tests': 0.5, 'cooperation': 1.5}),))]
  assert measures.group_measures(trees, 1) == pytest.approx({
      ('coder', 0, 'pass'): .25, ('coder', 0, 'accuracy'): .5,
      ('coder', 1, 'pass'): 1, ('coder', 1, 'accuracy'): 1,
      ('tester', 0, 'pass'): .5, ('tester', 0, 'accuracy'): .625,
      ('main', 0, 'pass'): .5, ('main', 0, 'accuracy'): .75,
      ('main', 0, 'maxcoop'): 1})
  assert measures.group_measures(trees, 2) == pytest.approx({
      ('coder', 0, 'pass'): .5, ('coder', 0, 'accuracy'): .75,
      ('tester', 0, 'pass'): 1, ('tester', 0, 'accuracy'): 1,
      ('main', 0, 'pass'): 1, ('main', 0, 'accuracy'): 1,
      ('main', 0, 'maxcoop'): 1.5})


def test_crossed_candidates_have_the_mean_terms_of_their_known_steps():
  # The first candidate of aux is in joint actions 0 and 1.
  roles = 'aux', 'main'
  crossed = tree_lib.Node(
      0, 0, None, tuple(group(role, 0, 2) for role in roles),
      ((0, 0), (0, 1), (1, 0), (1, 1)),
      tuple(step(roles, {'tests': x}, outcome) for x, outcome in (
          (1.0, 'ok'), (0.5, 'ok'), (0.0, 'ok'), (9.0, 'infrastructure'))))
  found = measures.group_measures([tree_lib.Tree('t', (crossed,))], 1)
  assert found['aux', 0, 'accuracy'] == pytest.approx((.75 + 0) / 2)
  assert found['main', 0, 'accuracy'] == pytest.approx((.5 + .5) / 2)


def test_command_reads_the_groups_of_a_run(tmp_path, monkeypatch, capsys):
  scripted.follow_scripts(monkeypatch)
  environment = runs.Game((('a',), ('b',)))
  path = tmp_path / 'groups' / '000000.jsonl.gz'
  trees = scripted.collect(
      runs.runner(environment), runs.GOALS, group_size=4)
  tree_lib.write(path, trees, environment.show, with_tokens=True)
  name = next(iter(trees[0].nodes[0].steps[0].reward_terms))
  monkeypatch.setitem(measures._GROUP_MEASURES, 'pass', ((name,), float))
  assert measures.main(['--k=1,2', str(path)]) == 0
  out = capsys.readouterr().out
  assert 'a, turn 1: pass@1 ' in out and 'b, turn 1: pass@2 ' in out
  path.write_bytes(path.read_bytes()[:-20])
  assert measures.main([str(path)]) == 2
  assert str(path) in capsys.readouterr().err
