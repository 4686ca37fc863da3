"""Sums: a solver adds two numbers; a checker sees the sum and decides."""

import random

from configs import common
from environments import env_api
from environments import text

EXAMPLES = [  # Without them, SmolLM2 does not use this form.
    {'role': 'user', 'content': 'What is 11 + 12?'},
    {'role': 'assistant', 'content': '#### 23'},
    {'role': 'user', 'content': 'What is 6 + 2? Proposal: 7.'},
    {'role': 'assistant', 'content': '#### 8'}]


def tasks(split):
  pairs = [(a, b) for a in range(1, 20) for b in range(1, 20)]
  random.Random(0).shuffle(pairs)  # The order is equal at every start.
  parts = {'train': pairs[:241], 'validation': pairs[241:281]}
  parts['test'] = pairs[281:]
  return [{'a': a, 'b': b} for a, b in parts[split]]


class Sums:
  roles = ('solver', 'checker')
  phases = (('solver',), ('checker',))  # One after the other.
  max_turns = 1  # The config's environment.max_turns is not used.
  team_reward_range = (0.0, 1.0)

  def reset(self, task):
    return task | {'proposal': 'none'}

  def observe(self, state, role):
    question = f'What is {state["a"]} + {state["b"]}?'
    if role == 'checker':
      question += f' Proposal: {state["proposal"]}.'
    return [*EXAMPLES, {'role': 'user', 'content': question}]

  def step(self, state, actions):
    (role, reply), = actions.items()
    answer, done = text.last_answer(reply), role == 'checker'
    valid = type(answer) is int
    right = valid and answer == state['a'] + state['b']
    outcome = env_api.Outcome.OK if valid else env_api.Outcome.PARSE_ERROR
    return env_api.Step(
        state=state | {'proposal': answer}, team_reward=float(right), done=done,
        success=done and right, outcomes={role: outcome})


def make_environment(**_):
  return Sums()


def get_config():
  c = common.base_config('135m')
  common.use_small_model(
      c, c.model.folder, max_new_tokens=16, prompt_buckets=(128,),
      completion_buckets=(16,), learning_rate=1e-5)
  c.environment.module = 'sums'
  c.train.num_steps = 20
  return c.lock()
