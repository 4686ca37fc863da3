"""What the roles that share a policy ask of it, each for itself.

A policy is updated with the sum of its roles' gradients. Whether they agree,
and how far each role has moved from the start, is what decides between shared
and separate policies, so it is measured here, on the same groups and before
the update, which it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import gradients
from atgrpo_jax.rl import losses


@dataclasses.dataclass(frozen=True)
class RoleBatches:
  """What one role contributes to the next update.

  Attributes:
    batches: microbatches of its groups that are scored, on the mesh.
    num_units: what its mean loss is a mean over, see `losses.num_units`.
    num_tokens: completion tokens of `batches`.
  """

  batches: Sequence[types.TrainBatch]
  num_units: float
  num_tokens: float


def diagnose(
    params: gradients.Trained, roles: Mapping[str, RoleBatches],
    score_start: Callable[[types.TrainBatch], jax.Array], *,
    frozen_params: model.Params | None, mesh: jax.sharding.Mesh,
    config: model.ModelConfig,
    spec: gradients.LearnerSpec) -> dict[str, float]:
  """Gradients, entropy and distance to the start of each role of a policy.

  Args:
    params: what is trained, before the update.
    roles: role -> its batches.
    score_start: log-probabilities [P, G, T] of a batch by the model that
      training started from, or that the adapter is over.
    frozen_params: the frozen model under an adapter, or None.
    mesh: of the policy.
    config: of the model.
    spec: of the learner.

  Returns:
    `{role}/grad_norm` of the role's own mean loss, `{role}/entropy` and
    `{role}/kl_to_start`, KL(sampled policy || start), in nats for a token, and
    `cosine/{role}+{role}` of the gradients of each two roles.
  """
  throttled = functools.partial(mesh_lib.throttle_cpu_dispatch, mesh=mesh)
  sums = {}
  for role, own in roles.items():
    total = gradients.zero_sums(params, config=config, spec=spec)
    total.metrics['kl_to_start'] = jnp.zeros_like(total.loss)
    for batch in own.batches:
      start = throttled(score_start(batch))
      kl = throttled(
          _add_kl(total.metrics.pop('kl_to_start'), batch, start))
      if spec.loss.kl_estimator != 'none':
        batch = batch.replace(reference_logprobs=start)
      total = throttled(gradients.accumulate(
          params, total, batch, frozen_params=frozen_params, config=config,
          spec=spec))
      total.metrics['kl_to_start'] = kl
    sums[role] = gradients.add_up(total, config=config, spec=spec)
  products = np.asarray(_products([total.grads for total in sums.values()]))
  norms = np.sqrt(np.diag(products))
  values: dict[str, Any] = {}
  for role, norm in zip(sums, norms):
    metrics = sums[role].metrics
    values |= {
        f'{role}/grad_norm': norm / roles[role].num_units,
        f'{role}/entropy':
            float(metrics['entropy']) / roles[role].num_tokens,
        f'{role}/kl_to_start':
            float(metrics['kl_to_start']) / roles[role].num_tokens}
  for (i, one), (j, other) in itertools.combinations(enumerate(sums), 2):
    values[f'cosine/{one}+{other}'] = products[i, j] / (norms[i] * norms[j])
  return values


@jax.jit
def _add_kl(kl, batch, start):
  """Adds a batch's KL of who sampled it from the start, summed over tokens.

  `kl` is [D] float32, for each shard of `data` its own.
  """
  def add(_, split):
    kl, batch, start = split
    estimates = losses.kl_value(batch.behavior_logprobs, start)
    return kl + jnp.sum(jnp.where(
        gradients.completion_mask(batch), estimates, 0.0))

  return mesh_lib.per_shard(add, ['data'])(None, (kl, batch, start))


@jax.jit
def _products(grads):
  """[R, R] inner products of gradients."""
  return jnp.array([
      [optax.tree.vdot(one, other) for other in grads] for one in grads])
