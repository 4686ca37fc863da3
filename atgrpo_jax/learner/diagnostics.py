"""Compares the gradients of the roles that share a policy.

A policy is updated with the sum of its roles' gradients. Their cosine and each
role's distance from the reference help to choose between shared and separate
policies.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
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


def diagnose(
    policy: policy_lib.Policy, params: policy_lib.Params,
    groups: Sequence[types.Group], *, buckets: batching.Buckets,
    frozen_params: model.Params | None,
    reference: model.Params) -> dict[str, float]:
  """Measures each role on the groups of the next update.

  Takes the parameters before that update. `frozen_params` is the model under an
  adapter, and `reference` the model before training.

  Returns:
    `diagnosis/{role}/grad_norm` of the role's mean loss, `{role}/entropy` and
    `{role}/kl_to_start`, KL(sampling policy || reference), in nats per token,
    and `cosine/{role}+{role}` between the gradients of each pair of roles.
    Roles without a gradient are left out.
  """
  loss = policy.learner.loss
  static = {'config': policy.config, 'spec': policy.learner}
  throttled = functools.partial(
      mesh_lib.throttle_cpu_dispatch, mesh=policy.mesh)
  by_role = collections.defaultdict(list)
  for group in groups:
    by_role[group.key.role].append(group)
  sums = {}
  with jax.set_mesh(policy.mesh):
    for role, role_groups in by_role.items():
      scored = update_lib.scored_groups(loss, role_groups)
      if not scored:
        continue
      total = gradients.zero_sums(params, **static)
      kl = jnp.zeros_like(total.loss)
      for batch in update_lib.make_batches(policy, scored, buckets):
        logprobs = throttled(
            update_lib.score_reference(policy, reference, batch))
        kl = throttled(_add_kl(kl, batch, logprobs))
        if loss.kl_estimator != 'none':
          batch = batch.replace(reference_logprobs=logprobs)
        total = throttled(gradients.accumulate(
            params, total, batch, frozen_params=frozen_params, **static))
      total.metrics['kl_to_start'] = kl
      sums[role] = gradients.add_up(total, **static)
    products = np.asarray(
        _products([total.grads for total in sums.values()]))
  norms = np.sqrt(np.diag(products))
  values = {}
  for (role, total), norm in zip(sums.items(), norms):
    values[f'{role}/grad_norm'] = norm / update_lib.num_units(
        by_role[role], loss.aggregation)
    num_tokens = update_lib.num_units(
        update_lib.scored_groups(loss, by_role[role]), 'token_mean')
    for name in ('entropy', 'kl_to_start'):
      values[f'{role}/{name}'] = float(total.metrics[name]) / num_tokens
  for (i, role), (j, other) in itertools.combinations(enumerate(sums), 2):
    values[f'cosine/{role}+{other}'] = products[i, j] / (norms[i] * norms[j])
  return {f'diagnosis/{name}': value for name, value in values.items()}


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
