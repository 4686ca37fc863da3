"""What a critic makes of a rollout: IAC and MAAC with tables for critics.

A joint action pays a role alpha * team reward + local reward. Its return R is
the lambda-return of `rl.td`, and the advantage is R - V(here).

V(next) and R(next) are the role's if it acts next, else the mean of those of
the roles that do. A critic of IAC sees what its role is shown, the critic of
MAAC what all roles are shown. Either learns the mean R of what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses

import numpy as np

from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rl import td
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api
from environments.relay import env as relay

NAMES = ('IAC', 'MAAC')
STEP_SIZE = 0.5  # Of a table, towards the mean of a rollout; it begins with 0.

ValueFn = Callable[[env_api.State, str], float]  # Of a state, for a role.
RoleReturns = dict[str, np.ndarray]  # Role -> [J] float64.


@dataclasses.dataclass(frozen=True)
class CriticSpec:
  """What a critic sees, and how far it is trusted.

  Attributes:
    name: one of `NAMES`.
    gae_lambda: how much of what was sampled later a return has.
    exact: the critic is the true mean return of what it sees, instead of
      learning it.
  """

  name: str
  gae_lambda: float
  exact: bool


@dataclasses.dataclass
class Critic:
  """A table: what is seen -> the mean return from there on."""

  environment: relay.Relay
  spec: CriticSpec
  rollout: spec_lib.RolloutSpec
  table: dict[str, float] = dataclasses.field(default_factory=dict)

  def sees(self, state: relay.State, role: str) -> str:
    """What the critic of a role is shown of a state."""
    roles = [role] if self.spec.name == 'IAC' else self.environment.roles
    return ' | '.join(
        relay.prompt_of(self.environment, state, one) for one in roles)

  def value(self, state: relay.State, role: str) -> float:
    """A `ValueFn`."""
    return self.table.get(self.sees(state, role), 0.0)

  def returns(self, tree: tree_lib.Tree) -> list[RoleReturns]:
    """Of the joint actions of each node."""
    return returns_of(
        tree, self.value, self.environment.phases, alpha=self.rollout.alpha,
        discount=self.rollout.discount, gae_lambda=self.spec.gae_lambda)

  def judge(self, tree: tree_lib.Tree) -> tree_lib.Tree:
    """The tree with R - V(here) for the return of each candidate."""
    return with_returns(
        tree, self.returns(tree), self.value, self.rollout.cross_credit)

  def learn(self, trees: Sequence[tree_lib.Tree]) -> None:
    """A step of the table towards the mean returns of a rollout."""
    found = {}
    for tree in trees:
      for node, role_returns in zip(tree.nodes, self.returns(tree)):
        for role, values in role_returns.items():
          found.setdefault(self.sees(node.state, role), []).append(
              values.mean())
    for seen, values in found.items():
      before = self.table.get(seen, 0.0)
      self.table[seen] = before + STEP_SIZE * (np.mean(values) - before)

  def know(self, policy: relay.Policy) -> None:
    """Puts the true mean returns of a policy into the table."""
    role_returns, sums, weights = {}, {}, {}
    for position, probability, tables in reversed(
        relay.visited(self.environment, policy)):
      joint = relay.joint_probabilities(tables)
      expected = dict.fromkeys(position.roles, 0.0)
      for indices, step in position.steps.items():
        after = {} if step.done else role_returns[step.state]
        for role in position.roles:
          reward = (
              self.rollout.alpha * step.team_reward + step.local_rewards[role])
          expected[role] += joint[indices] * (
              reward + self.rollout.discount * _of_role(role, after))
      role_returns[position.state] = expected
      for role, value in expected.items():
        seen = self.sees(position.state, role)
        sums[seen] = sums.get(seen, 0.0) + probability * value
        weights[seen] = weights.get(seen, 0.0) + probability
    self.table = {seen: sums[seen] / weights[seen] for seen in sums}


def returns_of(
    tree: tree_lib.Tree, value_fn: ValueFn,
    phases: Sequence[Sequence[str]], *, alpha: float, discount: float,
    gae_lambda: float) -> list[RoleReturns]:
  """Of the joint actions of each node; see the top of the file."""
  children = {
      (node.parent, node.joint_action): index
      for index, node in enumerate(tree.nodes)}
  found = [{} for _ in tree.nodes]
  for index, node in reversed(list(enumerate(tree.nodes))):
    next_roles = phases[(node.phase + 1) % len(phases)]
    next_values = [
        {} if node.is_leaf(j) else {
            role: value_fn(step.state, role) for role in next_roles}
        for j, step in enumerate(node.steps)]
    next_returns = [
        {role: following.mean() for role, following in found[
            children[index, j]].items()} if (index, j) in children else None
        for j in range(len(node.steps))]
    role_returns = {
        role: td.lambda_returns(
            alpha * node.team_rewards + [
                step.local_rewards[role] for step in node.steps],
            np.array([_of_role(role, values) for values in next_values]),
            np.array([
                np.nan if returns is None else _of_role(role, returns)
                for returns in next_returns]),
            discount=discount, gae_lambda=gae_lambda)
        for role in phases[node.phase]}
    found[index] = role_returns
  return found


def with_returns(
    tree: tree_lib.Tree, role_returns: Sequence[RoleReturns],
    value_fn: ValueFn, cross_credit: str) -> tree_lib.Tree:
  """The tree with R - V(here) for the return of each candidate."""
  nodes = []
  for node, found in zip(tree.nodes, role_returns):
    joint = np.array(node.joint_actions)
    nodes.append(node.with_returns([
        returns_lib.of_candidates(
            found[group.key.role] - value_fn(node.state, group.key.role),
            joint[:, index], len(group.candidates), cross_credit)
        .astype(np.float32) for index, group in enumerate(node.groups)]))
  return dataclasses.replace(tree, nodes=tuple(nodes))


def _of_role(role: str, values: Mapping[str, float]) -> float:
  """Its own, or the mean of those that act; 0 where nobody does."""
  if role in values or not values:
    return values.get(role, 0.0)
  return sum(values.values()) / len(values)
