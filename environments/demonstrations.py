"""What a small model is taught before it learns by reinforcement.

A base model that reinforcement learning can improve must be able to do the
right thing and mostly not do it. So the answers of a demonstration are drawn
from several *kinds* of behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np

from environments import env_api


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """Several answers to one prompt.

  Attributes:
    role: who answers.
    state: what the prompt was rendered from.
    messages: the prompt.
    completions: the answers.
    kinds: the kind of each answer.
  """

  role: str
  state: Any
  messages: list[env_api.Message]
  completions: tuple[str, ...]
  kinds: tuple[str, ...]


class Repertoire(Protocol):
  """What can be shown of a task: `REPERTOIRE` of its demonstrations module."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int, max_turns: Sequence[int]) -> Demonstration:
    """Draws a prompt and answers to it.

    Args:
      rng: of all that is drawn.
      role: who answers.
      kinds: kind -> its probability.
      group_size: answers.
      max_turns: limits of an episode, of which one is drawn.
    """

  def kind_of(
      self, demonstration: Demonstration, completion: str) -> str | None:
    """The kind of an answer to the same prompt; None if it has a fault."""
