"""Actor-critic over the trees of MAGRPO: IAC and MAAC.

The controls of arXiv 2601.21972, on the groups, batches and policy loss of
`magrpo`. Independent critics (IAC), one for each policy, see the prompt of the
role that acts; a central one (MAAC) sees the prompts of all roles that act, and
of those that have acted in this turn, each behind its marker '[Agent k]'. Only
training asks a critic: a policy sees its own prompt alone.

A joint action j pays a role r_j = alpha * team reward + local reward of the
role; the central critic, which has one value for all, expects their mean.

Form v. The value V of a prompt is the baseline of its candidates. The return of
a joint action is its lambda-return (`rl.td`), that of a candidate the mean over
its joint actions, and the mean over all joint actions of a node is the target
of V.

Form q. The return of a candidate is the mean value Q over its joint actions,
and the baseline is one of the group's: with all combinations as joint actions
and the baseline 'mean', a Monte Carlo estimate of the counterfactual baseline
of COMA (arXiv 1705.08926). The target of Q is r_j + discount * the mean of Q
over the joint actions that follow.

What follows a role's action is in the eyes of the role's own critic where it
acts in the next phase, else the mean over the roles that act there: the reward
of the team is shared. A candidate is paid its own local reward of its step,
also where the central critic says what follows.

Deviations from the authors' code, CoMLRL 1.4.3: several joint actions of a
state may go on; the critic learns once from each state (there a shared one is
stepped for every agent); local rewards, if the environment has any, are part of
what a critic expects, and so are summed over turns, unlike in 'return_to_go'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rl import td
from atgrpo_jax.rollout import policy_map as policy_map_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api

CENTRAL = 'central'  # Name of the central critic.


@dataclasses.dataclass(frozen=True)
class Judge:
  """One critic at its present parameters.

  Attributes:
    name: of the critic.
    tokenizer: that its inputs are written with.
    values_fn: inputs, each [S] int32 -> values [N] float32.
  """

  name: str
  tokenizer: tokenizer_lib.Tokenizer
  values_fn: Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Critics:
  """What judges the trees of a step.

  Attributes:
    spec: the switches.
    judges: of each policy, or of `CENTRAL`.
  """

  spec: spec_lib.CriticSpec
  judges: Mapping[str, Judge]


class _Inputs:
  """What critics are asked, each input once."""

  def __init__(self):
    self._indices: dict[tuple[str, bytes], int] = {}
    self.asked: list[tuple[Judge, np.ndarray]] = []

  def add(self, judge: Judge, messages: Sequence[env_api.Message]) -> int:
    """The index of an input among `asked`."""
    ids = judge.tokenizer.encode_prompt(messages)
    index = self._indices.setdefault(
        (judge.name, ids.tobytes()), len(self.asked))
    if index == len(self.asked):
      self.asked.append((judge, ids))
    return index

  def values(self) -> np.ndarray:
    """[N] float64 of all that was asked."""
    values = np.zeros(len(self.asked))
    by_judge = {}
    for index, (judge, _) in enumerate(self.asked):
      by_judge.setdefault(judge.name, []).append(index)
    for indices in by_judge.values():
      judge = self.asked[indices[0]][0]
      values[indices] = judge.values_fn([self.asked[i][1] for i in indices])
    return values


def shown(
    environment: env_api.Environment, kind: str, state: env_api.State,
    phase: int, texts: Mapping[str, str] | None = None,
) -> dict[str, list[env_api.Message]]:
  """What critics are shown of a state before a phase of a turn.

  Args:
    environment: of the state.
    kind: 'independent' or 'central'.
    state: before the roles of the phase act.
    phase: its number in `environment.phases`.
    texts: role -> what it answers, of form q.

  Returns:
    View -> messages. Each role of the phase is a view of independent critics,
    `CENTRAL` that of a central one.
  """
  texts = texts or {}
  if kind == 'central':
    parts = []
    for role in itertools.chain(*environment.phases[:phase + 1]):
      number = environment.roles.index(role) + 1
      messages = environment.observe(state, role)
      parts += [f'[Agent {number}]', *(m['content'] for m in messages)]
      if role in texts:
        parts += [f'[Agent {number} answers]', texts[role]]
    return {CENTRAL: [{'role': 'user', 'content': '\n'.join(parts)}]}
  found = {}
  for role in environment.phases[phase]:
    found[role] = [*environment.observe(state, role)]
    if role in texts:
      found[role].append({'role': 'assistant', 'content': texts[role]})
  return found


# What a critic sees at a node, for each view.
_Asked = dict[str, int]


@dataclasses.dataclass(frozen=True)
class _AskedNode:
  """Indices among `_Inputs.asked` of a node.

  Attributes:
    here: of the node's prompts; of form q nothing.
    following: [J] of the prompts behind each joint action; nothing where the
      episode is over.
    acted: [J] of the node's prompts and what was answered; of form v nothing.
  """

  here: _Asked
  following: list[_Asked]
  acted: list[_Asked]


@dataclasses.dataclass(frozen=True)
class _View:
  """How the critics of a run see an environment."""

  environment: env_api.Environment
  policy_map: policy_map_lib.PolicyMap
  critics: Critics
  inputs: _Inputs

  def ask(
      self, state: env_api.State, phase: int,
      texts: Mapping[str, str] | None = None) -> _Asked:
    """The inputs of a state, or of a state and what its roles answered."""
    kind, judges = self.critics.spec.kind, self.critics.judges
    return {
        view: self.inputs.add(
            judges[view if kind == 'central' else self.policy_map[view]],
            messages)
        for view, messages in shown(
            self.environment, kind, state, phase, texts).items()}

  def ask_node(self, node: tree_lib.Node) -> _AskedNode:
    if self.critics.spec.form == 'q':
      return _AskedNode({}, [], [
          self.ask(node.state, node.phase, {
              group.key.role: group.candidates[candidate].text
              for group, candidate in zip(node.groups, joint_action)})
          for joint_action in node.joint_actions])
    next_phase = (node.phase + 1) % len(self.environment.phases)
    return _AskedNode(
        self.ask(node.state, node.phase),
        [{} if node.is_leaf(j) else self.ask(step.state, next_phase)
         for j, step in enumerate(node.steps)], [])


def with_values(
    trees: Sequence[tree_lib.Tree], environment: env_api.Environment,
    policy_map: policy_map_lib.PolicyMap, rollout: spec_lib.RolloutSpec,
    critics: Critics) -> list[tree_lib.Tree]:
  """The trees with what critics say of them, and what critics learn there.

  Candidates get their returns, groups the values of their prompts (form v), and
  nodes the examples.
  """
  view = _View(environment, policy_map, critics, _Inputs())
  asked = [[view.ask_node(node) for node in tree.nodes] for tree in trees]
  values = view.inputs.values()
  return [
      _Judged(tree, nodes, view.inputs.asked, values, rollout,
              critics.spec).tree()
      for tree, nodes in zip(trees, asked)]


@dataclasses.dataclass(frozen=True)
class _Judged:
  """A tree and what the critics say of it."""

  source: tree_lib.Tree
  nodes: Sequence[_AskedNode]
  asked: Sequence[tuple[Judge, np.ndarray]]
  values: np.ndarray
  rollout: spec_lib.RolloutSpec
  spec: spec_lib.CriticSpec

  def tree(self) -> tree_lib.Tree:
    children = {
        (node.parent, node.joint_action): index
        for index, node in enumerate(self.source.nodes)}
    # Of each node and view, targets [J] of its joint actions; children first.
    targets: list[dict[str, np.ndarray]] = [{} for _ in self.nodes]
    judged = list(self.source.nodes)
    for index in reversed(range(len(judged))):
      node = judged[index]
      following = [
          children.get((index, j)) for j in range(len(node.steps))]
      if self.spec.form == 'v':
        targets[index] = self._lambda_returns(index, following, targets)
        judged[index] = self._with_baseline(index, targets[index])
      else:
        judged[index] = self._with_action_values(
            index, self._action_targets(index, following))
    return dataclasses.replace(self.source, nodes=tuple(judged))

  def _lambda_returns(self, index, following, targets):
    """View -> lambda-returns [J] of a node."""
    node, asked = self.source.nodes[index], self.nodes[index]
    found = {}
    for view in asked.here:
      next_values = np.array([
          _seen_by(view, self._values_of(there)) if there else 0.0
          for there in asked.following])
      next_returns = np.array([
          math.nan if child is None else _seen_by(view, {
              other: _mean(x) for other, x in targets[child].items()})
          for child in following])
      found[view] = td.lambda_returns(
          self._rewards(node, view), next_values, next_returns,
          discount=self.rollout.discount, gae_lambda=self.spec.gae_lambda)
    return found

  def _with_baseline(self, index, targets):
    """Form v: a node with the returns and values of its groups."""
    node, asked = self.source.nodes[index], self.nodes[index]
    node = self._with_returns(node, {
        group.key.role: self._paid_to(node, group.key.role, targets)
        for group in node.groups})
    of_inputs = {}  # Roles that share a critic may be shown the same.
    for view, found in targets.items():
      of_inputs.setdefault(asked.here[view], []).extend(found)
    return dataclasses.replace(
        node, groups=tuple(
            dataclasses.replace(group, value=float(
                _seen_by(group.key.role, self._values_of(asked.here))))
            for group in node.groups),
        value_examples=self._examples(of_inputs))

  def _action_targets(self, index, following):
    """Form q: index of an input -> targets of its joint actions."""
    node, asked = self.source.nodes[index], self.nodes[index]
    targets = {}
    for view in asked.acted[0]:
      rewards = self._rewards(node, view)
      for j, child in enumerate(following):
        target = rewards[j]
        if child is not None:
          after = [
              _seen_by(view, self._values_of(there))
              for there in self.nodes[child].acted]
          target += self.rollout.discount * np.mean(after)
        targets.setdefault(asked.acted[j][view], []).append(target)
    return targets

  def _with_action_values(self, index, targets):
    """Form q: a node with the returns of its candidates."""
    node, asked = self.source.nodes[index], self.nodes[index]
    failed = np.array([node.failed(j) for j in range(len(node.steps))])
    returns = {}
    for group in node.groups:
      said = np.array([
          _seen_by(group.key.role, self._values_of(there))
          for there in asked.acted])
      returns[group.key.role] = np.where(failed, math.nan, said)
    return dataclasses.replace(
        self._with_returns(node, returns),
        value_examples=self._examples(targets))

  def _rewards(self, node, view):
    """[J] float64 that a view's critic expects; NaN if one failed."""
    roles = (
        [group.key.role for group in node.groups] if view == CENTRAL
        and self.spec.kind == 'central' else [view])
    return np.mean(
        [node.rewards(role, self.rollout.alpha) for role in roles], axis=0)

  def _paid_to(self, node, role, targets):
    """[J] float64, the lambda-returns with the local reward of a role."""
    if self.spec.kind == 'independent':
      return targets[role]
    return targets[CENTRAL] - self._rewards(node, CENTRAL) + node.rewards(
        role, self.rollout.alpha)

  def _with_returns(self, node, returns):
    """A node whose candidates have the means of these [J], by role."""
    joint_actions = np.array(node.joint_actions)
    return node.with_returns([
        returns_lib.candidate_returns(
            returns[group.key.role], joint_actions[:, column],
            len(group.candidates), 'mean').astype(np.float32)
        for column, group in enumerate(node.groups)])

  def _examples(self, targets: Mapping[int, Sequence[float]]):
    """One for each input whose target is known: the mean of its targets.

    Its squared error has the gradient of the mean of theirs.
    """
    return tuple(
        types.ValueExample(
            self.asked[index][0].name, self.asked[index][1],
            float(self.values[index]), float(target))
        for index, found in targets.items()
        if np.isfinite(target := _mean(found)))

  def _values_of(self, asked: _Asked) -> dict[str, float]:
    return {view: self.values[index] for view, index in asked.items()}


def _seen_by(view: str, numbers: Mapping[str, float]) -> float:
  """A view's own number where it has one, else the mean of all."""
  if view in numbers:
    return numbers[view]
  return float(np.mean(list(numbers.values())))


def _mean(numbers: Sequence[float]) -> float:
  """Of those that are known; NaN without any."""
  known = np.asarray(numbers)[np.isfinite(numbers)]
  return float(known.mean()) if len(known) else math.nan
