"""What the roles that share a policy ask of it, each for itself.

A policy is updated with the sum of its roles' gradients. Whether they agree,
and how far each role has moved from the start, is what decides between shared
and separate policies, so it is measured here, on the same groups and before
the update, which it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import types
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import train_step


def diagnose(
    params: train_step.Trained,
    batches: Mapping[str, Sequence[types.TrainBatch]],
    score_start: Callable[[types.TrainBatch], jax.Array], *,
    base: model.Params | None, mesh: jax.sharding.Mesh,
    config: model.ModelConfig,
    spec: train_step.LearnerSpec) -> dict[str, float]:
  """Gradients, entropy and distance to the start of each role of a policy.

  Args:
    params: what is trained, before the update.
    batches: role -> its microbatches, on the mesh.
    score_start: log-probabilities [P, G, T] of a batch by the model that
      training started from, or that the adapter is over.
    base: the frozen model under an adapter, or None.
    mesh: of the policy.
    config: of the model.
    spec: of the learner.

  Returns:
    `{role}/grad_norm` of the role's own mean loss, `{role}/entropy` and
    `{role}/kl_to_start`, KL(sampled policy || start), in nats for a token, and
    `cosine/{role}+{role}` of the gradients of each two roles.
  """
  queued = functools.partial(sharding.queued, mesh=mesh)
  sums, kls = {}, {}
  for role, own in batches.items():
    total = train_step.zero_sums(params, config=config, spec=spec)
    kl = jnp.zeros(())
    for batch in own:
      start = queued(score_start(batch))
      kl = queued(_add_kl(kl, batch, start))
      if spec.loss.kl_estimator != 'none':
        batch = batch.replace(reference_logprobs=start)
      total = queued(train_step.accumulate(
          params, total, batch, base=base, config=config, spec=spec))
    sums[role], kls[role] = total, kl
  products = np.asarray(_products([total.grads for total in sums.values()]))
  norms = np.sqrt(np.diag(products))
  values: dict[str, Any] = {}
  for role, norm in zip(sums, norms):
    tokens = sums[role].metrics['tokens']
    values |= {
        f'{role}/grad_norm': norm / float(sums[role].count),
        f'{role}/entropy': float(sums[role].metrics['entropy'] / tokens),
        f'{role}/kl_to_start': float(kls[role] / tokens)}
  for (i, one), (j, other) in itertools.combinations(enumerate(sums), 2):
    values[f'cosine/{one}+{other}'] = products[i, j] / (norms[i] * norms[j])
  return values


@jax.jit
def _add_kl(kl, batch, start):
  """Adds a batch's KL of who sampled it from the start, summed over tokens."""
  estimates = losses.kl_value(batch.behavior_logprobs, start)
  return kl + jnp.sum(jnp.where(
      train_step.completion_mask(batch), estimates, 0.0))


@jax.jit
def _products(grads):
  """[R, R] inner products of gradients."""
  return jnp.array([
      [optax.tree.vdot(one, other) for other in grads] for one in grads])
