"""Writers: prompts, phases and rewards of each team."""

import pickle
import re

import pytest

from environments import env_api
from environments.writing import env as writing

OK, PARSE_ERROR = env_api.Outcome.OK, env_api.Outcome.PARSE_ERROR
SOURCE = 'My cat ate the cake and my sister laughs.'
FIRST = 'The cat of a writer ate the whole cake.'
SECOND = ('However, the sister laughs at the cat; thus she did not eat any '
          'cake made by him.')
# 39 and 81 characters, 8 and 16 different words, two categories of transitions,
# and more common content words (cat, cake) than the cap.
POINTS = {
    'structure': .5, 'ratio': 1, 'vocabulary': .5, 'transitions': .18,
    'jaccard': .6}
NOTHING = dict.fromkeys(POINTS, 0)


def make(team='pair', kind='tldr', **options):
  return writing.make_environment(
      team=team, max_turns=2 if team == 'discussion' else 1, reward='outcome',
      sandbox=None, kind=kind, **options)


def reset(environment):
  return environment.reset({'task_id': 'tldr/test/7', 'text': SOURCE})


def prompt(environment, state, role):
  return '\n'.join(
      message['content'] for message in environment.observe(state, role))


@pytest.mark.parametrize('team, kind, phases', [
    ('pair', 'tldr', (('concise', 'detailed'),)),
    ('pair', 'arxiv_a', (('background', 'method'),)),
    ('pipeline', 'arxiv_b', (('background',), ('method',))),
    ('discussion', 'posts', (('concise', 'detailed'),)),
    ('solo', 'tldr', (('solo',),))])
def test_teams_and_pure_picklable_steps(team, kind, phases):
  environment = make(team, kind)
  assert environment.phases == phases
  state, copy = reset(environment), pickle.loads(pickle.dumps(environment))
  for role in environment.roles:
    system, user = environment.observe(state, role)
    assert (system['role'], user['role']) == ('system', 'user')
    assert SOURCE in user['content']
  actions = dict.fromkeys(phases[0], FIRST)
  step = environment.step(state, actions)
  hash(step.state)  # Frozen at every level.
  assert pickle.loads(pickle.dumps(step)) == copy.step(state, actions)


def check_scored(step, points, outcomes, success):
  assert step.reward_terms == pytest.approx(points)
  assert step.team_reward == pytest.approx(sum(points.values()) / 2.98)
  assert step.outcomes == outcomes
  assert set(step.local_rewards.values()) == {0.0}
  assert step.local_rewards.keys() == outcomes.keys()
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)


def check_unscored(step, outcomes):
  assert (step.team_reward, step.reward_terms) == (0.0, {})
  assert step.local_rewards == dict.fromkeys(outcomes, 0.0)
  assert step.outcomes == outcomes
  assert (step.done, step.success, step.truncated) == (False, False, False)


def test_pair_ignores_thinking_and_outer_blanks():
  environment = make()
  for concise in (
      FIRST, f'<think>\n{SECOND}\n</think>\n\n{FIRST}\n' + 99 * ' '):
    step = environment.step(
        reset(environment), {'detailed': SECOND, 'concise': concise})
    check_scored(step, POINTS, {'concise': OK, 'detailed': OK}, True)


@pytest.mark.parametrize('second, points, outcome', [
    (' \n', {}, PARSE_ERROR), (f'<think>{SECOND}', {}, PARSE_ERROR),
    ('Too short.', {}, OK),
    (FIRST, {'structure': .5}, OK)])
def test_a_closed_gate_is_not_a_success(second, points, outcome):
  environment = make()
  step = environment.step(
      reset(environment), {'concise': FIRST, 'detailed': second})
  check_scored(
      step, NOTHING | points, {'concise': OK, 'detailed': outcome}, False)


def test_pipeline():
  environment = make('pipeline')
  state = reset(environment)
  step = environment.step(state, {'concise': FIRST})
  check_unscored(step, {'concise': OK})
  assert FIRST in prompt(environment, step.state, 'detailed')
  step = environment.step(step.state, {'detailed': SECOND})
  check_scored(step, POINTS, {'detailed': OK}, True)
  assert environment.show(step.state) == {
      'source': SOURCE, 'concise': FIRST, 'detailed': SECOND}
  step = environment.step(state, {'concise': '<think>hm'})
  check_unscored(step, {'concise': PARSE_ERROR})
  assert '(no text)' in prompt(environment, step.state, 'detailed')
  step = environment.step(step.state, {'detailed': SECOND})
  check_scored(step, NOTHING, {'detailed': OK}, False)


def test_discussion():
  environment = make('discussion')
  state, pair = reset(environment), make()
  for role in environment.roles:
    assert environment.observe(state, role) == pair.observe(state, role)
  step = environment.step(
      state, {'concise': 'A cat.', 'detailed': 'A cake is gone.'})
  check_unscored(step, {'concise': OK, 'detailed': OK})
  for role in environment.roles:
    shown = prompt(environment, step.state, role)
    assert 'A cat.' in shown and 'A cake is gone.' in shown
  step = environment.step(step.state, {'concise': FIRST, 'detailed': SECOND})
  check_scored(step, POINTS, {'concise': OK, 'detailed': OK}, True)


@pytest.mark.parametrize('reply, points, outcome', [
    (f'{FIRST}\n\n  [PARAGRAPH_SPLIT]\r\n\n{SECOND}\n', POINTS, OK),
    (f'<think>a\n[PARAGRAPH_SPLIT]\nb</think>{FIRST}\n[PARAGRAPH_SPLIT]\n'
     f'{SECOND}', POINTS, OK),
    (f'{FIRST} {SECOND}', NOTHING, PARSE_ERROR),
    (f'{FIRST} [PARAGRAPH_SPLIT] {SECOND}', NOTHING, PARSE_ERROR),
    (f'{FIRST}\n[PARAGRAPH_SPLIT]', NOTHING, PARSE_ERROR),
    (f'[PARAGRAPH_SPLIT]\n{SECOND}', NOTHING, PARSE_ERROR)])
def test_solo(reply, points, outcome):
  environment = make('solo')
  state = reset(environment)
  assert '[PARAGRAPH_SPLIT]' in prompt(environment, state, 'solo')
  step = environment.step(state, {'solo': reply})
  check_scored(step, points, {'solo': outcome}, outcome is OK)


def test_options_reach_the_reward():
  texts = {'concise': FIRST, 'detailed': SECOND + ' A yeti and a gift.'}
  for matching, points in (('words', .18), ('substring', .2)):
    environment = make(matching=matching)
    step = environment.step(reset(environment), texts)
    assert step.reward_terms['transitions'] == pytest.approx(points)
  environment = make(kind='arxiv_a')
  step = environment.step(
      reset(environment), {'background': FIRST, 'method': SECOND})
  assert step.reward_terms == NOTHING


@pytest.mark.parametrize('wrong, words', [
    ({'team': 'trio'}, "environment.team='trio'"),
    ({'kind': 'arxiv'}, "environment.options.kind='arxiv'"),
    ({'matching': 'stem'}, "environment.options.matching='stem'"),
    ({'reward': 'mixed'}, "environment.reward='mixed'"),
    ({'max_turns': 2}, 'environment.max_turns=2'),
    ({'team': 'discussion'}, 'environment.max_turns=1'),
])
def test_invalid_arguments_are_named(wrong, words):
  arguments = dict(
      team='pair', max_turns=1, reward='outcome', sandbox=None, kind='tldr')
  with pytest.raises(ValueError, match=re.escape(words)):
    writing.make_environment(**arguments | wrong)
