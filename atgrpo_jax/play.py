"""Plays an environment without a model; loads no jax.

  python -m atgrpo_jax.main --mode play --config C

prints each prompt and reads a reply of one line from the terminal. `--replies`
names a file of JSON texts, one per line, or is 'empty' or 'random': words of
the prompt, in random order. Every reward is printed with its terms. A broken
contract is an error that names the function, the role, the turn and the task.
"""

from collections.abc import Callable, Iterator
import functools
import json
import pathlib
import random

import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import settings
from atgrpo_jax.io import files
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api

TYPED, EMPTY, RANDOM = 'typed', 'empty', 'random'
_MAX_WORDS = 20  # Of a random reply.


def play(
    config: ml_collections.ConfigDict, replies: str, num_tasks: int) -> None:
  """Plays the first training tasks; see the module."""
  section = config.environment
  with workers_lib.Workers(
      1, section.program_slots, config.sandbox.level,
      config.sandbox.url) as workers:
    environment, *_ = settings.read(config, workers.sandbox)
    contract.check_environment(environment)
    make_reply = _reply_function(replies)
    for task in settings.load_tasks(
        config, config.dataset.train)[:num_tasks]:
      _play_task(
          workers, environment, task, make_reply, section.step_seconds)


def _play_task(
    workers: workers_lib.Workers, environment: env_api.Environment,
    task: env_api.Task, make_reply: Callable[[str], str],
    seconds: float) -> None:
  task_id = task['task_id']
  print(f'==== task {task_id}')
  state = contract.check_start(environment, task)
  position = contract.Position()
  while True:
    turn, actions = position.turn, {}
    for role in environment.phases[position.phase]:
      messages = contract.observe(
          environment, state, role, task_id=task_id, turn=turn,
          seconds=seconds)
      print(f'---- prompt of {role!r} in turn {turn + 1}')
      for message in messages:
        print(f'[{message["role"]}] {env_api.text_of(message)}')
      actions[role] = make_reply(env_api.text_of(messages[-1]))
      print(f'---- reply of {role!r}\n{actions[role]}')
    step, = workers.submit(
        functools.partial(contract.step_all, seconds=seconds), environment,
        [contract.StepRequest(state, actions, task_id, turn)]).result()
    _print_step(step)
    if step.done:
      return
    state, position = step.state, contract.next_position(
        environment, position, step, task_id=task_id)


def _print_step(step: env_api.Step) -> None:
  print(f'---- team reward {step.team_reward:g}; ' + '; '.join(
      f'{role}: local reward {reward:g}, {step.outcomes[role].value}'
      for role, reward in step.local_rewards.items()))
  for name, value in step.reward_terms.items():
    print(f'     {name} {value + 0.0:g}')  # Not -0.
  flags = [x for x in ('done', 'success', 'truncated') if getattr(step, x)]
  if flags:
    print(f'     {", ".join(flags)}')


def _reply_function(replies: str) -> Callable[[str], str]:
  """A function from a prompt to a reply."""
  if replies == TYPED:
    return _ask
  if replies == EMPTY:
    return lambda prompt: ''
  if replies == RANDOM:
    rng = random.Random(0)

    def draw(prompt: str) -> str:
      words = prompt.split() or ['']
      return ' '.join(rng.choices(words, k=rng.randint(1, _MAX_WORDS)))

    return draw
  read = _read(pathlib.Path(replies))

  def follow(prompt: str) -> str:
    del prompt
    if (reply := next(read, None)) is None:
      raise errors.UserError(
          f'--replies={replies} has too few lines; add one for each reply, or '
          'play fewer --tasks.')
    return reply

  return follow


def _ask(prompt: str) -> str:
  del prompt
  try:
    return input('> ')
  except EOFError as error:
    raise errors.UserError(
        f'--replies={TYPED}: the standard input has ended; type a line for '
        'each reply, or give a file.') from error


def _read(path: pathlib.Path) -> Iterator[str]:
  with files.read_errors_as_user_errors(
      path, f'give {TYPED}, {EMPTY}, {RANDOM} or a file with a JSON text per '
      'line'):
    replies = [json.loads(line) for line in path.read_text().splitlines()]
    if not all(isinstance(reply, str) for reply in replies):
      raise TypeError('a line is not a JSON text')
  return iter(replies)
