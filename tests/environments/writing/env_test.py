"""Writers: malformed texts; `transcripts_test.py` plays whole episodes."""

import pytest

from environments import env_api
from environments.writing import env as writing

OK, PARSE_ERROR = env_api.Outcome.OK, env_api.Outcome.PARSE_ERROR
FIRST = 'The cat of a writer ate the whole cake.'
SECOND = ('However, the sister laughs at the cat; thus she did not eat any '
          'cake made by him.')
# 39 and 81 characters, 8 and 16 different words, two categories of transitions,
# and more common content words (cat, cake) than the cap.
POINTS = {
    'structure': .5, 'ratio': 1, 'vocabulary': .5, 'transitions': .18,
    'jaccard': .6}
STRUCTURE = {'structure': .5}
MARKER = '[PARAGRAPH_SPLIT]'


@pytest.mark.parametrize('replies, points, outcomes', [
    # Thinking and outer blanks are ignored.
    ((FIRST, SECOND), POINTS, (OK, OK)),
    ((f'<think>\n{SECOND}\n</think>\n\n{FIRST}\n' + 99 * ' ', SECOND), POINTS,
     (OK, OK)),
    # A closed gate is not a success.
    ((FIRST, ' \n'), {}, (OK, PARSE_ERROR)),
    ((FIRST, f'<think>{SECOND}'), {}, (OK, PARSE_ERROR)),
    ((FIRST, 'Too short.'), {}, (OK, OK)),
    ((FIRST, FIRST), STRUCTURE, (OK, OK)),
    # A single agent separates its texts by a marker.
    ((f'{FIRST}\n\n  {MARKER}\r\n\n{SECOND}\n',), POINTS, (OK,)),
    ((f'<think>a\n{MARKER}\nb</think>{FIRST}\n{MARKER}\n{SECOND}',), POINTS,
     (OK,)),
    # Further markers are part of the second text, here 7 times as long.
    ((f'{FIRST}\n{MARKER}\n{SECOND}' + f'\n{MARKER}' * 10,), STRUCTURE, (OK,)),
    ((f'{FIRST} {SECOND}',), {}, (PARSE_ERROR,)),
    ((f'{FIRST} {MARKER} {SECOND}',), {}, (PARSE_ERROR,)),
    ((f'{FIRST}\n{MARKER}',), {}, (PARSE_ERROR,)),
    ((f'{MARKER}\n{SECOND}',), {}, (PARSE_ERROR,))])
def test_texts_of_replies(replies, points, outcomes):
  environment = writing.make_environment(
      team='pair' if len(replies) == 2 else 'solo', max_turns=1,
      reward='outcome', sandbox=None, kind='tldr')
  roles = environment.roles
  step = environment.step(
      environment.reset({'task_id': 'tldr/test/7', 'text': 'My cat ate.'}),
      dict(zip(roles[::-1], replies[::-1])))  # The order does not matter.
  assert step.reward_terms == pytest.approx(dict.fromkeys(POINTS, 0) | points)
  assert step.team_reward == pytest.approx(sum(points.values()) / 2.98)
  assert step.outcomes == dict(zip(roles, outcomes))
  assert step.local_rewards == dict.fromkeys(roles, 0.0)
  success = points is POINTS
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)
