"""The optimiser of one policy."""

from __future__ import annotations

import dataclasses

import optax

from atgrpo_jax import errors

# `apply_if_finite` would let a non-finite update through after this many in a
# row; the loop stops the run long before.
_NEVER = 1_000_000


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
  """AdamW with a clipped gradient norm.

  Attributes:
    learning_rate: after the warm-up.
    warmup_updates: updates over which it rises linearly from 0.
    decay_updates: updates after which it has fallen to `final_share` of
      itself along a cosine; 0 for a constant rate.
    final_share: see `decay_updates`.
    weight_decay: decoupled.
    max_grad_norm: the global gradient norm is clipped to this.
    b1: decay of the gradient's first moment.
    b2: decay of its second moment.
  """

  learning_rate: float
  warmup_updates: int
  decay_updates: int
  final_share: float
  weight_decay: float
  max_grad_norm: float
  b1: float
  b2: float

  def __post_init__(self):
    for name in (
        'learning_rate', 'warmup_updates', 'decay_updates', 'final_share',
        'weight_decay'):
      errors.check_number(f'optimizer.{name}', getattr(self, name), min_value=0)
    if 0 < self.decay_updates <= self.warmup_updates:
      raise errors.UserError(
          f'optimizer.decay_updates={self.decay_updates} counts the warm-up of '
          f'{self.warmup_updates} updates and must be above it.')
    errors.check_number(
        'optimizer.max_grad_norm', self.max_grad_norm, greater_than=0,
        advice='; a large one clips nothing')
    for name in ('b1', 'b2'):
      errors.check_number(
          f'optimizer.{name}', getattr(self, name), min_value=0, less_than=1)


def learning_rate(spec: OptimizerSpec) -> optax.Schedule:
  """Updates that were made -> learning rate of the next one."""
  first = 0.0 if spec.warmup_updates else spec.learning_rate
  if spec.decay_updates:
    return optax.warmup_cosine_decay_schedule(
        first, spec.learning_rate, spec.warmup_updates, spec.decay_updates,
        spec.learning_rate * spec.final_share)
  return optax.linear_schedule(first, spec.learning_rate, spec.warmup_updates)


def make_optimizer(spec: OptimizerSpec) -> optax.GradientTransformation:
  """A step with non-finite gradients changes nothing and is counted."""
  return optax.apply_if_finite(
      optax.chain(
          optax.clip_by_global_norm(spec.max_grad_norm),
          optax.adamw(
              learning_rate(spec), b1=spec.b1, b2=spec.b2,
              weight_decay=spec.weight_decay)),
      _NEVER)
