"""Debate: two debaters add numbers; a judge decides when they agree.

  python -m atgrpo_jax.main --config debate.py --mode play

While the debaters disagree, the judge is left out, except in the last turn.
"""

import sums

from environments import env_api
from environments import text

tasks = sums.tasks


class Debate:
  roles = ('first', 'second', 'judge')
  phases = (('first',), ('second',), ('judge',))
  max_turns = 3
  team_reward_range = (0.0, 1.0)

  def reset(self, task):
    return task | {'answers': []}  # Of both debaters, in order.

  def observe(self, state, role):
    question = f'What is {state["a"]} + {state["b"]}?'
    said = [
        f'The {self.roles[i % 2]} debater says {answer}.'
        for i, answer in enumerate(state['answers'])]
    return [*sums.EXAMPLES, {
        'role': 'user', 'content': ' '.join([question, *said])}]

  def step(self, state, actions):
    (role, reply), = actions.items()
    answer = text.last_answer(reply)
    valid = type(answer) is int
    right = valid and answer == state['a'] + state['b']
    outcome = env_api.Outcome.OK if valid else env_api.Outcome.PARSE_ERROR
    if role == 'judge':
      return env_api.Step(
          state=state, team_reward=float(right), done=True, success=right,
          outcomes={role: outcome})
    answers = [*state['answers'], answer]
    agree = valid and answer in answers[-2:-1]
    goes_on = (
        role == 'second' and not agree and len(answers) < 2 * self.max_turns)
    return env_api.Step(
        state=state | {'answers': answers}, team_reward=0.0, done=False,
        local_rewards={role: float(right)}, outcomes={role: outcome},
        skip=int(goes_on))


def make_environment(**_):
  return Debate()


def get_config():
  c = sums.get_config().unlock()
  c.environment.module = 'debate'
  c.buckets.prompt = (192,)
  return c.lock()
