"""Rules of the user: the examples of the docs, and what is refused."""

import math
import re
import textwrap

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import advantages
from tests import docs_test
from tests import specs
from tests.algorithms import credit_test
from tests.algorithms import grpo_test
from tests.rl import losses_test
from tests.rollout import scripted

# Name -> its value in the module `other_rules`.
OTHER_RULES = {
    'number': '1',
    'fails': 'lambda *_: {}["lost"]',
    'large': 'lambda *_: 3',
    'nan': 'lambda returns, *_: returns * float("nan")',
    'nan_list': 'lambda returns, *_: [float("nan") for _ in returns]',
    'ragged': 'lambda *_: [[1], [1, 2]]',
    'stops': 'lambda *_: next(iter(()))',
    'true': 'lambda *_: True',
    'key_list': 'lambda key, prompts: [key.turn]',
    'three': 'lambda a, b, c: 0',
    'row': 'lambda ratio, logprobs, advantages, spec: 2 * advantages',
    'branch': 'lambda ratio, *_: ratio if ratio.max() > 1 else -ratio',
    'loop': 'lambda ratio, *_: jax.lax.while_loop('
            'lambda x: x.max() > 1, lambda x: x - 1, ratio)'}


def _examples() -> list[str]:
  section = docs_test.section(docs_test.ALGORITHMS, '## Add a rule')
  return [
      textwrap.dedent(block)
      for block in re.findall(r'(?:^(?: {4}.*)?\n)+', section, re.M)
      if 'def ' in block]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
  """Makes `my_rules`, of the docs, and `other_rules` importable.

  Policies follow scripts.
  """
  (tmp_path / 'my_rules.py').write_text('\n'.join(_examples()), 'utf-8')
  (tmp_path / 'other_rules.py').write_text('\n'.join([
      'import jax', *map(' = '.join, OTHER_RULES.items())]), 'utf-8')
  monkeypatch.syspath_prepend(tmp_path)
  scripted.follow_scripts(monkeypatch)


def _select(rule):
  spec = specs.rollout(selection=rule)
  returns = np.array([3, 1, np.nan, 2], np.float32)
  return spec.select(returns, returns, np.random.default_rng(0))


def test_selection():
  assert _select('my_rules:second_best') == 3


@pytest.mark.parametrize('rule, words', [
    ('lost_rules:best', "No module named 'lost_rules'"),
    ('my_rules:secnd_best', "did you mean 'second_best'?"),
    ('other_rules:three', 'takes (a, b, c); expected a function of '
     '(returns, team_returns, spec, rng)'),
    ('other_rules:number', 'not a function but 1'),
    ('other_rules:fails', "raised KeyError: 'lost'"),
    ('other_rules:stops', 'raised StopIteration'),
    ('other_rules:true', 'returned True; expected an index'),
    ('other_rules:large', 'returned 3; expected an index from 0 to 2')])
def test_bad_selection_is_named(rule, words):
  with pytest.raises(errors.UserError, match=re.escape(words)) as error:
    _select(rule)
  assert f'rollout.selection={rule!r}' in str(error.value)


@pytest.mark.parametrize('switches', [
    {'mode': 'parallel', 'selection': 'my_rules:second_best'},
    {'mode': 'tree', 'return_type': 'my_rules:with_outcome'}])
def test_modes_without_a_rule_refuse_it(switches):
  with pytest.raises(errors.UserError, match='my_rules'):
    specs.rollout(**switches)


def _advantages(baseline='mean', scale='none'):
  spec = specs.advantage(baseline=baseline, scale=scale)
  return advantages.group_advantages(
      np.array([1, 2, 6, 4, 8, 9], np.float32), np.array([0, 0, 0, 1, 1, 1]),
      np.array([True] * 5 + [False]),
      baseline=spec_lib.find_rule('baseline', spec.baseline),
      scale=spec_lib.find_rule('scale', spec.scale))


def test_baseline_and_scale():
  np.testing.assert_array_equal(
      _advantages('my_rules:median'), [-1, 0, 4, -2, 2, 0])
  np.testing.assert_array_equal(
      _advantages('my_rules:median', 'my_rules:largest_one'),
      [-.25, 0, 1, -1, 1, 0])


def test_group_key():
  trees = [
      credit_test.make_tree(task, {
          ('a', turn, 0): (0,) for turn in range(6)}) for task in 'xy']
  groups = credit_test.assign(trees, ('env', 'my_rules:late'))
  ids = {group.key[::2]: group.baseline_id for group in groups}
  assert [ids['x', turn] for turn in range(6)] == [0, 2, 4, 4, 4, 4]
  assert [ids['y', turn] for turn in range(6)] == [1, 3, 5, 5, 5, 5]


def _returns(rule):
  _, groups, _ = grpo_test.play(rule)
  return np.concatenate([group.returns for group in groups])


def test_return_type():
  # The team is paid 1/2 for the last of the four actions of episode 0.
  np.testing.assert_allclose(
      _returns('my_rules:with_outcome') - _returns('immediate'),
      (.5, 0, 0, .5, 0, .5, 0, 0, 0), atol=1e-6)
  grpo_test.test_failure_ends_only_its_episode(
      'my_rules:with_outcome', (0, 0, 1, 0, 1, 0, 1, 1))


@pytest.mark.parametrize('play', [
    _advantages, lambda rule: _advantages(scale=rule), _returns])
def test_numbers_that_are_not_finite_are_refused(play):
  for rule in ('nan', 'nan_list', 'ragged'):
    with pytest.raises(errors.UserError, match=(
        rf"='other_rules:{rule}' returned .*finite numbers")):
      play(f'other_rules:{rule}')


def test_group_key_that_is_not_hashable_is_refused():
  tree = credit_test.make_tree('x', {('a', 0, 0): (0,)})
  with pytest.raises(errors.UserError, match='key_list.*not hashable'):
    credit_test.assign([tree], ('env', 'other_rules:key_list'))


def test_surrogate():
  def gain(ratio):
    return 1 / (1 + math.exp(-4 * (ratio - 1)))

  loss, _ = losses_test.policy_loss(
      surrogate=specs.loss(surrogate='my_rules:soft_clip').surrogate)
  assert loss == pytest.approx(
      -2 * sum(map(gain, (1.5, 0.9))) + sum(map(gain, (0.5, 1.2, 1.4))))
  losses_test.test_on_policy_gradient_equals_reinforce(
      'my_rules:soft_clip', 'token_mean')
  losses_test.test_padding_has_no_effect_and_no_gradient(
      specs.loss(surrogate='my_rules:soft_clip'))


@pytest.mark.parametrize('rule, words', [
    ('other_rules:row', 'expected an array of (2, 3)'),
    ('other_rules:branch', 'raised TracerBoolConversionError: Attempted bool'),
    ('other_rules:loop', 'no gradient (ValueError: Reverse-mode')])
def test_bad_surrogate_is_named(rule, words):
  with pytest.raises(errors.UserError, match=re.escape(words)) as error:
    specs.loss(surrogate=rule)
  assert str(error.value).startswith(f'loss.surrogate={rule!r}')


def test_equal_surrogates_compile_once():
  first, second = (
      specs.loss(surrogate='my_rules:soft_clip') for _ in range(2))
  assert first == second and hash(first) == hash(second)
