"""Updates of policies and critics.

`update_policy` and `update_critic` only dispatch programs. Their metrics are
fetched later, by `Updates.metrics`, so policies on different pools update at
the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from absl import logging
from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import td

UPDATE_ORDERS = ('mixed', 'first_turn', 'last_turn')

# Consecutive updates with non-finite gradients that stop the run.
MAX_NONFINITE = 5
_STOPPED = (
    'The step is not saved; start again in another --workdir, with a smaller '
    'learning_rate or max_grad_norm.')


@struct.dataclass
class Finite:
  """Trees of [] bool: which gradients and new parameters are finite."""

  grads: Any
  params: Any


@dataclasses.dataclass(frozen=True)
class Updates:
  """Dispatched updates of one policy or critic in one step.

  Attributes:
    summary: metrics that the host knows.
    updates: (metrics, finite) of each update, still on the devices.
  """

  summary: dict[str, float]
  updates: list[tuple[dict[str, jax.Array], Finite]]

  def metrics(self, name: str) -> dict[str, float]:
    """Waits for the updates and averages their metrics.

    Raises UserError, with `name` in the message, if training has diverged (see
    `means`).
    """
    if not self.updates:
      logging.warning(
          '%s: no group has an advantage; skipping the update', name)
      return self.summary
    return self.summary | means(name, self.updates)


def update_policy(
    policy: policy_lib.Policy, state: policy_lib.TrainState,
    groups: Sequence[types.Group], *, num_updates: int, order: str,
    buckets: batching.Buckets, frozen_params: model.Params | None,
    reference: model.Params | None) -> tuple[policy_lib.TrainState, Updates]:
  """Dispatches the updates of a policy in one step.

  The loss is the mean over all candidates (Algorithm 1 of arXiv 2510.11062), as
  `loss.aggregation` defines it. Groups without an advantage contribute nothing
  to the surrogate, so they are computed only if the loss has a penalty.

  Args:
    policy: the trained policy.
    state: donated.
    groups: the groups of its roles.
    num_updates: with order 'mixed', the groups are dealt out to this many
      updates.
    order: 'mixed', or one update per turn from 'first_turn' or 'last_turn'.
    buckets: static shapes.
    frozen_params: the model under an adapter, or None.
    reference: the reference model of the KL penalty; None without a penalty.
  """
  loss = policy.learner.loss
  static = {'config': policy.config, 'spec': policy.learner}
  throttled = functools.partial(
      mesh_lib.throttle_cpu_dispatch, mesh=policy.mesh)
  updates, prepared = [], []
  with jax.set_mesh(policy.mesh):
    dealt = _deal(groups, num_updates, order)
    for update_groups in dealt:
      scored = scored_groups(loss, update_groups)
      if not scored:
        continue
      batches = make_batches(policy, scored, buckets)
      if len(dealt) > 1:
        batches = [
            dataclasses.replace(b, old_logprobs=throttled(gradients.score(
                state.params, b, frozen_params=frozen_params, **static)))
            for b in batches]
      if loss.kl_estimator != 'none':
        batches = [
            dataclasses.replace(b, reference_logprobs=throttled(
                score_reference(policy, reference, b))) for b in batches]
      prepared.append((
          batches, num_units(update_groups, loss.aggregation),
          num_units(scored, 'token_mean')))
    for batches, units, tokens in prepared:
      state, *update = _update(
          policy, state, batches, units, tokens, frozen_params)
      update[0]['tokens'] = tokens
      updates.append(tuple(update))
  return state, Updates({
      'groups': len(groups), 'groups_zero_advantage': sum(
          not np.any(group.advantages) for group in groups)}, updates)


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
  explained = td.explained_variance(values, targets)
  if np.isfinite(explained):
    summary['explained_variance'] = explained
  with jax.set_mesh(critic.mesh):
    batches = [
        mesh_lib.put_rows(batch, critic.mesh)
        for batch in batching.make_value_batches(
            examples, _on_mesh(critic, buckets))]
    num_examples = np.float32(len(examples))
    state, *update = _update(
        critic, state, batches, num_examples, num_examples)
  return state, Updates(summary, [tuple(update)])


def critic_values(
    critic: policy_lib.Policy, params: policy_lib.Params,
    inputs: Sequence[np.ndarray], buckets: batching.Buckets) -> np.ndarray:
  """A critic's values [N] float32 of token ids of any length.

  Raises UserError for an input beyond the largest bucket or the positions of
  the model.
  """
  limit = min(buckets.prompt[-1], critic.config.max_positions)
  longest = max(map(len, inputs), default=0)
  if longest > limit:
    raise errors.UserError(
        f'{critic.name} has an input of {longest} tokens, expected at most '
        f'{limit}; raise critic.prompt_buckets (the largest is '
        f'{buckets.prompt[-1]}; the model has {critic.config.max_positions} '
        'positions).')
  values = np.zeros(len(inputs), np.float32)
  dispatched = []
  with jax.set_mesh(critic.mesh):
    for indices, tokens, lengths in batching.pad_inputs(
        inputs, _on_mesh(critic, buckets)):
      tokens, lengths = mesh_lib.put_rows((tokens, lengths), critic.mesh)
      dispatched.append((indices, mesh_lib.throttle_cpu_dispatch(
          gradients.values(
              params, tokens, lengths, config=critic.config,
              spec=critic.learner), critic.mesh)))
  for indices, batch_values in dispatched:
    values[indices] = np.asarray(batch_values)[:len(indices)]
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
    spec: policy_lib.LearnerSpec):
  """One optimizer update.

  Args:
    state: donated.
    sums: over all microbatches.
    num_units: [] float32, the divisor of the loss (`losses.num_units`).
    num_tokens: [] float32, the divisor of the metrics.
    config: dimensions of the model.
    spec: switches of the learner.

  Returns:
    state: unchanged if a gradient is not finite.
    metrics: name -> [] float32.
    finite: which gradients and parameters are finite.
  """
  rules = policy_lib.sharding_rules(config, spec)
  sums = mesh_lib.sum_over_data(sums, rules)
  grads = jax.tree.map(lambda g: g / num_units, sums.grads)
  state, metrics, finite = apply_gradients(state, grads, spec.optimizer)
  metrics |= {
      name: total / num_tokens for name, total in sums.metrics.items()}
  metrics['loss'] = sums.loss / num_units
  return mesh_lib.constrain_tree(state, rules), metrics, finite


def apply_gradients(
    state: policy_lib.TrainState, grads: policy_lib.Params,
    spec: policy_lib.OptimizerSpec,
) -> tuple[policy_lib.TrainState, dict[str, jax.Array], Finite]:
  """`apply_update` with a given gradient."""
  updates, opt_state = policy_lib.make_optimizer(spec).update(
      grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  rate = policy_lib.learning_rate(spec)(state.num_updates)
  metrics = {
      'learning_rate': jnp.asarray(rate, jnp.float32),
      'grad_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'param_norm': optax.tree.norm(params),
      'nonfinite_in_a_row': opt_state.notfinite_count.astype(jnp.float32),
  }
  return policy_lib.TrainState(
      params, opt_state, state.num_updates + opt_state.last_finite
  ), metrics, Finite(_are_finite(grads), _are_finite(params))


def _are_finite(tree: Any) -> Any:
  return jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), tree)


def nonfinite_names(are_finite: Any) -> list[str]:
  """Names of the leaves that are False in a field of `Finite`."""
  leaves = checkpoints_lib.named_leaves(are_finite)
  return [name for name, is_finite in leaves.items() if not is_finite]


def check_order(order: str, num_updates: int) -> None:
  """Raises UserError unless `update_policy` accepts the arguments."""
  if order not in UPDATE_ORDERS:
    raise errors.UserError(
        f'train.update_order={order!r} is not one of {list(UPDATE_ORDERS)}.')
  if order != 'mixed' and num_updates > 1:
    raise errors.UserError(
        f'train.updates_per_rollout={num_updates} with update_order={order!r}, '
        "which makes one update per turn; use 1, or update_order='mixed'.")


def _deal(
    groups: Sequence[types.Group], num_updates: int,
    order: str) -> list[Sequence[types.Group]]:
  """The groups of each update."""
  if order == 'mixed':
    return [groups[i::num_updates] for i in range(num_updates)]
  turns = sorted(
      {group.key.turn for group in groups},
      reverse={'first_turn': False, 'last_turn': True}[order])
  return [
      [group for group in groups if group.key.turn == turn] for turn in turns]


def scored_groups(
    loss: losses.LossSpec,
    groups: Sequence[types.Group]) -> list[types.Group]:
  """The groups with a gradient."""
  return [
      group for group in groups
      if loss.has_penalty or np.any(group.advantages)]


def make_batches(
    policy: policy_lib.Policy, groups: Sequence[types.Group],
    buckets: batching.Buckets) -> list[types.TrainBatch]:
  """Microbatches on the devices of the policy."""
  return [
      mesh_lib.put_rows(batch, policy.mesh)
      for batch in batching.make_batches(groups, _on_mesh(policy, buckets))]


def score_reference(
    policy: policy_lib.Policy, reference: model.Params,
    batch: types.TrainBatch) -> jax.Array:
  """Log-probabilities [P, G, T] float32 of the reference model."""
  return gradients.score(
      reference, batch, config=policy.config,
      spec=dataclasses.replace(policy.learner, adapter_scale=None))


def num_units(
    groups: Sequence[types.Group], aggregation: str) -> np.float32:
  """`losses.num_units` of the valid candidates."""
  lengths = [
      len(candidate.completion) * candidate.valid
      for group in groups for candidate in group.candidates]
  return np.float32(losses.num_units(np.array(lengths), aggregation))


def _on_mesh(policy, buckets):
  return buckets.on(mesh_lib.num_data_shards(policy.mesh))


def means(
    name: str, updates: Sequence[tuple[dict[str, jax.Array], Finite]],
) -> dict[str, float]:
  """Waits for updates and averages their metrics.

  Raises UserError if new parameters are not finite, or after `MAX_NONFINITE`
  consecutive updates with non-finite gradients.

  Args:
    name: starts the error message.
    updates: (metrics, finite) of each update.
  """
  fetched = jax.device_get([metrics for metrics, _ in updates])
  for metrics, (_, finite) in zip(fetched, updates):
    if bad := nonfinite_names(finite.params):
      raise errors.UserError(
          f'{name}: an update produced NaN or infinity in '
          f'{checkpoints_lib.listed(bad)}. {_STOPPED}')
    num_nonfinite = int(metrics['nonfinite_in_a_row'])
    if num_nonfinite >= MAX_NONFINITE:
      bad = nonfinite_names(finite.grads)
      raise errors.UserError(
          f'{name}: gradients were not finite in {MAX_NONFINITE} consecutive '
          f'updates, last in {checkpoints_lib.listed(bad)}, with loss '
          f'{metrics["loss"]}. {_STOPPED}')
    if num_nonfinite:
      logging.warning(
          '%s: skipped an update with non-finite gradients and loss %s (%d in '
          'a row; %d stop the run)', name, metrics['loss'], num_nonfinite,
          MAX_NONFINITE)
  averaged = {
      key: float(np.mean([metrics[key] for metrics in fetched]))
      for key in fetched[0]}
  averaged['nonfinite_in_a_row'] = float(fetched[-1]['nonfinite_in_a_row'])
  return averaged
