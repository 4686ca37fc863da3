"""Actor-critic on the trees of MAGRPO: IAC and MAAC (arXiv 2601.21972).

Groups, batches and policy loss are the same as in `magrpo`. Independent critics
(IAC), one per policy, see the prompt of the acting role. A central critic
(MAAC) sees the prompts of all acting roles and of the roles that have acted in
this turn, each after its marker '[Agent k]'. Critics are used only in training.

The value V of a prompt is the baseline of its candidates. Joint action j pays a
role the reward r_j = alpha * team reward + local reward of the role; its return
is the lambda-return of `returns.lambda_returns`. The return of a candidate is
the mean over its joint actions. The target of V is the mean over all joint
actions of the node.

A role bootstraps from its critic if it acts in the next phase, otherwise from
the mean over the roles that do, because they share the team reward. The central
critic has one value for all roles and expects the mean of r_j; a candidate
still receives the local reward of its role.

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
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

CENTRAL = 'central'  # Name and view of the central critic.


@dataclasses.dataclass(frozen=True)
class BoundCritic:
  """A critic with its current parameters.

  `values_fn` maps N inputs, each [S] int32, to values [N] float32.
  """

  name: str
  tokenizer: tokenizer_lib.Tokenizer
  values_fn: Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Critics:
  """The critics of a step; `bound` is keyed by policy, or by `CENTRAL`."""

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
    phase: int) -> dict[str, list[env_api.Message]]:
  """The messages that critics see before a phase of a turn.

  Args:
    environment: defines roles and prompts.
    kind: 'independent' or 'central'.
    state: before the roles of the phase act.
    phase: index into `environment.phases`.

  Returns:
    View -> messages. The views are the roles of the phase, or `CENTRAL`.
  """
  if kind != 'central':
    return {
        role: [*environment.observe(state, role)]
        for role in environment.phases[phase]}
  lines = []
  for role in itertools.chain(*environment.phases[:phase + 1]):
    messages = environment.observe(state, role)
    lines += [
        f'[Agent {environment.roles.index(role) + 1}]',
        *(message['content'] for message in messages)]
  return {CENTRAL: [{'role': 'user', 'content': '\n'.join(lines)}]}


def with_values(
    trees: Sequence[tree_lib.Tree], environment: env_api.Environment,
    policy_map: policies_lib.PolicyMap, rollout: spec_lib.RolloutSpec,
    critics: Critics) -> list[tree_lib.Tree]:
  """Adds returns, baselines and critic examples to trees.

  Candidates receive their returns, groups the values of their prompts, and
  nodes the examples.
  """
  queries = _Queries(environment, policy_map, critics)
  by_tree = [[queries.add_node(node) for node in tree.nodes] for tree in trees]
  evaluation = _Evaluation(queries.values(), queries.inputs, rollout, critics)
  return [
      evaluation.evaluate(tree, nodes) for tree, nodes in zip(trees, by_tree)]


# A distinct input of a critic: (policy or `CENTRAL`, bytes of its token ids).
_Input = tuple[str, bytes]


@dataclasses.dataclass(frozen=True)
class NodeQueries:
  """The critic inputs of a node, by view.

  `successors` [J] holds the prompts after each joint action. It is empty where
  an episode ends.
  """

  prompts: Mapping[str, _Input]
  successors: Sequence[Mapping[str, _Input]]


@dataclasses.dataclass
class _Queries:
  """Collects the distinct inputs of all critics, with their token ids."""

  environment: env_api.Environment
  policy_map: policies_lib.PolicyMap
  critics: Critics
  inputs: dict[_Input, np.ndarray] = dataclasses.field(default_factory=dict)

  def add_node(self, node: tree_lib.Node) -> NodeQueries:
    """Adds all inputs that a node needs."""
    next_phase = (node.phase + 1) % len(self.environment.phases)
    return NodeQueries(
        self._add(node.state, node.phase),
        [{} if node.is_leaf(j) else self._add(step.state, next_phase)
         for j, step in enumerate(node.steps)])

  def values(self) -> dict[_Input, float]:
    """The value of each input, with one call per critic."""
    values = {}
    for name, critic in self.critics.bound.items():
      inputs = [key for key in self.inputs if key[0] == name]
      if inputs:
        found = critic.values_fn([self.inputs[key] for key in inputs])
        values |= zip(inputs, map(float, found))
    return values

  def _add(self, state: env_api.State, phase: int) -> dict[str, _Input]:
    kind, query = self.critics.spec.kind, {}
    for view, messages in critic_prompts(
        self.environment, kind, state, phase).items():
      name = CENTRAL if kind == 'central' else self.policy_map[view]
      ids = self.critics.bound[name].tokenizer.encode_prompt(messages)
      query[view] = name, ids.tobytes()
      self.inputs.setdefault(query[view], ids)
    return query


@dataclasses.dataclass(frozen=True)
class _Evaluation:
  """Turns the values of critics into returns and targets."""

  values: Mapping[_Input, float]
  inputs: Mapping[_Input, np.ndarray]
  rollout: spec_lib.RolloutSpec
  critics: Critics

  def evaluate(
      self, tree: tree_lib.Tree,
      queries: Sequence[NodeQueries]) -> tree_lib.Tree:
    nodes = list(tree.nodes)
    # View -> mean of the known lambda-returns that follow a joint action.
    following: dict[tuple[int, int], dict[str, float]] = {}
    for index in reversed(range(len(nodes))):  # Children before parents.
      node = nodes[index]
      next_returns = [
          following.get((index, j), {}) for j in range(len(node.steps))]
      returns = {
          view: self._lambda_returns(
              node, view, queries[index].successors, next_returns)
          for view in queries[index].prompts}
      following[node.parent, node.joint_action] = {
          view: _finite_mean(x) for view, x in returns.items()}
      nodes[index] = self._with_returns(node, queries[index].prompts, returns)
    return dataclasses.replace(tree, nodes=tuple(nodes))

  def _lambda_returns(
      self, node: tree_lib.Node, view: str,
      successors: Sequence[Mapping[str, _Input]],
      next_returns: Sequence[Mapping[str, float]]) -> np.ndarray:
    """Lambda-returns [J] of a view; nothing follows an empty mapping."""
    return returns_lib.lambda_returns(
        self._rewards(node, view),
        np.array([
            value_for_role(view, self._lookup(query)) if query else 0.0
            for query in successors]),
        np.array([
            value_for_role(view, x) if x else math.nan for x in next_returns]),
        discount=self.rollout.discount,
        gae_lambda=self.critics.spec.gae_lambda)

  def _with_returns(
      self, node: tree_lib.Node, prompts: Mapping[str, _Input],
      returns: Mapping[str, np.ndarray]) -> tree_lib.Node:
    """The node with returns, values of its groups and critic examples."""
    joint_actions = np.array(node.joint_actions)
    node = node.with_returns([
        returns_lib.candidate_returns(
            self._returns_of_role(node, group.key.role, returns),
            joint_actions[:, column], len(group.candidates), 'mean'
            ).astype(np.float32)
        for column, group in enumerate(node.groups)])
    targets = {}  # Roles that share a critic may share an input.
    for view, view_returns in returns.items():
      targets.setdefault(prompts[view], []).extend(view_returns)
    values = self._lookup(prompts)
    return dataclasses.replace(
        node, value_examples=self._examples(targets), groups=tuple(
            dataclasses.replace(group, value=float(
                value_for_role(group.key.role, values)))
            for group in node.groups))

  def _rewards(self, node: tree_lib.Node, view: str) -> np.ndarray:
    """[J] float64 that the critic of a view expects; NaN for failed steps."""
    roles = [view]
    if self.critics.spec.kind == 'central':
      roles = [group.key.role for group in node.groups]
    return np.mean(
        [node.rewards(role, self.rollout.alpha) for role in roles], axis=0)

  def _returns_of_role(
      self, node: tree_lib.Node, role: str,
      returns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Lambda-returns [J] with the local reward of the role."""
    if self.critics.spec.kind == 'independent':
      return returns[role]
    return returns[CENTRAL] - self._rewards(node, CENTRAL) + node.rewards(
        role, self.rollout.alpha)

  def _examples(
      self, targets: Mapping[_Input, Sequence[float]],
  ) -> tuple[types.ValueExample, ...]:
    """One example per input, with the mean of its known targets.

    The squared error of the mean has the mean of the gradients.
    """
    return tuple(
        types.ValueExample(
            self.critics.bound[key[0]].name, self.inputs[key],
            self.values[key], target)
        for key, input_targets in targets.items()
        if np.isfinite(target := _finite_mean(input_targets)))

  def _lookup(self, query: Mapping[str, _Input]) -> dict[str, float]:
    return {view: self.values[key] for view, key in query.items()}


def value_for_role(view: str, values: Mapping[str, float]) -> float:
  """The value of a view if it has one, otherwise the mean of all views."""
  if view in values:
    return values[view]
  return float(np.mean(list(values.values())))


def _finite_mean(numbers: Sequence[float]) -> float:
  """The mean of the finite numbers; NaN without any."""
  finite = np.asarray(numbers)[np.isfinite(numbers)]
  return float(finite.mean()) if len(finite) else math.nan
