"""The rollout of a step: tasks beside each other change nothing."""

import pytest

from atgrpo_jax import errors
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
        group.key: (scripted.prompt_of(group), scripted.texts_of(group),
                    *group.returns, *group.advantages, node.chosen)
        for tree in trees for node in tree.nodes for group in node.groups}

  many = play('ABCDEFGHIJ')
  assert {k: many[k] for k in many if k.task_id == 'D'} == play('D')
  assert play('JAH') == {k: many[k] for k in many if k.task_id in 'AHJ'}
  draws = kind.get('selection') in ('softmax', 'uniform', 'epsilon_greedy')
  assert (play('ABCDEFGHIJ', seed=1) != many) == draws
  assert (play('ABCDEFGHIJ', train_step=6) != many) == draws


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
