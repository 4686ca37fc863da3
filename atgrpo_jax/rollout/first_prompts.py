"""What can be known of the prompts before anything is sampled.

The prompts of the first phase follow from the tasks. Later ones hold what the
agents have written; the runner refuses one that does not fit when it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import heapq

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.rollout import prompt_limits
from environments import env_api

_NUM_ENCODED = 8  # Of each role, those with the most characters.


def check(
    environment: env_api.Environment, tasks: Sequence[env_api.Task],
    policies: Mapping[
        str, tuple[tokenizer_lib.Tokenizer, prompt_limits.Limits]]) -> None:
  """Raises UserError unless every task begins and its first prompts fit.

  Of each role only the longest prompts are encoded.

  Args:
    environment: that is played.
    tasks: of a split.
    policies: role -> how its prompts are encoded, and how long they may be.
  """
  first_phase = environment.phases[0]
  lengths = {role: [] for role in first_phase}
  for number, task in enumerate(tasks):
    try:
      state = environment.reset(task)
      environment.show(state)
      for role in first_phase:
        lengths[role].append(sum(
            len(message['role'] + message['content'])
            for message in environment.observe(state, role)))
    except errors.USER_CODE_ERRORS as error:
      raise errors.UserError(
          f'The environment cannot begin the task {task["task_id"]!r}, number '
          f'{number} of its split ({errors.one_line(error)}); see that '
          'row, and whether dataset.builder belongs to environment.module.'
          ) from error
  for role, of_role in lengths.items():
    tokenizer, limits = policies[role]
    for number in heapq.nlargest(
        _NUM_ENCODED, range(len(tasks)), key=of_role.__getitem__):
      task = tasks[number]
      prompt = tokenizer.encode_prompt(
          environment.observe(environment.reset(task), role))
      limits.check(
          len(prompt), types.GroupKey(task['task_id'], role, turn=0, branch=0))
