"""A task that is never computed: prompts, answers and turns of drawn lengths.

It stands in for an environment and its tokenizer where only the schedule of a
step is wanted. What is drawn depends on the task, the turn and the role, or on
the key of a prompt, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
from typing import Any, Protocol
import zlib

import numpy as np

from environments import env_api

_Z_95 = 1.6449  # 95 % of a normal distribution lie below so many deviations.


class Numbers(Protocol):
  """A distribution of whole numbers."""

  def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """[size] int."""


@dataclasses.dataclass(frozen=True)
class Recorded:
  """Some numbers, each as likely as the others."""

  numbers: tuple[int, ...]

  def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.choice(self.numbers, size)


@dataclasses.dataclass(frozen=True)
class LogNormal:
  """Lengths in tokens: log-normal, from 1 to a largest one.

  Attributes:
    median: of them.
    percentile_95: of them.
    largest: what is longer is cut.
  """

  median: float
  percentile_95: float
  largest: int

  def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
    width = np.log(self.percentile_95 / self.median) / _Z_95
    drawn = np.exp(rng.normal(np.log(self.median), width, size))
    return np.clip(drawn.astype(int), 1, self.largest)


@dataclasses.dataclass(frozen=True)
class Completions(Mapping[int, np.ndarray]):
  """Number of a key -> the lengths of its candidates; see `dry_run.DryRun`."""

  lengths: Numbers
  group_size: int

  def __getitem__(self, number: int) -> np.ndarray:
    return self.lengths.draw(np.random.default_rng(number), self.group_size)

  def __iter__(self):
    raise TypeError('All numbers are keys.')

  def __len__(self):
    raise TypeError('All numbers are keys.')


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps."""

  task_id: str
  turn: int = 0
  phase: int = 0


@dataclasses.dataclass(frozen=True)
class Environment:
  """Phases and turns of another environment, and rewards that are drawn.

  Attributes:
    roles: of it.
    phases: of it.
    max_turns: of it.
    num_turns: of an episode.
  """

  roles: tuple[str, ...]
  phases: tuple[tuple[str, ...], ...]
  max_turns: int
  num_turns: Numbers

  team_reward_range = (0.0, 1.0)

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    return [{'role': 'user', 'content': f'{state} {role}'}]

  def show(self, state: State) -> dict[str, str]:
    return {'task': state.task_id}

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    phase = state.phase + 1
    turn = state.turn + phase // len(self.phases)
    num_turns, = self.num_turns.draw(_rng(state.task_id), 1)
    done = turn >= num_turns
    return env_api.Step(
        state=State(state.task_id, turn, phase % len(self.phases)),
        team_reward=_rng(f'{state} {actions}').random(),
        local_rewards=dict.fromkeys(actions, 0.0), reward_terms={}, done=done,
        success=False, truncated=done,
        outcomes=dict.fromkeys(actions, env_api.Outcome.OK))


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Prompts of drawn lengths, which begin with different tokens."""

  lengths: Numbers

  stop_ids = (0,)

  def encode_prompt(self, messages: Sequence[env_api.Message]) -> np.ndarray:
    rng = _rng(messages[0]['content'])
    length, = self.lengths.draw(rng, 1)
    return np.full(length, rng.integers(2**31), np.int32)

  def decode(self, ids: np.ndarray) -> str:
    return str(len(ids))


@dataclasses.dataclass
class Executor:
  """Steps environments at once, and counts the steps."""

  num_steps: int = 0

  def submit(self, function: Callable[..., Any], *args: Any) -> futures.Future:
    done = futures.Future()
    steps = function(*args)
    self.num_steps += len(steps)
    done.set_result(steps)
    return done


def _rng(text: str) -> np.random.Generator:
  return np.random.default_rng(zlib.crc32(text.encode()))
