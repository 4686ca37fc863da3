"""Critics of `benchmarks.credit` that are tables, asked as all critics are.

`atgrpo_jax.algorithms.actor_critic` says what a critic is shown and what it
learns from a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from environments.relay import env as relay

STEP_SIZE = 0.5  # Of a table, towards the mean target; it begins with 0.


@dataclasses.dataclass
class Critic:
  """What is shown -> the mean return from there on.

  Independent critics share the table: their prompts name the role.
  """

  environment: relay.Relay
  spec: spec_lib.CriticSpec
  rollout: spec_lib.RolloutSpec
  table: dict[str, float] = dataclasses.field(default_factory=dict)

  def critics(self) -> actor_critic.Critics:
    """As a rollout asks them."""
    judge = actor_critic.BoundCritic('table', self, self.values)
    return actor_critic.Critics(self.spec, dict.fromkeys(
        [actor_critic.CENTRAL, *self.environment.roles], judge))

  def encode_prompt(self, messages: Sequence[env_api.Message]) -> np.ndarray:
    """[S] uint8: of a table, the text itself."""
    return np.frombuffer(_key(messages).encode(), np.uint8)

  def values(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """[N] of what was encoded; 0 where nothing is known."""
    return np.array([
        self.table.get(bytes(ids).decode(), 0.0) for ids in inputs])

  def learn(self, trees: Sequence[tree_lib.Tree]) -> None:
    """A step of the table towards the mean targets of a rollout."""
    targets = {}
    for example in tree_lib.value_examples_of(trees):
      targets.setdefault(bytes(example.inputs).decode(), []).append(
          example.target)
    for key, found in targets.items():
      before = self.table.get(key, 0.0)
      self.table[key] = before + STEP_SIZE * (np.mean(found) - before)

  def know(self, policy: relay.Policy) -> None:
    """Puts the true mean returns of a policy into the table."""
    environment, found = self.environment, _Means()
    expected = {}  # State -> {view: mean return}.
    for position, probability, tables in reversed(
        relay.visited(environment, policy)):
      phase = environment.phases.index(position.roles)
      joint = relay.joint_probabilities(tables)
      expected[position.state] = {}
      for indices, step in position.steps.items():
        after = {} if step.done else expected[step.state]
        texts = {
            role: environment.answers(role)[index]
            for role, index in zip(position.roles, indices)}
        for view, messages in actor_critic.critic_prompts(
            environment, self.spec.kind, position.state, phase,
            texts if self.spec.form == 'q' else None).items():
          return_ = self._reward(step, view) + self.rollout.discount * (
              after[view] if view in after
              else np.mean(list(after.values()) or [0.0]))
          share = joint[indices]
          found.add(_key(messages), return_, probability * share)
          expected[position.state][view] = (
              expected[position.state].get(view, 0.0) + share * return_)
    self.table = found.means()

  def _reward(self, step: env_api.Step, view: str) -> float:
    """That the critic of a view expects."""
    local = step.local_rewards
    return self.rollout.alpha * step.team_reward + (
        np.mean(list(local.values())) if view == actor_critic.CENTRAL
        else local[view])


class _Means:
  """Of numbers with weights, by key."""

  def __init__(self):
    self._sums, self._weights = {}, {}

  def add(self, key: str, number: float, weight: float) -> None:
    self._sums[key] = self._sums.get(key, 0.0) + weight * number
    self._weights[key] = self._weights.get(key, 0.0) + weight

  def means(self) -> dict[str, float]:
    return {
        key: total / self._weights[key] for key, total in self._sums.items()
        if self._weights[key]}


def _key(messages: Sequence[env_api.Message]) -> str:
  return '\n'.join(message['content'] for message in messages)
