"""Actor-critic on the trees of MAGRPO: IAC and MAAC (arXiv 2601.21972).

Groups, batches and policy loss are the same as in `magrpo`. Independent critics
(IAC), one per policy, see the prompt of the acting role. A central critic
(MAAC) sees the prompts of all acting roles and of the roles that have acted in
this turn, each after its marker '[Agent k]'. Critics are used only in training.

Joint action j pays a role r_j = alpha * team reward + local reward of the role.
The central critic has one value for all roles and expects the mean of r_j.

Form v. The value V of a prompt is the baseline of its candidates. The return of
a joint action is its lambda-return (`rl.td`). The return of a candidate is the
mean over its joint actions; the target of V is the mean over all joint actions
of the node.

Form q. The return of a candidate is the mean value Q of its joint actions, and
the baseline comes from its group. With all combinations as joint actions and
the baseline 'mean' this is a Monte Carlo estimate of COMA's counterfactual
baseline (arXiv 1705.08926). The target of Q is r_j + discount * mean Q of the
following joint actions.

A role bootstraps from its critic if it acts in the next phase, otherwise from
the mean over the roles that do, because they share the team reward. With a
central critic, a candidate still receives the local reward of its role.

Deviations from the authors' code, CoMLRL 1.4.3:
1. Several joint actions of a state may be continued.
2. A critic makes one update per state; theirs updates a shared critic once per
   agent.
3. Critics expect local rewards, which are therefore summed over turns, unlike
   in 'return_to_go'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import math

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rl import td
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

CENTRAL = 'central'  # Name and view of the central critic.


@dataclasses.dataclass(frozen=True)
class BoundCritic:
  """A critic with its current parameters.

  Attributes:
    name: key of the critic.
    tokenizer: encodes its inputs.
    values_fn: inputs, each [S] int32 -> values [N] float32.
  """

  name: str
  tokenizer: tokenizer_lib.Tokenizer
  values_fn: Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Critics:
  """The critics of a step.

  Attributes:
    spec: the switches.
    bound: policy, or `CENTRAL` -> critic.
  """

  spec: spec_lib.CriticSpec
  bound: Mapping[str, BoundCritic]


def make_critics(
    spec: spec_lib.CriticSpec,
    policies: Mapping[str, policy_lib.Policy]) -> dict[str, policy_lib.Policy]:
  """Critics by name, such as 'critic/central'; empty without critics.

  A critic starts from the base model of its policy, on the same devices. The
  central critic follows the first policy.
  """
  if spec.kind == 'none':
    return {}
  if spec.kind == 'central':
    policies = {CENTRAL: next(iter(policies.values()))}
  return {
      f'critic/{key}': dataclasses.replace(
          policy, name=f'critic/{key}', trained='all', lora=None, adapter=None,
          learner=dataclasses.replace(
              policy.learner, loss=None, adapter_scale=None, value_head=True,
              optimizer=dataclasses.replace(
                  policy.learner.optimizer, learning_rate=spec.learning_rate)))
      for key, policy in policies.items()}


def critic_buckets(
    spec: spec_lib.CriticSpec, buckets: batching.Buckets) -> batching.Buckets:
  """The static shapes of critics."""
  return dataclasses.replace(
      buckets, prompt=spec.prompt_buckets or buckets.prompt)


def bind_critics(
    spec: spec_lib.CriticSpec, critics: Mapping[str, policy_lib.Policy],
    params: Mapping[str, policy_lib.Params],
    buckets: batching.Buckets) -> Critics | None:
  """The critics with their current parameters; None without critics."""
  if not critics:
    return None
  return Critics(spec, {
      name.removeprefix('critic/'): BoundCritic(
          name, critic.tokenizer, functools.partial(
              update_lib.critic_values, critic, params[name], buckets=buckets))
      for name, critic in critics.items()})


def critic_prompts(
    environment: env_api.Environment, kind: str, state: env_api.State,
    phase: int, texts: Mapping[str, str] | None = None,
) -> dict[str, list[env_api.Message]]:
  """The messages that critics see before a phase of a turn.

  Args:
    environment: defines roles and prompts.
    kind: 'independent' or 'central'.
    state: before the roles of the phase act.
    phase: index into `environment.phases`.
    texts: role -> its candidate, for form q.

  Returns:
    View -> messages. The views are the roles of the phase, or `CENTRAL`.
  """
  texts = texts or {}
  if kind == 'central':
    lines = []
    for role in itertools.chain(*environment.phases[:phase + 1]):
      number = environment.roles.index(role) + 1
      messages = environment.observe(state, role)
      lines += [f'[Agent {number}]', *(m['content'] for m in messages)]
      if role in texts:
        lines += [f'[Agent {number} answers]', texts[role]]
    return {CENTRAL: [{'role': 'user', 'content': '\n'.join(lines)}]}
  prompts = {}
  for role in environment.phases[phase]:
    prompts[role] = [*environment.observe(state, role)]
    if role in texts:
      prompts[role].append({'role': 'assistant', 'content': texts[role]})
  return prompts


def with_values(
    trees: Sequence[tree_lib.Tree], environment: env_api.Environment,
    policy_map: policies_lib.PolicyMap, rollout: spec_lib.RolloutSpec,
    critics: Critics) -> list[tree_lib.Tree]:
  """Adds returns, baselines and critic examples to trees.

  Candidates receive their returns, groups the values of their prompts (form v),
  and nodes the examples.
  """
  queries = _Queries(environment, policy_map, critics)
  by_tree = [[queries.add_node(node) for node in tree.nodes] for tree in trees]
  values = queries.values()
  return [
      _Evaluation(
          tree, nodes, queries.inputs, values, rollout, critics.spec).tree()
      for tree, nodes in zip(trees, by_tree)]


# View -> index of its input.
_Query = dict[str, int]


@dataclasses.dataclass(frozen=True)
class NodeQueries:
  """The critic inputs of a node.

  Attributes:
    prompts: the prompts of the node; empty for form q.
    successors: [J] the prompts after each joint action, empty at the end of an
      episode; no entries for form q.
    actions: [J] the prompts with each joint action; no entries for form v.
  """

  prompts: _Query
  successors: list[_Query]
  actions: list[_Query]


class _Queries:
  """Collects the distinct inputs of all critics."""

  def __init__(
      self, environment: env_api.Environment,
      policy_map: policies_lib.PolicyMap, critics: Critics):
    self.inputs: list[tuple[BoundCritic, np.ndarray]] = []
    self._environment = environment
    self._policy_map = policy_map
    self._critics = critics
    self._indices: dict[tuple[str, bytes], int] = {}

  def add_node(self, node: tree_lib.Node) -> NodeQueries:
    """Adds all inputs that a node needs."""
    if self._critics.spec.form == 'q':
      return NodeQueries({}, [], [
          self._add(node.state, node.phase, {
              group.key.role: group.candidates[candidate].text
              for group, candidate in zip(node.groups, joint_action)})
          for joint_action in node.joint_actions])
    next_phase = (node.phase + 1) % len(self._environment.phases)
    return NodeQueries(
        self._add(node.state, node.phase),
        [{} if node.is_leaf(j) else self._add(step.state, next_phase)
         for j, step in enumerate(node.steps)], [])

  def values(self) -> np.ndarray:
    """Values [N] float64 of all inputs, with one call per critic."""
    values = np.zeros(len(self.inputs))
    by_critic = {}
    for index, (critic, _) in enumerate(self.inputs):
      by_critic.setdefault(critic.name, []).append(index)
    for indices in by_critic.values():
      critic = self.inputs[indices[0]][0]
      values[indices] = critic.values_fn([self.inputs[i][1] for i in indices])
    return values

  def _add(self, state, phase, texts=None):
    kind, bound = self._critics.spec.kind, self._critics.bound
    query = {}
    for view, messages in critic_prompts(
        self._environment, kind, state, phase, texts).items():
      critic = bound[view if kind == 'central' else self._policy_map[view]]
      ids = critic.tokenizer.encode_prompt(messages)
      index = self._indices.setdefault(
          (critic.name, ids.tobytes()), len(self.inputs))
      if index == len(self.inputs):
        self.inputs.append((critic, ids))
      query[view] = index
    return query


@dataclasses.dataclass(frozen=True)
class _Evaluation:
  """Turns values into the returns and targets of one tree."""

  source: tree_lib.Tree
  queries: Sequence[NodeQueries]
  inputs: Sequence[tuple[BoundCritic, np.ndarray]]
  values: np.ndarray
  rollout: spec_lib.RolloutSpec
  spec: spec_lib.CriticSpec

  def tree(self) -> tree_lib.Tree:
    children = {
        (node.parent, node.joint_action): index
        for index, node in enumerate(self.source.nodes)}
    nodes = list(self.source.nodes)
    # Per node: view -> lambda-returns [J]. Children come before their parents.
    returns: list[dict[str, np.ndarray]] = [{} for _ in nodes]
    for index in reversed(range(len(nodes))):
      successors = [
          children.get((index, j)) for j in range(len(nodes[index].steps))]
      if self.spec.form == 'v':
        returns[index] = self._lambda_returns(index, successors, returns)
        nodes[index] = self._with_baseline(index, returns[index])
      else:
        nodes[index] = self._with_action_values(
            index, self._action_targets(index, successors))
    return dataclasses.replace(self.source, nodes=tuple(nodes))

  def _lambda_returns(self, index, successors, returns):
    """View -> lambda-returns [J] of a node."""
    node, queries = self.source.nodes[index], self.queries[index]
    node_returns = {}
    for view in queries.prompts:
      next_values = np.array([
          value_for_role(view, self._lookup(query)) if query else 0.0
          for query in queries.successors])
      next_returns = np.array([
          math.nan if child is None else value_for_role(view, {
              other: _finite_mean(x) for other, x in returns[child].items()})
          for child in successors])
      node_returns[view] = td.lambda_returns(
          self._rewards(node, view), next_values, next_returns,
          discount=self.rollout.discount, gae_lambda=self.spec.gae_lambda)
    return node_returns

  def _with_baseline(self, index, returns):
    """Form v: the node with returns and values of its groups."""
    node, queries = self.source.nodes[index], self.queries[index]
    node = self._with_returns(node, {
        group.key.role: self._returns_of_role(node, group.key.role, returns)
        for group in node.groups})
    targets = {}  # Roles that share a critic may share an input.
    for view, view_returns in returns.items():
      targets.setdefault(queries.prompts[view], []).extend(view_returns)
    values = self._lookup(queries.prompts)
    return dataclasses.replace(
        node, value_examples=self._examples(targets), groups=tuple(
            dataclasses.replace(group, value=float(
                value_for_role(group.key.role, values)))
            for group in node.groups))

  def _action_targets(self, index, successors):
    """Form q: index of an input -> targets of its joint actions."""
    node, queries = self.source.nodes[index], self.queries[index]
    targets = {}
    for view in queries.actions[0]:
      rewards = self._rewards(node, view)
      for j, child in enumerate(successors):
        target = rewards[j]
        if child is not None:
          target += self.rollout.discount * np.mean([
              value_for_role(view, self._lookup(query))
              for query in self.queries[child].actions])
        targets.setdefault(queries.actions[j][view], []).append(target)
    return targets

  def _with_action_values(self, index, targets):
    """Form q: the node with the returns of its candidates."""
    node, queries = self.source.nodes[index], self.queries[index]
    failed = np.array([node.failed(j) for j in range(len(node.steps))])
    returns = {
        group.key.role: np.where(failed, math.nan, np.array([
            value_for_role(group.key.role, self._lookup(query))
            for query in queries.actions]))
        for group in node.groups}
    return dataclasses.replace(
        self._with_returns(node, returns),
        value_examples=self._examples(targets))

  def _rewards(self, node, view):
    """[J] float64 that the critic of a view expects; NaN for failed steps."""
    roles = (
        [group.key.role for group in node.groups] if view == CENTRAL
        and self.spec.kind == 'central' else [view])
    return np.mean(
        [node.rewards(role, self.rollout.alpha) for role in roles], axis=0)

  def _returns_of_role(self, node, role, returns):
    """Lambda-returns [J] with the local reward of the role."""
    if self.spec.kind == 'independent':
      return returns[role]
    return returns[CENTRAL] - self._rewards(node, CENTRAL) + node.rewards(
        role, self.rollout.alpha)

  def _with_returns(self, node, returns):
    """The node whose candidates have the means of `returns` {role: [J]}."""
    joint_actions = np.array(node.joint_actions)
    return node.with_returns([
        returns_lib.candidate_returns(
            returns[group.key.role], joint_actions[:, column],
            len(group.candidates), 'mean').astype(np.float32)
        for column, group in enumerate(node.groups)])

  def _examples(self, targets: Mapping[int, Sequence[float]]):
    """One example per input, with the mean of its known targets.

    The squared error of the mean has the mean of the gradients.
    """
    return tuple(
        types.ValueExample(
            self.inputs[index][0].name, self.inputs[index][1],
            float(self.values[index]), float(target))
        for index, input_targets in targets.items()
        if np.isfinite(target := _finite_mean(input_targets)))

  def _lookup(self, query: _Query) -> dict[str, float]:
    return {view: self.values[index] for view, index in query.items()}


def value_for_role(view: str, values: Mapping[str, float]) -> float:
  """The value of a view if it has one, otherwise the mean of all views."""
  if view in values:
    return values[view]
  return float(np.mean(list(values.values())))


def _finite_mean(numbers: Sequence[float]) -> float:
  """The mean of the finite numbers; NaN without any."""
  finite = np.asarray(numbers)[np.isfinite(numbers)]
  return float(finite.mean()) if len(finite) else math.nan
