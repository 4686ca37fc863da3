"""Rules of the user: the examples of the docs, and what is refused."""

import pathlib
import re
import textwrap

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax.rl import advantages
from tests import specs

_PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'algorithms.md'
RETURNS = np.array([3, 1, np.nan, 2], np.float32)

BAD_RULES = '''
number = 1

def fails(*args):
  raise KeyError('lost')

def none(*args):
  pass

def large(*args):
  return 3

def nan(returns, *args):
  return returns * float('nan')
'''


def _examples() -> list[str]:
  section, = re.findall(
      r'^## Add a rule$(.*?)^## ', _PAGE.read_text('utf-8'), re.S | re.M)
  return [
      textwrap.dedent(block)
      for block in re.findall(r'(?:^(?: {4}.*)?\n)+', section, re.M)
      if 'def ' in block]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
  """Makes `my_rules`, of the docs, and `bad_rules` importable."""
  (tmp_path / 'my_rules.py').write_text('\n'.join(_examples()), 'utf-8')
  (tmp_path / 'bad_rules.py').write_text(BAD_RULES, 'utf-8')
  monkeypatch.syspath_prepend(tmp_path)


def test_examples_have_at_most_ten_lines():
  examples = _examples()
  assert examples
  for example in examples:
    assert len(example.strip().splitlines()) <= 10, example


def _select(rule, mode='tree'):
  spec = specs.rollout(mode=mode, selection=rule, return_type='immediate')
  return spec.select(RETURNS, RETURNS, np.random.default_rng(0))


@pytest.mark.parametrize('mode', ['tree', 'joint'])
def test_selection(mode):
  assert _select('my_rules:second_best', mode) == 3


@pytest.mark.parametrize('rule, words', [
    ('lost_rules:best', "No module named 'lost_rules'"),
    ('my_rules:lost', 'lost'),
    ('bad_rules:number', 'not a function but 1'),
    ('bad_rules:fails', "raised KeyError: 'lost'"),
    ('bad_rules:none', 'returned None'),
    ('bad_rules:large', 'returned 3; expected an index from 0 to 2')])
def test_bad_selection_is_named(rule, words):
  with pytest.raises(errors.UserError, match=re.escape(words)) as error:
    _select(rule)
  assert f'rollout.selection={rule!r}' in str(error.value)


def test_parallel_episodes_have_no_selection():
  with pytest.raises(errors.UserError, match='my_rules'):
    specs.rollout(mode='parallel', selection='my_rules:second_best')


def _advantages(baseline='mean', scale='none'):
  spec = specs.advantage(baseline=baseline, scale=scale)
  return advantages.group_advantages(
      np.array([1, 2, 6, 4, 8, 9], np.float32), np.array([0, 0, 0, 1, 1, 1]),
      np.array([True] * 5 + [False]), baseline=spec.baseline, scale=spec.scale)


def test_baseline_and_scale():
  np.testing.assert_array_equal(
      _advantages('my_rules:median'), [-1, 0, 4, -2, 2, 0])
  np.testing.assert_array_equal(
      _advantages('my_rules:median', 'my_rules:largest_one'),
      [-.25, 0, 1, -.5, .5, 0])


@pytest.mark.parametrize('key', ['baseline', 'scale'])
@pytest.mark.parametrize('rule, words', [
    ('bad_rules:fails', "raised KeyError: 'lost'"),
    ('bad_rules:none', 'returned the shape ()'),
    ('bad_rules:large', 'returned the shape ()'),
    ('bad_rules:nan', 'returned [nan nan nan')])
def test_bad_baseline_or_scale_is_named(key, rule, words):
  with pytest.raises(errors.UserError, match=re.escape(words)) as error:
    _advantages(**{key: rule})
  assert f'advantage.{key}={rule!r}' in str(error.value)


def test_digest_is_that_of_the_source():
  digests = {
      rules.source_digest('key', name) for name in (
          'my_rules:median', 'my_rules:second_best', 'bad_rules:nan')}
  assert len(digests) == 2


def test_a_rule_without_source_is_refused():
  with pytest.raises(errors.UserError, match='no Python source'):
    rules.source_digest('rollout.selection', 'math:floor')
