"""A game of two agents that a random model of 20 000 weights learns in seconds.

`first` sees a letter and must repeat it. `second` sees the word of `first` and
must capitalise it. The episode succeeds if both are right. The game reads only
the first word of a completion.

This module is the config, the environment and the data set of a run:

  python -m atgrpo_jax.main --config tests/echo.py \
      --config.model.folder=FOLDER --workdir WORKDIR

`write_model` makes the folder. Some imports are inside functions, so that
workers start quickly.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
import dataclasses
import pathlib
from typing import Any

from configs import common
from environments import env_api

LETTERS = 'abcdef'
_WORDS = ('<end>', 'first', 'second', 'say', *LETTERS, *LETTERS.upper())
_SPLIT_SIZES = {'train': 48, 'validation': 16, 'test': 48}


@dataclasses.dataclass(frozen=True)
class State:
  letter: str
  said: str = ''  # By `first` in this turn.
  turn: int = 0


@dataclasses.dataclass(frozen=True)
class Echo:
  """The environment; see `environments.env_api.Environment`."""

  max_turns: int
  roles = ('first', 'second')
  phases = (('first',), ('second',))
  team_reward_range = (0.0, 1.0)

  def reset(self, task: env_api.Task) -> State:
    return State(task['letter'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    shown = state.letter if role == 'first' else state.said
    return [{'role': 'user', 'content': f'{role} {shown}'}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    word = action.partition(' ')[0]
    turn, success = state.turn, False
    if role == 'first':
      right = word == state.letter
      state = dataclasses.replace(state, said=word)
    else:
      right = state.said in LETTERS and word == state.said.upper()
      success = right and state.said == state.letter
      turn += 1
      state = dataclasses.replace(state, said='', turn=turn)
    truncated = not success and turn == self.max_turns
    return env_api.Step(
        state=state, team_reward=float(success),
        local_rewards={role: float(right)},
        reward_terms={'right': float(right), 'success': float(success)},
        done=success or truncated, success=success, truncated=truncated,
        outcomes={
            role: env_api.Outcome.OK if word else env_api.Outcome.PARSE_ERROR})

  def show(self, state: State) -> dict[str, str]:
    return {'letter': state.letter, 'said': state.said}


@dataclasses.dataclass(frozen=True)
class Unreliable(Echo):
  """Fails with an infrastructure error where `fails_fn(state, action)`."""

  fails_fn: Callable[[State, str], bool]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    result = super().step(state, actions)
    (role, action), = actions.items()
    if not self.fails_fn(state, action):
      return result
    return dataclasses.replace(
        result, outcomes={role: env_api.Outcome.INFRASTRUCTURE})


def make_environment(
    *, team: str | None, max_turns: int, reward: str, sandbox: Any) -> Echo:
  del team, reward, sandbox
  return Echo(max_turns)


def tasks(split: str) -> list[dict[str, str]]:
  return [
      {'task_id': f'echo/{split}/{i}', 'letter': LETTERS[i % len(LETTERS)]}
      for i in range(_SPLIT_SIZES[split])]


def get_config():
  c = common.base_config('nano')
  c.model.folder = ''  # From `write_model`.
  c.environment.module = 'tests.echo'
  c.environment.team = 'pair'
  c.environment.max_turns = 1
  c.environment.num_workers = 1
  c.environment.program_slots = 1
  c.sandbox.level = 'none'
  c.dataset.builder = 'tests.echo'
  c.rollout.num_tasks = 16
  c.rollout.group_size = 16
  c.rollout.max_new_tokens = 2
  c.optimizer.learning_rate = 5e-3
  c.optimizer.warmup_updates = 0
  c.optimizer.weight_decay = 0.0
  c.buckets.prompt = (4,)
  c.buckets.completion = (2,)
  c.buckets.groups = (16,)
  c.buckets.microbatch_tokens = 600
  c.train.num_steps = 60
  c.train.checkpoint_every = 60
  c.train.groups_every = 60
  c.evaluation.validate_every = 60
  c.lock()
  return c


def experiment(folder: pathlib.Path, **changes: Any):
  """An `Experiment` on a model folder; `changes` as in {'train.num_steps': 3}.

  The game is stepped in a thread of this process.
  """
  from atgrpo_jax import config as config_lib

  config = get_config()
  config.update_from_flattened_dict({'model.folder': str(folder)} | changes)
  return config_lib.build(
      config, sandbox=None, executor=futures.ThreadPoolExecutor(1))


def groups(experiment, states, step: int = 0):
  """The groups of a rollout, with advantages."""
  from atgrpo_jax import train
  from atgrpo_jax.algorithms import credit
  from atgrpo_jax.io import metrics
  from atgrpo_jax.rollout import tree

  trees, _ = train.rollout(
      experiment, states,
      train.draw_tasks(experiment.tasks('train'), step, experiment),
      step=step, clock=metrics.StepClock())
  return tree.groups_of(credit.assign_advantages(
      trees, experiment.advantage, experiment.rollout))


def write_model(folder: pathlib.Path) -> pathlib.Path:
  """Writes a tiny Qwen3 with random weights, and a tokenizer of 16 words."""
  import jax
  import jax.numpy as jnp
  import tokenizers
  import transformers

  from atgrpo_jax import model
  from atgrpo_jax.huggingface import safetensors as safetensors_lib

  words = tokenizers.Tokenizer(tokenizers.models.WordLevel(
      {word: i for i, word in enumerate(_WORDS)}, unk_token=_WORDS[0]))
  words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  fast = transformers.PreTrainedTokenizerFast(
      tokenizer_object=words, eos_token=_WORDS[0])
  fast.chat_template = (
      '{% for message in messages %}{{ message.content }} {% endfor %}say')
  fast.save_pretrained(folder)
  config = model.ModelConfig(
      vocab_size=len(_WORDS), hidden_size=32, intermediate_size=64,
      num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, rope_theta=1e4,
      norm_eps=1e-6, tied_head=True, max_positions=16, init_std=0.1)
  init_params = jax.jit(model.init_params, static_argnums=1)
  safetensors_lib.save(
      folder, init_params(jax.random.key(0), config), config, jnp.float32)
  return folder
