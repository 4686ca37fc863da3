"""Words and axes of the rollout and of the batches made from it.

Axes: E environments, A agents, U turns, P groups in flight, G group size
(the papers' K and G), S prompt length, T completion length, V vocabulary.
The model's own axes are listed in `atgrpo_jax.model.qwen3`.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import enum
from typing import NamedTuple

from flax import struct
import jax
import numpy as np


class GroupKey(NamedTuple):
  """What makes a group one: its members answer one prompt of one agent.

  Attributes:
    task_id: names the environment's task.
    role: the agent.
    turn: the turn of the episode, from 0.
    branch: which episode of the task; 0 where there is only one. Where several
      episodes share a prompt, candidate i is that of episode branch + i.
  """

  task_id: str
  role: str
  turn: int
  branch: int


@dataclasses.dataclass(frozen=True)
class Group:
  """G candidates for one prompt, as they left the rollout.

  Attributes:
    key: see `GroupKey`.
    policy: the policy that was sampled.
    prompt: [S] int32 ids.
    completions: G arrays [T_g] int32; the stop token, if any, is the last.
    texts: the completions as the environment read them.
    behavior_logprobs: G arrays [T_g] float32 from the sampler.
    rewards: [G] float32, what the advantages compare; NaN where `valid` is
      False.
    valid: [G] bool, False for a candidate whose reward is unknown for a reason
      that is not the model's own.
    reward_terms: one dict per candidate, name -> value before weighting.
    outcomes: one outcome name per candidate.
    chosen: index of the candidate on the spine; None where all go on.
  """

  key: GroupKey
  policy: str
  prompt: np.ndarray
  completions: tuple[np.ndarray, ...]
  texts: tuple[str, ...]
  behavior_logprobs: tuple[np.ndarray, ...]
  rewards: np.ndarray
  valid: np.ndarray
  reward_terms: tuple[Mapping[str, float], ...]
  outcomes: tuple[enum.Enum, ...]
  chosen: int | None

  @property
  def size(self) -> int:
    return len(self.completions)


@struct.dataclass
class TrainBatch:
  """One microbatch of groups, padded to a static shape.

  Pads stand at the end of each row; masks come from the lengths, never from
  the pad id.
  """

  prompts: jax.Array  # [P, S] int32
  prompt_lengths: jax.Array  # [P] int32, at least 1
  completions: jax.Array  # [P, G, T] int32
  completion_lengths: jax.Array  # [P, G] int32, 0 where a row does not count
  behavior_logprobs: jax.Array  # [P, G, T] float32
  advantages: jax.Array  # [P, G] float32
  # Of the learner before the first of several updates; None for one update.
  old_logprobs: jax.Array | None = None  # [P, G, T] float32
  # Of the reference policy; None without a KL penalty.
  reference_logprobs: jax.Array | None = None  # [P, G, T] float32
