"""The updates of one policy on the groups of its roles."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import functools

from absl import logging
import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import finite as finite_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import buckets as buckets_lib
from atgrpo_jax.learner import diagnostics
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.rl import losses

UPDATE_ORDERS = ('mixed', 'first_turn', 'last_turn')

# A run whose gradients are not finite this many times in a row is stopped.
MAX_NONFINITE = 5
_STOPPED = (
    'The step is not saved; start anew in another --workdir, with a smaller '
    'learning_rate or max_grad_norm.')


@dataclasses.dataclass(frozen=True)
class PolicyUpdate:
  """What the updates of one policy tell, still on its devices.

  Attributes:
    num_groups: of its roles.
    num_without_signal: of these, in which no candidate has an advantage.
    updates: (metrics, what was finite) of each update.
  """

  num_groups: int
  num_without_signal: int
  updates: list[tuple[dict[str, jax.Array], train_state.Finite]]

  def metrics(self, learner: str) -> dict[str, float]:
    """Waits for the updates of a policy; raises if they went wrong.

    Of several updates of one rollout, the metrics are means. `learner` is whose
    they are, in messages.
    """
    metrics = {
        'groups': self.num_groups,
        'groups_without_signal': self.num_without_signal}
    if not self.updates:
      logging.warning('%s: no group carries a signal', learner)
      return metrics
    return metrics | means(learner, self.updates)


def update_policy(
    policy: policy_lib.Policy, state: train_state.TrainState,
    groups: Sequence[types.Group], *, num_updates: int, order: str,
    buckets: buckets_lib.Buckets, frozen_params: model.Params | None,
    reference: model.Params | None,
) -> tuple[train_state.TrainState, PolicyUpdate]:
  """Dispatches one or a few updates.

  The loss is the mean over all candidates (Algorithm 1 of arXiv 2510.11062), by
  `loss.aggregation`. Groups without an advantage add nothing to the surrogate,
  so they are computed only where a penalty reads them.

  Args:
    policy: that is trained.
    state: of it; donated.
    groups: of its roles, in one step.
    num_updates: the groups are dealt out to so many updates, if `order` is
      'mixed'.
    order: or an update for each turn: 'first_turn' or 'last_turn' first.
    buckets: static shapes.
    frozen_params: of the model under an adapter; None without one.
    reference: the model of a KL penalty, which alone reads it.
  """
  loss = policy.learner.loss
  update = PolicyUpdate(
      len(groups), sum(not np.any(group.advantages) for group in groups), [])
  static = {'config': policy.config, 'spec': policy.learner}
  throttled = functools.partial(
      mesh_lib.throttle_cpu_dispatch, mesh=policy.mesh)
  with jax.set_mesh(policy.mesh):
    shares = []
    dealt = _shares(groups, num_updates, order)
    for share in dealt:
      scored = _scored(loss, share)
      if not scored:
        continue
      batches = _batches(policy, scored, buckets)
      if len(dealt) > 1:
        batches = [
            dataclasses.replace(b, old_logprobs=throttled(gradients.score(
                state.params, b, frozen_params=frozen_params, **static)))
            for b in batches]
      if loss.kl_estimator != 'none':
        batches = [
            dataclasses.replace(b, reference_logprobs=throttled(
                _score_reference(policy, reference, b))) for b in batches]
      shares.append((
          batches, _num_units(share, loss.aggregation),
          _num_units(scored, 'token_mean')))

    for batches, num_units, num_tokens in shares:
      sums = gradients.zero_sums(state.params, **static)
      for batch in batches:
        sums = throttled(gradients.accumulate(
            state.params, sums, batch, frozen_params=frozen_params, **static))
      state, metrics, finite = gradients.apply_update(
          state, sums, num_units, num_tokens, **static)
      update.updates.append((metrics, finite))
  return state, update


def diagnose_policy(
    policy: policy_lib.Policy, state: train_state.TrainState,
    groups: Sequence[types.Group], *, buckets: buckets_lib.Buckets,
    frozen_params: model.Params | None,
    start: model.Params) -> dict[str, float]:
  """`diagnostics` of the groups that the next update will score.

  `start` is the model that training started from; for the other arguments see
  `update_policy`.
  """
  by_role = collections.defaultdict(list)
  for group in groups:
    by_role[group.key.role].append(group)
  loss = policy.learner.loss
  scored = {
      role: found for role, own in by_role.items()
      if (found := _scored(loss, own))}
  if not scored:
    return {}
  with jax.set_mesh(policy.mesh):
    values = diagnostics.diagnose(
        state.params, {
            role: diagnostics.RoleBatches(
                _batches(policy, own, buckets),
                _num_units(by_role[role], loss.aggregation),
                _num_units(own, 'token_mean'))
            for role, own in scored.items()},
        functools.partial(_score_reference, policy, start),
        frozen_params=frozen_params, mesh=policy.mesh, config=policy.config,
        spec=policy.learner)
  return {f'diagnosis/{metric}': x for metric, x in values.items()}


def check_order(order: str, num_updates: int) -> None:
  """Raises UserError unless `update_policy` can make such updates."""
  if order not in UPDATE_ORDERS:
    raise errors.UserError(
        f'train.update_order={order!r} is not one of {list(UPDATE_ORDERS)}.')
  if order != 'mixed' and num_updates > 1:
    raise errors.UserError(
        f'train.updates_per_rollout={num_updates} with update_order={order!r}, '
        'which makes an update for each turn; leave 1.')


def _shares(
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


def _scored(
    loss: losses.LossSpec,
    groups: Sequence[types.Group]) -> list[types.Group]:
  """The groups whose candidates the loss reads."""
  return [
      group for group in groups
      if loss.has_penalty or np.any(group.advantages)]


def _batches(
    policy: policy_lib.Policy, groups: Sequence[types.Group],
    buckets: buckets_lib.Buckets) -> list[types.TrainBatch]:
  """Microbatches on the devices of the policy."""
  shapes = buckets.on(mesh_lib.num_data_shards(policy.mesh))
  return [
      mesh_lib.put_rows(batch, policy.mesh)
      for batch in batching.make_batches(groups, shapes)]


def _score_reference(
    policy: policy_lib.Policy, params: model.Params,
    batch: types.TrainBatch) -> jax.Array:
  """Log-probabilities [P, G, T] float32 by a whole model."""
  return gradients.score(
      params, batch, config=policy.config,
      spec=dataclasses.replace(policy.learner, adapter_scale=None))


def _num_units(
    groups: Sequence[types.Group], aggregation: str) -> np.float32:
  """`losses.num_units` of all candidates of these groups."""
  lengths = [
      len(candidate.completion) * candidate.valid
      for group in groups for candidate in group.candidates]
  return np.float32(losses.num_units(np.array(lengths), aggregation))


def means(
    learner: str,
    updates: Sequence[tuple[dict[str, jax.Array], train_state.Finite]],
) -> dict[str, float]:
  """Waits for updates; the means of their metrics.

  Raises UserError if an update left parameters that are not finite, or if the
  gradients of too many in a row were not.

  Args:
    learner: which it is, for the error.
    updates: (metrics, what was finite) of each update.
  """
  found = jax.device_get([metrics for metrics, _ in updates])
  metrics = {
      key: float(np.mean([one[key] for one in found])) for key in found[0]}
  for one, (_, finite) in zip(found, updates):
    if bad := finite_lib.names(finite.params):
      raise errors.UserError(
          f'{learner}: an update left NaN or infinity in '
          f'{finite_lib.listed(bad)}. {_STOPPED}')
    if one['nonfinite_in_a_row'] >= MAX_NONFINITE:
      bad = finite_lib.names(finite.grads)
      raise errors.UserError(
          f'{learner}: the gradients of {MAX_NONFINITE} updates in a row were '
          f'not finite, last in {finite_lib.listed(bad)}, with the loss '
          f'{one["loss"]}. {_STOPPED}')
    if one['nonfinite_in_a_row']:
      logging.warning(
          '%s: an update is left out, since its gradients are not finite, with '
          'the loss %s (%d in a row; %d end the run)', learner, one['loss'],
          one['nonfinite_in_a_row'], MAX_NONFINITE)
  metrics['nonfinite_in_a_row'] = float(found[-1]['nonfinite_in_a_row'])
  return metrics
