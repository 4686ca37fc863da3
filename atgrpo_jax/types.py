"""Data types of the rollout and its batches, and their axes.

Axes: E environments, A agents, U turns, P groups in flight, G group size
(the papers' K and G), S prompt length, T completion length, V vocabulary, and
B inputs of a critic. `atgrpo_jax.model.decoder` lists the axes of the model.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import enum
import math
from typing import NamedTuple

from flax import struct
import jax
import numpy as np

NO_BASELINE = -1


class GroupKey(NamedTuple):
  """Names a group; its candidates depend on the key, the seed and the step."""

  task_id: str
  role: str
  turn: int  # Turn of the episode, from 0.
  # Index of the episode within its task. If episodes share a prompt, candidate
  # i belongs to episode branch + i.
  branch: int


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A sampled completion and the result of its step."""

  completion: np.ndarray  # [T] int32, with the stop token if there is one
  behavior_logprobs: np.ndarray  # [T] float32 from the sampler
  text: str = ''  # The text that the environment reads.
  # alpha * team reward + local reward, as float64; the mean over its joint
  # actions. NaN if every step failed for a reason outside the model.
  reward: float = 0.0
  return_: float = 0.0  # See docs/algorithms.md; NaN if it is unknown.
  # Return minus baseline, optionally scaled; 0 until it is assigned.
  advantage: float = 0.0
  weight: float = 1.0  # Weight of the return in its baseline.
  # Name -> value before weighting.
  reward_terms: Mapping[str, float] = dataclasses.field(default_factory=dict)
  outcome: enum.Enum | None = None

  @property
  def valid(self) -> bool:
    """True if the return is known; other candidates leave their group."""
    return math.isfinite(self.return_)


@dataclasses.dataclass(frozen=True)
class Group:
  """G candidates for one prompt; see `Candidate` for the arrays over G."""

  key: GroupKey
  policy: str
  prompt: np.ndarray  # [S] int32
  candidates: tuple[Candidate, ...]
  messages: Sequence[Mapping[str, str]] = ()  # The chat that `prompt` encodes.
  temperature: float = 1.0  # Of sampling; not recorded in JSON.
  value: float | None = None  # A critic's value of the prompt.
  # Equal for groups of a step whose candidates share a baseline.
  baseline_id: int = NO_BASELINE

  @property
  def rewards(self) -> np.ndarray:  # [G] float64
    return np.array([c.reward for c in self.candidates])

  @property
  def returns(self) -> np.ndarray:  # [G] float32
    return np.array([c.return_ for c in self.candidates], np.float32)

  @property
  def advantages(self) -> np.ndarray:  # [G] float32
    return np.array([c.advantage for c in self.candidates], np.float32)

  @property
  def valid(self) -> np.ndarray:  # [G] bool
    return np.array([c.valid for c in self.candidates], bool)


@dataclasses.dataclass(frozen=True)
class ValueExample:
  """One training example of a critic."""

  critic: str
  inputs: np.ndarray  # [S] int32 ids
  value: float  # The critic's value at the time of the rollout.
  target: float


@struct.dataclass
class ValueBatch:
  """One microbatch of a critic, padded to a static shape."""

  inputs: jax.Array  # [B, S] int32
  lengths: jax.Array  # [B] int32, at least 1
  targets: jax.Array  # [B] float32
  weights: jax.Array  # [B] float32, 0 for padding rows


@struct.dataclass
class TrainBatch:
  """One microbatch of groups, padded at the end of rows to a static shape.

  Masks come from the lengths, never from the pad id.
  """

  prompts: jax.Array  # [P, S] int32
  prompt_lengths: jax.Array  # [P] int32, at least 1
  completions: jax.Array  # [P, G, T] int32
  completion_lengths: jax.Array  # [P, G] int32, 0 for padding and failures
  behavior_logprobs: jax.Array  # [P, G, T] float32
  advantages: jax.Array  # [P, G] float32
  # The learner's before the first of several updates; None for one update.
  old_logprobs: jax.Array | None = None  # [P, G, T] float32
  # The reference policy's; None without a KL penalty.
  reference_logprobs: jax.Array | None = None  # [P, G, T] float32
  # At which all completions were sampled.
  temperature: float = struct.field(pytree_node=False, default=1.0)
