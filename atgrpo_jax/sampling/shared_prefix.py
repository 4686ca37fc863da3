"""What the waiting prompts of a role begin with, such as its instructions."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import model

# The shortest common beginning of prompts that is prefilled for itself.
MIN_LENGTH = 128

# A role and its adapter.
Family = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class SharedPrefix:
  """The beginning of many prompts, prefilled once."""

  tokens: np.ndarray  # [C] int32
  cache: model.PromptCache

  def begins(self, prompt: np.ndarray) -> bool:
    """Whether a prompt [S] goes on from it, by one token at least."""
    length = len(self.tokens)
    return len(prompt) > length and np.array_equal(
        prompt[:length], self.tokens)


def find_new(
    waiting: Sequence[tuple[Family, np.ndarray]],
    known: dict[Family, SharedPrefix]) -> Iterator[tuple[Family, np.ndarray]]:
  """Families whose prompts [S] share more, or less, than is known of them."""
  by_family = collections.defaultdict(list)
  for family, prompt in waiting:
    # The last token is never part of a prefix.
    by_family[family].append(prompt[:-1])
  for family, prompts in by_family.items():
    if family in known:
      prompts.append(known[family].tokens)
    length = common_length(prompts)
    if (len(prompts) > 1 and length >= MIN_LENGTH
        and (family not in known or length < len(known[family].tokens))):
      yield family, prompts[0][:length]


def common_length(prompts: Sequence[np.ndarray]) -> int:
  """How many ids all prompts begin with."""
  shortest = min(map(len, prompts))
  same = np.all(
      [prompt[:shortest] == prompts[0][:shortest] for prompt in prompts], 0)
  return shortest if same.all() else int(np.argmin(same))
