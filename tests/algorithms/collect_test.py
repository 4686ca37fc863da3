"""The rollout of a step: tasks beside each other change nothing."""

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.algorithms import collect
from atgrpo_jax.algorithms import spec as spec_lib
from tests import specs
from tests.rollout import scripted

# A rollout of each kind.
KINDS = (
    *({'selection': selection} for selection in spec_lib.SELECTIONS['tree']),
    {'return_type': 'monte_carlo', 'num_continuations': 2},
    {'mode': 'parallel', 'return_type': 'return_to_go'},
    {'mode': 'joint', 'return_type': 'return_to_go',
     'group_key': 'env+agent+turn+branch'},
)


def groups_by_key(trees):
  """Group key -> group and which candidate goes on."""
  return {
      group.key: (group, node.chosen)
      for tree in trees for node in tree.nodes for group in node.groups}


@pytest.mark.parametrize('kind', KINDS)
def test_groups_do_not_depend_on_the_other_tasks(kind, monkeypatch):
  scripted.follow_scripts(monkeypatch)

  def play(names, **changes):
    runner = scripted.make_runner(
        dict.fromkeys(('one', 'two'), scripted.Dice()), **changes)
    trees = scripted.collect(
        runner, dict.fromkeys(names, 7), group_size=4, selection_epsilon=0.5,
        **kind)
    assert [tree.task_id for tree in trees] == list(names)
    return {
        key: (scripted.prompt_of(group), scripted.texts_of(group),
              *group.returns, *group.advantages, chosen)
        for key, (group, chosen) in groups_by_key(trees).items()}

  many = play('ABCDEFGHIJ')
  assert {k: many[k] for k in many if k.task_id == 'D'} == play('D')
  assert play('JAH') == {k: many[k] for k in many if k.task_id in 'AHJ'}
  draws = kind.get('selection') in ('softmax', 'uniform', 'epsilon_greedy')
  assert (play('ABCDEFGHIJ', seed=1) != many) == draws
  assert (play('ABCDEFGHIJ', train_step=6) != many) == draws


@pytest.mark.parametrize('kind, num_groups, num_calls', [
    ({}, 4, 12),
    ({'mode': 'parallel'}, 1 + 3 * 3, 12),
    # Two continuations of 3, 2 and 1 more samples for each of 3 candidates.
    ({'return_type': 'monte_carlo', 'num_continuations': 2}, 4, 12 + 36),
])
def test_with_a_real_model(kind, num_groups, num_calls):
  params = model.init_params(jax.random.key(0), scripted.CONFIG)

  def play(names):
    runner = scripted.make_runner(
        {'one': params}, {'a': 'one', 'b': 'one'}, max_new_tokens=3)
    trees = scripted.collect(
        runner, dict.fromkeys(names, 5), group_size=3, **kind)
    assert runner.counters.model_calls == num_calls * len(names)
    return groups_by_key(trees)

  alone, many = play('B'), play('CABD')
  assert {k for k in many if k.task_id == 'B'} == alone.keys()
  # Two roles and two turns, for it knows no numbers.
  assert len(alone) == num_groups
  completions = set()
  for key, (group, chosen) in alone.items():
    same, also_chosen = many[key]
    assert chosen == also_chosen
    assert scripted.prompt_of(same) == scripted.prompt_of(group)
    for x, y in zip(group.candidates, same.candidates, strict=True):
      ids, logprobs = x.completion, x.behavior_logprobs
      assert x.text == y.text == scripted.Bytes().decode(ids)
      assert 1 <= len(ids) == len(logprobs) <= 3 and np.all(logprobs < 0)
      np.testing.assert_allclose(logprobs, y.behavior_logprobs, atol=1e-5)
      completions.add(tuple(ids))
  assert len(completions) == 12


# What is refused, before anything is sampled.


@pytest.mark.parametrize('mode', ['tree', 'parallel'])
def test_roles_that_act_at_once_are_refused(mode):
  environment = scripted.Counting((('a',), ('b', 'c')))
  with pytest.raises(errors.UserError, match=r"\('b', 'c'\) act at once"):
    collect.check(environment, specs.rollout(
        mode=mode, selection=spec_lib.SELECTIONS[mode][0]))


def test_equal_task_ids_are_refused():
  with pytest.raises(ValueError, match='the same task_id'):
    collect.collect(
        scripted.make_runner({}), [scripted.task('A', 5)] * 2, specs.rollout(),
        specs.advantage())
