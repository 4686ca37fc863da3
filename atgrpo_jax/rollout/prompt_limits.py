"""How long a prompt may be."""

from __future__ import annotations

import dataclasses

from atgrpo_jax import errors
from atgrpo_jax import types


@dataclasses.dataclass(frozen=True)
class Limits:
  """What bounds the prompts of a role, in tokens.

  Attributes:
    bucket: the largest of `buckets.prompt`.
    max_new_tokens: of an answer.
    max_positions: of the model, for a prompt and its answer.
  """

  bucket: int
  max_new_tokens: int
  max_positions: int

  def check(self, length: int, key: types.GroupKey) -> None:
    """Nothing is cut in silence: raises UserError if a prompt does not fit."""
    limit = min(self.bucket, self.max_positions - self.max_new_tokens)
    if limit < 1:
      raise errors.UserError(
          f'The model has {self.max_positions} positions, and '
          f'rollout.max_new_tokens={self.max_new_tokens} leaves none for a '
          'prompt; lower it, or take a model with more positions.')
    if length > limit:
      raise errors.UserError(
          f'The prompt of role {key.role!r} in task {key.task_id!r}, '
          f'turn {key.turn + 1}, has {length} tokens, but only {limit} fit: '
          f'raise buckets.prompt (its largest is {self.bucket}) or lower '
          f'rollout.max_new_tokens ({self.max_new_tokens} of the '
          f'{self.max_positions} positions of the model).')
