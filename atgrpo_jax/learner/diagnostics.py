"""Compares the gradients of the roles that share a policy.

A policy is updated with the sum of its roles' gradients. Whether they agree,
and how far each role has moved from the reference, helps to choose between
shared and separate policies. Both are measured on the groups of the next update
and do not change it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rl import losses


@dataclasses.dataclass(frozen=True)
class RoleBatches:
  """The batches of one role in the next update.

  Attributes:
    batches: microbatches on the mesh.
    num_units: divisor of its loss, see `losses.num_units`.
    num_tokens: completion tokens of `batches`.
  """

  batches: Sequence[types.TrainBatch]
  num_units: float
  num_tokens: float


def diagnose_policy(
    policy: policy_lib.Policy, state: policy_lib.TrainState,
    groups: Sequence[types.Group], *, buckets: batching.Buckets,
    frozen_params: model.Params | None,
    reference: model.Params) -> dict[str, float]:
  """`diagnose` on the groups of the next update; see `update_policy`."""
  by_role = collections.defaultdict(list)
  for group in groups:
    by_role[group.key.role].append(group)
  loss = policy.learner.loss
  scored = {
      role: with_gradient for role, role_groups in by_role.items()
      if (with_gradient := update_lib.scored_groups(loss, role_groups))}
  if not scored:
    return {}
  with jax.set_mesh(policy.mesh):
    values = diagnose(
        state.params, {
            role: RoleBatches(
                update_lib.make_batches(policy, role_groups, buckets),
                update_lib.num_units(by_role[role], loss.aggregation),
                update_lib.num_units(role_groups, 'token_mean'))
            for role, role_groups in scored.items()},
        functools.partial(update_lib.score_reference, policy, reference),
        frozen_params=frozen_params, mesh=policy.mesh, config=policy.config,
        spec=policy.learner)
  return {f'diagnosis/{metric}': x for metric, x in values.items()}


def diagnose(
    params: policy_lib.Params, roles: Mapping[str, RoleBatches],
    reference_fn: Callable[[types.TrainBatch], jax.Array], *,
    frozen_params: model.Params | None, mesh: jax.sharding.Mesh,
    config: model.ModelConfig,
    spec: policy_lib.LearnerSpec) -> dict[str, float]:
  """Gradients, entropy and distance from the reference, for each role.

  Args:
    params: trained parameters before the update.
    roles: role -> its batches.
    reference_fn: batch -> log-probabilities [P, G, T] of the reference model.
    frozen_params: the model under an adapter, or None.
    mesh: the devices of the policy.
    config: dimensions of the model.
    spec: switches of the learner.

  Returns:
    `{role}/grad_norm` of the role's mean loss, `{role}/entropy` and
    `{role}/kl_to_start`, KL(sampling policy || reference), in nats per token,
    and `cosine/{role}+{role}` between the gradients of each pair of roles.
  """
  throttled = functools.partial(mesh_lib.throttle_cpu_dispatch, mesh=mesh)
  static = {'config': config, 'spec': spec}
  sums = {}
  for role, role_batches in roles.items():
    total = gradients.zero_sums(params, **static)
    kl = jnp.zeros_like(total.loss)
    for batch in role_batches.batches:
      reference = throttled(reference_fn(batch))
      kl = throttled(_add_kl(kl, batch, reference))
      if spec.loss.kl_estimator != 'none':
        batch = batch.replace(reference_logprobs=reference)
      total = throttled(gradients.accumulate(
          params, total, batch, frozen_params=frozen_params, **static))
    total.metrics['kl_to_start'] = kl
    sums[role] = gradients.add_up(total, **static)
  products = np.asarray(_products([total.grads for total in sums.values()]))
  norms = np.sqrt(np.diag(products))
  values = {}
  for (role, role_batches), norm in zip(roles.items(), norms):
    values[f'{role}/grad_norm'] = norm / role_batches.num_units
    for name in ('entropy', 'kl_to_start'):
      values[f'{role}/{name}'] = (
          float(sums[role].metrics[name]) / role_batches.num_tokens)
  for (i, role), (j, other) in itertools.combinations(enumerate(sums), 2):
    values[f'cosine/{role}+{other}'] = products[i, j] / (norms[i] * norms[j])
  return values


@jax.jit
def _add_kl(kl, batch, reference):
  """Adds KL(sampling policy || reference), summed over tokens, to `kl` [D]."""
  def add(_, split):
    kl, batch, reference = split
    estimates = losses.kl_value(batch.behavior_logprobs, reference)
    return kl + jnp.sum(jnp.where(
        gradients.completion_mask(batch), estimates, 0.0))

  return mesh_lib.per_shard(add, ['data'])(None, (kl, batch, reference))


@jax.jit
def _products(grads):
  """Inner products [R, R] of the gradients of R roles."""
  return jnp.array([
      [optax.tree.vdot(x, y) for y in grads] for x in grads])
