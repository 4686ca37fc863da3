"""Actor-critic on the trees of MAGRPO: IAC and MAAC (arXiv 2601.21972).

Groups, batches and policy loss are the same as in `magrpo`. Independent critics
(IAC), one per policy, see the prompt of the acting role. A central critic
(MAAC) sees the prompts of all acting roles and of the roles that have acted in
this turn, each after its marker '[Agent k]'. Critics are used only in training.

The value V of a prompt is the baseline of its candidates. The return of a
candidate is the mean over its joint actions of `returns.lambda_returns`. The
target of V is the mean over all joint actions of the node.

A role bootstraps from its critic if it acts in the next phase, otherwise from
the mean over the roles that do, because they share the team reward. The central
critic expects the mean local reward of the roles; a candidate still receives
that of its role.

Deviations from the authors' code, CoMLRL 1.4.3:
1. Several joint actions of a state may be continued.
2. A critic makes one update per state; theirs updates a shared critic once per
   agent.
3. Critics expect local rewards, which are therefore summed over turns, unlike
   in 'return_to_go'.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import math

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

CENTRAL = 'central'  # Name and view of the central critic.
# View -> (policy or `CENTRAL`, token ids [S] int32).
_Inputs = dict[str, tuple[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class BoundCritic:
  """A critic with its current parameters.

  `values_fn` maps N inputs, each [S] int32 with S up to `max_input_tokens`, to
  values [N] float32.
  """

  name: str
  tokenizer: tokenizer_lib.Tokenizer
  max_input_tokens: int
  values_fn: Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Critics:
  """The critics of a step; `bound` is keyed by policy, or by `CENTRAL`."""

  spec: spec_lib.CriticSpec
  bound: Mapping[str, BoundCritic]
  environment: env_api.Environment
  policy_map: policies_lib.PolicyMap

  def inputs(
      self, task_id: str, position: contract.Position,
      state: env_api.State) -> _Inputs:
    """What the critics see before a phase.

    The views are the roles of the phase, or `CENTRAL` for a central critic.
    """
    observe = functools.partial(
        contract.observe, self.environment, state, task_id=task_id,
        turn=position.turn)
    phases = self.environment.phases
    if self.spec.kind == 'central':
      lines = []
      for role in itertools.chain(*phases[:position.phase + 1]):
        messages = observe(role)
        lines += [
            f'[Agent {self.environment.roles.index(role) + 1}]',
            *map(env_api.text_of, messages)]
      prompts = {CENTRAL: (
          CENTRAL, [{'role': 'user', 'content': '\n'.join(lines)}])}
    else:
      prompts = {
          role: (self.policy_map[role], observe(role))
          for role in phases[position.phase]}
    return {
        view: (name, self.bound[name].tokenizer.encode_prompt(messages))
        for view, (name, messages) in prompts.items()}

  def fit(self, inputs: _Inputs) -> bool:
    return all(
        len(ids) <= self.bound[name].max_input_tokens
        for name, ids in inputs.values())

  def check_first_inputs(self, tasks: Sequence[env_api.Task]) -> None:
    """Raises UserError unless the first inputs of the critics fit.

    Longer inputs of later turns end their episodes, see `fit`.
    """
    for task in tasks:
      state = contract.reset(self.environment, task)
      for name, ids in self.inputs(
          task['task_id'], contract.Position(), state).values():
        limit = self.bound[name].max_input_tokens
        if len(ids) > limit:
          raise errors.UserError(
              f'The first input of critic/{name} in task {task["task_id"]!r} '
              f'has {len(ids)} tokens; at most {limit} fit. Raise '
              'critic.prompt_buckets, up to the positions of the model.')


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


def with_values(
    trees: Sequence[tree_lib.Tree], rollout: spec_lib.RolloutSpec,
    critics: Critics) -> list[tree_lib.Tree]:
  """Adds returns, baselines and critic examples to trees.

  Candidates receive their returns, groups the values of their prompts, and
  nodes the examples.
  """
  evaluation = _Evaluation(rollout, critics)
  queries = [
      [evaluation.add_node(node) for node in tree.nodes] for tree in trees]
  evaluation.compute_values()
  return [
      evaluation.evaluate(tree, nodes) for tree, nodes in zip(trees, queries)]


# A distinct input of a critic: (policy or `CENTRAL`, bytes of its token ids).
_Input = tuple[str, bytes]
_Query = dict[str, _Input]  # View -> input.


@dataclasses.dataclass
class _Evaluation:
  """Turns the values of critics into returns, baselines and targets.

  Every distinct input is evaluated once, with one call per critic.
  """

  rollout: spec_lib.RolloutSpec
  critics: Critics
  inputs: dict[_Input, np.ndarray] = dataclasses.field(default_factory=dict)
  values: dict[_Input, float] = dataclasses.field(default_factory=dict)

  def add_node(self, node: tree_lib.Node) -> list[_Query]:
    """Adds the inputs before a node, and after each of its joint actions.

    The query after a joint action is empty if its episode ends, or would end
    because the inputs are too long.
    """
    task_id = node.groups[0].key.task_id
    position = contract.Position(node.turn, node.phase)
    return [
        self._add(task_id, position, node.state),
        *({} if node.is_leaf(j) else self._add(
            task_id, contract.next_position(
                self.critics.environment, position, step, task_id=task_id),
            step.state)
          for j, step in enumerate(node.steps))]

  def compute_values(self) -> None:
    for name, critic in self.critics.bound.items():
      inputs = [key for key in self.inputs if key[0] == name]
      if inputs:
        values = critic.values_fn([self.inputs[key] for key in inputs])
        self.values |= zip(inputs, map(float, values))

  def evaluate(
      self, tree: tree_lib.Tree,
      queries: Sequence[list[_Query]]) -> tree_lib.Tree:
    nodes = list(tree.nodes)
    # View -> mean of the known lambda-returns that follow a joint action.
    following: dict[tuple[int, int], dict[str, float]] = {}
    for index in reversed(range(len(nodes))):  # Children before parents.
      node, (prompts, *successors) = nodes[index], queries[index]
      next_values = [self._values_of(query) for query in successors]
      next_returns = [
          following.get((index, j), {}) for j in range(len(node.steps))]
      returns = {
          view: returns_lib.lambda_returns(
              self._rewards(node, view),
              np.array([value_for_role(view, x, 0.0) for x in next_values]),
              np.array([
                  value_for_role(view, x, math.nan) for x in next_returns]),
              discount=self.rollout.discount,
              gae_lambda=self.critics.spec.gae_lambda)
          for view in prompts}
      following[node.parent, node.joint_action] = {
          view: _finite_mean(x) for view, x in returns.items()}
      nodes[index] = self._with_returns(node, prompts, returns)
    return dataclasses.replace(tree, nodes=tuple(nodes))

  def _add(
      self, task_id: str, position: contract.Position,
      state: env_api.State) -> _Query:
    query = {}
    try:
      inputs = self.critics.inputs(task_id, position, state)
    except errors.TemplateError:  # No episode continues there.
      return {}
    for view, (name, ids) in inputs.items() if self.critics.fit(inputs) else ():
      query[view] = name, ids.tobytes()
      self.inputs.setdefault(query[view], ids)
    return query

  def _values_of(self, query: _Query) -> dict[str, float]:
    return {view: self.values[key] for view, key in query.items()}

  def _rewards(self, node: tree_lib.Node, view: str) -> np.ndarray:
    """[J] float64 that the critic of a view expects; NaN for failed steps."""
    roles = [view]
    if self.critics.spec.kind == 'central':
      roles = [group.key.role for group in node.groups]
    return np.mean(
        [node.rewards(role, self.rollout.alpha) for role in roles], axis=0)

  def _with_returns(
      self, node: tree_lib.Node, prompts: _Query,
      returns: dict[str, np.ndarray]) -> tree_lib.Node:
    """The node with returns, values of its groups and critic examples.

    `returns` maps views to lambda-returns [J].
    """
    candidate_returns = []
    for column, group in enumerate(node.groups):
      role = group.key.role
      if self.critics.spec.kind == 'independent':
        role_returns = returns[role]
      else:  # Replaces the mean of the local rewards by that of the role.
        role_returns = returns[CENTRAL] - self._rewards(
            node, CENTRAL) + node.rewards(role, self.rollout.alpha)
      candidate_returns.append(returns_lib.candidate_returns(
          role_returns, np.array(node.joint_actions)[:, column],
          len(group.candidates)).astype(np.float32))
    targets = {}  # Roles that share a critic may share an input.
    for view, view_returns in returns.items():
      targets.setdefault(prompts[view], []).extend(view_returns)
    # The squared error of the mean target has the mean of the gradients.
    examples = [
        types.ValueExample(
            self.critics.bound[key[0]].name, self.inputs[key],
            self.values[key], _finite_mean(input_targets))
        for key, input_targets in targets.items()]
    values = self._values_of(prompts)
    node = node.with_returns(candidate_returns)
    return dataclasses.replace(
        node, value_examples=tuple(
            x for x in examples if math.isfinite(x.target)),
        groups=tuple(
            dataclasses.replace(
                group, value=value_for_role(group.key.role, values))
            for group in node.groups))


def value_for_role(
    view: str, values: Mapping[str, float], default: float = 0.0) -> float:
  """The value of a view if it has one, otherwise the mean of all views.

  `default` is the value without any views.
  """
  if view in values or not values:
    return values.get(view, default)
  return float(np.mean(list(values.values())))


def _finite_mean(numbers: Sequence[float]) -> float:
  """The mean of the finite numbers; NaN without any."""
  finite = np.asarray(numbers)[np.isfinite(numbers)]
  return float(finite.mean()) if len(finite) else math.nan
