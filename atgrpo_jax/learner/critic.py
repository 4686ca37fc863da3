"""A critic: what it starts from, what it says of inputs, how it is updated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import buckets as buckets_lib
from atgrpo_jax.learner import critic_step
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import train_state
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rl import td


@dataclasses.dataclass(frozen=True)
class CriticUpdate:
  """What the updates of one critic tell.

  Attributes:
    values: [N] float, of its examples when the rollout was played.
    targets: [N] float.
    updates: (metrics, what was finite) of each update, still on the devices.
  """

  values: np.ndarray
  targets: np.ndarray
  updates: list[tuple[dict[str, jax.Array], train_state.Finite]]

  def metrics(self, learner: str) -> dict[str, float]:
    """Waits for the updates; raises if they went wrong.

    What belongs to the loss and its gradients are means over the updates; the
    other numbers are of the values before them. `learner` is whose they are, in
    messages.
    """
    metrics = {'examples': len(self.targets)}
    if not self.updates:
      return metrics
    metrics |= update_lib.means(learner, self.updates) | {
        'value_mean': float(np.mean(self.values)),
        'target_mean': float(np.mean(self.targets))}
    explained = td.explained_variance(self.values, self.targets)
    return metrics | (
        {'explained_variance': explained} if np.isfinite(explained) else {})


@dataclasses.dataclass(frozen=True, eq=False)
class Critic:
  """One critic, as the config describes it.

  The trunk is the critic's own, a model that starts from `pretrained`, or that
  of a policy: then the critic is a value head on the hidden states of the
  policy's present parameters, and no gradient of it enters the policy. (The
  shared mode of the authors' code, CoMLRL 1.4.3, adds 0.6 times the gradient of
  the value loss to that of the actor.)

  Attributes:
    name: of the critic.
    policy: the policy whose model it has, or whose devices it is on.
    pretrained: the model folder of the trunk.
    learner: switches of the learner.
    mesh: the devices.
    lengths: that inputs are padded to, ascending (S).
    microbatch_tokens: see `buckets.Buckets`.
    num_updates: passes over the examples of a step, an update each.
  """

  name: str
  policy: str
  pretrained: policy_lib.Pretrained
  learner: critic_step.CriticLearnerSpec
  mesh: jax.sharding.Mesh
  lengths: tuple[int, ...]
  microbatch_tokens: int
  num_updates: int

  @property
  def config(self) -> model.ModelConfig:
    return self.pretrained.config

  @property
  def tokenizer(self) -> tokenizer_lib.Tokenizer:
    return self.pretrained.tokenizer

  def state_template(self) -> train_state.TrainState:
    """Shapes, dtypes and shardings of `initial_state`, without the bytes."""
    params = {
        'head': jax.eval_shape(
            functools.partial(critic_step.init_head, self.config))}
    if self.learner.trains_trunk:
      params['model'] = _trunk(model.param_shapes(self.config))
    return mesh_lib.tree_template(
        jax.eval_shape(self._create_state, params), self.mesh,
        critic_step.rules(self.learner))

  def initial_state(self) -> train_state.TrainState:
    """The critic before its first update; all values are 0."""
    params = {}
    if self.learner.trains_trunk:
      params['model'] = _trunk(policy_lib.load_params(
          self.pretrained, self.mesh, 'float32'))
    create_state = jax.jit(
        lambda params: self._create_state(
            params | {'head': critic_step.init_head(self.config)}),
        donate_argnums=0, out_shardings=jax.tree.map(
            lambda x: x.sharding, self.state_template()))
    return create_state(params)

  def values(
      self, params: Mapping[str, train_state.Params],
      inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Values [N] float32 of inputs of any length.

    Of `params` those of the critic are read, and of the policy whose trunk it
    has.
    """
    found = np.zeros(len(inputs), np.float32)
    dispatched = []
    with jax.set_mesh(self.mesh):
      for indices, tokens, lengths in self._batches(inputs):
        tokens, lengths = mesh_lib.put_rows((tokens, lengths), self.mesh)
        dispatched.append((indices, self._throttled(critic_step.values(
            params[self.name], tokens, lengths,
            policy_params=self._policy_params(params), config=self.config,
            spec=self.learner))))
    for indices, part in dispatched:
      found[indices] = np.asarray(jax.device_get(part))[:len(indices)]
    return found

  def update(
      self, states: Mapping[str, train_state.TrainState],
      examples: Sequence[types.ValueExample],
  ) -> tuple[train_state.TrainState, CriticUpdate]:
    """Dispatches `num_updates` updates, each on all examples of the critic.

    Of `states` its own, which is donated, is read, and that of the policy whose
    trunk it has. The first result is its state after the updates.
    """
    state = states[self.name]
    examples = [
        example for example in examples if example.critic == self.name]
    policy_params = self._policy_params(
        {name: other.params for name, other in states.items()})
    update = CriticUpdate(
        np.array([example.value for example in examples]),
        np.array([example.target for example in examples]), [])
    if not examples:
      return state, update
    with jax.set_mesh(self.mesh):
      batches = [
          mesh_lib.put_rows(batch, self.mesh)
          for batch in self._value_batches(examples)]
      for _ in range(self.num_updates):
        sums = critic_step.zero_sums(state.params, spec=self.learner)
        for batch in batches:
          sums = self._throttled(critic_step.accumulate(
              state.params, sums, batch, policy_params=policy_params,
              config=self.config, spec=self.learner))
        state, metrics, finite = critic_step.apply_update(
            state, sums, np.float32(len(examples)), spec=self.learner)
        update.updates.append((metrics, finite))
    return state, update

  def num_rows(self, length: int) -> int:
    """Inputs of a padded length in one microbatch (B)."""
    return (
        max(1, self.microbatch_tokens // length)
        * mesh_lib.num_data_shards(self.mesh))

  def _batches(
      self, inputs: Sequence[np.ndarray],
  ) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Indices of equally padded inputs, ids [B, S] and lengths [B] of them."""
    by_length = {}
    for index, ids in enumerate(inputs):
      by_length.setdefault(self._padded(len(ids)), []).append(index)
    for length, indices in sorted(by_length.items()):
      num_rows = self.num_rows(length)
      for start in range(0, len(indices), num_rows):
        share = indices[start:start + num_rows]
        yield share, *buckets_lib.pad_prompts(
            [inputs[i] for i in share], num_rows, length)

  def _value_batches(
      self, examples: Sequence[types.ValueExample],
  ) -> Iterator[types.ValueBatch]:
    for indices, inputs, lengths in self._batches(
        [example.inputs for example in examples]):
      columns = np.zeros((3, len(inputs)), np.float32)
      columns[:, :len(indices)] = np.transpose([
          (examples[i].value, examples[i].target, 1.0) for i in indices])
      values, targets, weights = columns
      yield types.ValueBatch(inputs, lengths, values, targets, weights)

  def _padded(self, length: int) -> int:
    limit = min(self.lengths[-1], self.config.max_positions)
    if length > limit:
      raise errors.UserError(
          f'An input of {self.name} has {length} tokens, but only {limit} '
          'fit: raise critic.prompt_buckets (the largest is '
          f'{self.lengths[-1]}; the model has {self.config.max_positions} '
          'positions).')
    return buckets_lib.bucket(length, self.lengths, 'prompt length')

  def _throttled(self, result: Any) -> Any:
    return mesh_lib.throttle_cpu_dispatch(result, self.mesh)

  def _policy_params(
      self, params: Mapping[str, train_state.Params]) -> model.Params | None:
    return None if self.learner.trains_trunk else params[self.policy]

  def _create_state(
      self, params: train_state.Params) -> train_state.TrainState:
    return train_state.create(params, self.learner.optimizer)


def _trunk(params: model.Params) -> model.Params:
  """The parameters without an output head of their own."""
  return {name: leaf for name, leaf in params.items() if name != 'head'}
