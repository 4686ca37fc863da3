"""Updates of policies and critics, and the diagnosis of roles.

`update_policy` and `update_critic` only dispatch programs. Their metrics are
fetched later, by `Updates.metrics`, so policies on different pools update at
the same time.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import itertools

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses

# Consecutive updates with non-finite gradients that stop the run.
MAX_NONFINITE = 5
_STOPPED = (
    'The step is not saved; start again in another --workdir, with a smaller '
    'learning_rate or max_grad_norm.')


@dataclasses.dataclass(frozen=True)
class Updates:
  """Dispatched updates of one policy or critic in one step."""

  summary: dict[str, float]  # Metrics that the host knows.
  updates: list[dict[str, jax.Array]]  # Metrics of each, still on the devices.

  def metrics(self, name: str) -> dict[str, float]:
    """Waits for the updates and averages their metrics.

    Raises UserError, with `name` in the message, if new parameters are not
    finite, or after `MAX_NONFINITE` consecutive non-finite gradients.
    """
    if not self.updates:
      num_groups = self.summary.get('groups', 0)
      reason = (
          f'the compared returns are equal or unknown in all {num_groups} '
          'groups' if num_groups else 'there is no data')
      logging.warning('%s: skipping the update, because %s', name, reason)
      return self.summary
    fetched = hosts.fetch(self.updates)
    for metrics in fetched:
      if not np.isfinite(metrics['param_norm']):
        raise errors.UserError(
            f'{name}: an update produced NaN or infinity. {_STOPPED}')
      num_nonfinite = int(metrics['nonfinite_in_a_row'])
      if num_nonfinite >= MAX_NONFINITE:
        raise errors.UserError(
            f'{name}: gradients were not finite in {MAX_NONFINITE} consecutive '
            f'updates, last with loss {metrics["loss"]}. {_STOPPED}')
      if num_nonfinite:
        logging.warning(
            '%s: skipped an update with non-finite gradients and loss %s (%d '
            'in a row; %d stop the run)', name, metrics['loss'], num_nonfinite,
            MAX_NONFINITE)
    means = {
        key: float(np.mean([metrics[key] for metrics in fetched]))
        for key in fetched[0]}
    means['nonfinite_in_a_row'] = float(fetched[-1]['nonfinite_in_a_row'])
    if not all(metrics['grad_norm'] for metrics in fetched):
      logging.warning(
          '%s: the gradient is zero; a very large loss.kl_coefficient, for '
          'example, rounds all other terms away', name)
    return self.summary | means


def update_policy(
    policy: policy_lib.Policy, state: policy_lib.TrainState,
    groups: Sequence[types.Group], *, num_updates: int, order: str,
    buckets: batching.Buckets, frozen_params: model.Params | None,
    reference: model.Params | None) -> tuple[policy_lib.TrainState, Updates]:
  """Dispatches the updates of a policy in one step; donates `state`.

  The loss is the mean over the valid candidates of an update (Algorithm 1 of
  arXiv 2510.11062), as `loss.aggregation` defines it. Groups without an
  advantage are computed only if the loss has a penalty.

  Order 'mixed' splits the groups among `num_updates` updates. 'last_turn' makes
  one update per turn, and 'nodes' one per node of each task's tree, both the
  deepest first. `frozen_params` is the model under an adapter, and
  `reference` the model of the KL penalty.
  """
  loss = policy.learner.loss
  throttled = functools.partial(
      mesh_lib.throttle_cpu_dispatch, mesh=policy.mesh)
  num_zero = sum(not np.any(group.advantages) for group in groups)
  summary = {'groups': len(groups), 'groups_zero_advantage': num_zero}
  updates, prepared = [], []
  with jax.set_mesh(policy.mesh):
    dealt = _deal(groups, num_updates, order)
    for update_groups in dealt:
      scored = _scored_groups(loss, update_groups)
      if not scored:
        continue
      batches = _make_batches(policy, scored, buckets)
      if len(dealt) > 1:
        batches = [
            dataclasses.replace(b, old_logprobs=throttled(gradients.score(
                state.params, b, frozen_params=frozen_params,
                config=policy.config, spec=policy.learner))) for b in batches]
      if loss.kl_estimator != 'none':
        batches = [
            dataclasses.replace(b, reference_logprobs=throttled(
                _score_reference(policy, reference, b))) for b in batches]
      prepared.append((
          batches, _num_units(update_groups, loss.aggregation),
          _num_units(scored, 'token_mean')))
    for batches, units, tokens in prepared:
      state, metrics = _update(
          policy, state, batches, units, tokens, frozen_params)
      updates.append(metrics | {'tokens': tokens})
  return state, Updates(summary, updates)


def update_critic(
    critic: policy_lib.Policy, state: policy_lib.TrainState,
    examples: Sequence[types.ValueExample],
    buckets: batching.Buckets) -> tuple[policy_lib.TrainState, Updates]:
  """Dispatches one update on all examples of the critic; donates `state`."""
  examples = [x for x in examples if x.critic == critic.name]
  summary = {'examples': len(examples)}
  if not examples:
    return state, Updates(summary, [])
  values = np.array([example.value for example in examples])
  targets = np.array([example.target for example in examples])
  summary |= {
      'value_mean': float(np.mean(values)),
      'target_mean': float(np.mean(targets))}
  variance = np.var(targets, dtype=np.float64)
  if variance:
    summary['explained_variance'] = float(
        1 - np.var(targets - values, dtype=np.float64) / variance)
  with jax.set_mesh(critic.mesh):
    batches = batching.make_value_batches(examples, _on_mesh(critic, buckets))
    batches = [mesh_lib.put_rows(batch, critic.mesh) for batch in batches]
    num_examples = np.float32(len(examples))
    state, metrics = _update(
        critic, state, batches, num_examples, num_examples)
  return state, Updates(summary, [metrics])


def critic_values(
    critic: policy_lib.Policy, params: policy_lib.Params,
    inputs: Sequence[np.ndarray], buckets: batching.Buckets) -> np.ndarray:
  """A critic's values [N] float32 of token ids that fit."""
  values = np.zeros(len(inputs), np.float32)
  rows, dispatched = [], []
  with jax.set_mesh(critic.mesh):
    for indices, tokens, lengths in batching.pad_inputs(
        inputs, _on_mesh(critic, buckets)):
      tokens, lengths = mesh_lib.put_rows((tokens, lengths), critic.mesh)
      rows.append(indices)
      dispatched.append(mesh_lib.throttle_cpu_dispatch(
          gradients.values(
              params, tokens, lengths, config=critic.config,
              spec=critic.learner), critic.mesh))
  for indices, batch_values in zip(rows, hosts.fetch(dispatched)):
    values[indices] = batch_values[:len(indices)]
  return values


def _update(policy, state, batches, units, tokens, frozen_params=None):
  """Dispatches the gradients of the batches and one optimizer update."""
  static = {'config': policy.config, 'spec': policy.learner}
  sums = gradients.zero_sums(state.params, **static)
  for batch in batches:
    sums = mesh_lib.throttle_cpu_dispatch(gradients.accumulate(
        state.params, sums, batch, frozen_params=frozen_params, **static),
        policy.mesh)
  return apply_update(state, sums, units, tokens, **static)


@functools.partial(
    jax.jit, static_argnames=('config', 'spec'), donate_argnames='state')
def apply_update(
    state: policy_lib.TrainState, sums: gradients.Sums, num_units: jax.Array,
    num_tokens: jax.Array, *, config: model.ModelConfig,
    spec: policy_lib.LearnerSpec,
) -> tuple[policy_lib.TrainState, dict[str, jax.Array]]:
  """One optimizer update; donates `state`.

  `sums` are over all microbatches. The loss is divided by `num_units` [] (see
  `losses.num_units`), its metrics by `num_tokens` [] (a critic's examples).

  Returns:
    The new state, and metrics by name, each [] float32. Parameters and
    optimizer stay as they are if the loss or a gradient is not finite.
  """
  shardings = policy_lib.sharding_rules(config, spec)
  sums = mesh_lib.sum_over_data(sums, shardings)
  # A loss of NaN may have finite gradients.
  divisor = jnp.where(jnp.isfinite(sums.loss), num_units, jnp.nan)
  grads = jax.tree.map(lambda g: g / divisor, sums.grads)
  norm = optax.tree.norm(grads)
  # Clipping to an infinite norm would make a gradient of zeros.
  grads = jax.tree.map(
      lambda g: jnp.where(jnp.isfinite(norm), g, jnp.nan), grads)
  updates, opt_state = policy_lib.make_optimizer(spec.optimizer).update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  rate = policy_lib.learning_rate(spec.optimizer)(state.num_updates)
  metrics = {
      'learning_rate': jnp.asarray(rate, jnp.float32),
      'grad_norm': norm,
      'update_norm': optax.tree.norm(updates),
      'param_norm': optax.tree.norm(params),
      'nonfinite_in_a_row': opt_state.notfinite_count.astype(jnp.float32),
  } | {name: total / num_tokens for name, total in sums.metrics.items()}
  metrics['loss'] = sums.loss / num_units
  state = policy_lib.TrainState(
      params, opt_state, state.num_updates + opt_state.last_finite)
  return mesh_lib.constrain_tree(state, shardings), metrics


def diagnose(
    policy: policy_lib.Policy, params: policy_lib.Params,
    groups: Sequence[types.Group], *, buckets: batching.Buckets,
    frozen_params: model.Params | None,
    reference: model.Params) -> dict[str, float]:
  """Compares the roles that share a policy, on the groups of the next update.

  A policy is updated with the sum of its roles' gradients. Their cosine and
  each role's distance from the `reference` model help to choose between shared
  and separate policies. `frozen_params` is the model under an adapter.

  Returns:
    Metrics with the prefix `diagnosis/`; roles without a gradient have none.
    `{role}/grad_norm`: norm of the gradient of the role's mean loss.
    `{role}/entropy`: nats per token.
    `{role}/kl_to_start`: KL(sampling policy || reference), nats per token.
    `cosine/{role}+{other}`: cosine between the gradients of two roles.
  """
  loss = policy.learner.loss
  static = {'config': policy.config, 'spec': policy.learner}
  throttled = functools.partial(
      mesh_lib.throttle_cpu_dispatch, mesh=policy.mesh)
  by_role = collections.defaultdict(list)
  for group in groups:
    by_role[group.key.role].append(group)
  scored = {
      role: found for role, role_groups in by_role.items()
      if (found := _scored_groups(loss, role_groups))}
  sums = {}
  with jax.set_mesh(policy.mesh):
    for role, role_groups in scored.items():
      total = gradients.zero_sums(params, **static)
      # `jnp.zeros_like` fails in a process without devices of the pool.
      kl = 0 * total.loss
      for batch in _make_batches(policy, role_groups, buckets):
        logprobs = throttled(_score_reference(policy, reference, batch))
        kl = throttled(_add_kl(kl, batch, logprobs))
        if loss.kl_estimator != 'none':
          batch = batch.replace(reference_logprobs=logprobs)
        total = throttled(gradients.accumulate(
            params, total, batch, frozen_params=frozen_params, **static))
      total.metrics['kl_to_start'] = kl
      sums[role] = gradients.add_up(total, **static)
    products, totals = hosts.fetch((
        _products([x.grads for x in sums.values()]),
        {role: total.metrics for role, total in sums.items()}))
  norms = np.sqrt(np.diag(products))
  values = {}
  for role, norm in zip(sums, norms):
    values[f'{role}/grad_norm'] = norm / _num_units(
        by_role[role], loss.aggregation)
    num_tokens = _num_units(scored[role], 'token_mean')
    for name in ('entropy', 'kl_to_start'):
      values[f'{role}/{name}'] = float(totals[role][name]) / num_tokens
  for (i, role), (j, other) in itertools.combinations(enumerate(sums), 2):
    values[f'cosine/{role}+{other}'] = products[i, j] / (norms[i] * norms[j])
  return {f'diagnosis/{name}': value for name, value in values.items()}


def _deal(groups, num_updates, order):
  """Deals the groups to the updates."""
  if order == 'mixed':
    return [groups[i::num_updates] for i in range(num_updates)]
  tasks = list(dict.fromkeys(group.key.task_id for group in groups))

  def update_of(group):
    key = group.key
    if order == 'last_turn':
      return -key.turn
    return tasks.index(key.task_id), -key.turn, key.branch

  ordered = sorted(groups, key=update_of)
  return [list(dealt) for _, dealt in itertools.groupby(ordered, update_of)]


def _scored_groups(loss, groups):
  """The groups with a gradient."""
  return [
      group for group in groups
      if loss.kl_coefficient or np.any(group.advantages)]


def _make_batches(policy, groups, buckets):
  """Microbatches on the devices of the policy."""
  return [
      mesh_lib.put_rows(batch, policy.mesh)
      for batch in batching.make_batches(groups, _on_mesh(policy, buckets))]


def _score_reference(policy, reference, batch):
  """Log-probabilities [P, G, T] float32 of the reference model."""
  return gradients.score(
      reference, batch, config=policy.config,
      spec=dataclasses.replace(policy.learner, adapter_scale=None))


def _num_units(groups, aggregation):
  """`losses.num_units` of the valid candidates."""
  lengths = [
      len(candidate.completion) * candidate.valid
      for group in groups for candidate in group.candidates]
  return np.float32(losses.num_units(np.array(lengths), aggregation))


def _on_mesh(policy, buckets):
  return buckets.on(mesh_lib.num_data_shards(policy.mesh))


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
