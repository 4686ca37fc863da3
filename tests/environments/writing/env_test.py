"""Writers: malformed texts; `transcripts_test.py` plays whole episodes."""

import pytest

from environments import env_api
from environments.writing import env as writing
from tests.environments import echo_sandbox

prompt = echo_sandbox.prompt
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


def make(team='pair', kind='tldr'):
  return writing.make_environment(
      team=team, max_turns=2 if team == 'discussion' else 1, reward='outcome',
      sandbox=None, kind=kind)


def reset(environment):
  return environment.reset({'task_id': 'tldr/test/7', 'text': SOURCE})


def check(step, points, outcomes, success):
  """Checks the last step of an episode."""
  assert step.reward_terms == pytest.approx(points)
  assert step.team_reward == pytest.approx(sum(points.values()) / 2.98)
  assert step.outcomes == outcomes
  assert step.local_rewards == dict.fromkeys(outcomes, 0.0)
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)


def test_thinking_and_outer_blanks_are_ignored():
  environment = make()
  for concise in (
      FIRST, f'<think>\n{SECOND}\n</think>\n\n{FIRST}\n' + 99 * ' '):
    step = environment.step(
        reset(environment), {'detailed': SECOND, 'concise': concise})
    check(step, POINTS, {'concise': OK, 'detailed': OK}, True)


@pytest.mark.parametrize('second, points, outcome', [
    (' \n', {}, PARSE_ERROR), (f'<think>{SECOND}', {}, PARSE_ERROR),
    ('Too short.', {}, OK), (FIRST, {'structure': .5}, OK)])
def test_a_closed_gate_is_not_a_success(second, points, outcome):
  environment = make()
  step = environment.step(
      reset(environment), {'concise': FIRST, 'detailed': second})
  check(step, NOTHING | points, {'concise': OK, 'detailed': outcome}, False)


@pytest.mark.parametrize('reply, points, outcome', [
    (f'{FIRST}\n\n  [PARAGRAPH_SPLIT]\r\n\n{SECOND}\n', POINTS, OK),
    (f'<think>a\n[PARAGRAPH_SPLIT]\nb</think>{FIRST}\n[PARAGRAPH_SPLIT]\n'
     f'{SECOND}', POINTS, OK),
    # Further markers are part of the second text, here 7 times as long.
    (f'{FIRST}\n[PARAGRAPH_SPLIT]\n{SECOND}' + '\n[PARAGRAPH_SPLIT]' * 10,
     NOTHING | {'structure': .5}, OK),
    (f'{FIRST} {SECOND}', NOTHING, PARSE_ERROR),
    (f'{FIRST} [PARAGRAPH_SPLIT] {SECOND}', NOTHING, PARSE_ERROR),
    (f'{FIRST}\n[PARAGRAPH_SPLIT]', NOTHING, PARSE_ERROR),
    (f'[PARAGRAPH_SPLIT]\n{SECOND}', NOTHING, PARSE_ERROR)])
def test_single_agent_separates_its_texts_by_a_marker(reply, points, outcome):
  environment = make('solo')
  state = reset(environment)
  assert '[PARAGRAPH_SPLIT]' in prompt(environment, state, 'solo')
  step = environment.step(state, {'solo': reply})
  check(step, points, {'solo': outcome}, points is POINTS)
