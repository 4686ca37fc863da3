"""All that a rollout did with one task, as data.

AT-GRPO's tree is a spine, plain GRPO's a root with G chains, MAGRPO's branches
at every joint action. Returns, advantages, batches and the written record all
read this one structure. It is the host's counterpart of `mctx.Tree`: nodes with
their parent and the action that led there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import math

import numpy as np

from atgrpo_jax import types
from environments import env_api

_LARGEST = float(np.finfo(np.float32).max)


def failed(step: env_api.Step) -> bool:
  """Whether a step failed for a reason that is not the model's own.

  A reward that is not finite, too, is a fault of the environment.
  """
  rewards = step.team_reward, *step.local_rewards.values()
  return (
      env_api.Outcome.INFRASTRUCTURE in step.outcomes.values()
      or not all(abs(reward) <= _LARGEST for reward in rewards))


@dataclasses.dataclass(frozen=True)
class Node:
  """One turn and phase of a tree, reached by one history.

  Attributes:
    turn: of the episode, from 0.
    phase: its number in `Environment.phases`.
    state: what the roles observed.
    groups: one for each role of the phase.
    joint_actions: [J] which candidate of each group a joint action joins.
      Aligned, joint action i is candidate i of every role.
    steps: [J] what each joint action led to.
    parent: number of the node before in `Tree.nodes`; None for the root.
    joint_action: of the parent, the one that led here; None for the root.
    chosen: the joint action that goes on; None where all do.
    value_examples: what critics learn here.
  """

  turn: int
  phase: int
  state: env_api.State
  groups: tuple[types.Group, ...]
  joint_actions: tuple[tuple[int, ...], ...]
  steps: tuple[env_api.Step, ...]
  parent: int | None = None
  joint_action: int | None = None
  chosen: int | None = None
  value_examples: tuple[types.ValueExample, ...] = ()

  def failed(self, joint_action: int) -> bool:
    """See `failed`."""
    return failed(self.steps[joint_action])

  def is_leaf(self, joint_action: int) -> bool:
    """Whether nothing can follow a joint action."""
    return self.steps[joint_action].done or self.failed(joint_action)

  def with_returns(self, returns: Sequence[np.ndarray]) -> Node:
    """The node with [G] float32 for the candidates of each group.

    What is not finite becomes NaN.
    """
    return dataclasses.replace(self, groups=tuple(
        dataclasses.replace(group, candidates=tuple(
            dataclasses.replace(
                candidate, return_=value if np.isfinite(value) else np.nan)
            for candidate, value in zip(group.candidates, values)))
        for group, values in zip(self.groups, returns)))

  @property
  def team_rewards(self) -> np.ndarray:
    """[J] float64 of the joint actions; NaN if one failed."""
    return np.array([
        math.nan if failed(step) else step.team_reward for step in self.steps])

  def rewards(self, role: str, alpha: float) -> np.ndarray:
    """Rewards [J] float64 of a role: alpha * team reward + local reward.

    NaN where a joint action failed.
    """
    return alpha * self.team_rewards + np.array([
        step.local_rewards[role] for step in self.steps])


@dataclasses.dataclass(frozen=True)
class EpisodeResult:
  """How one episode of a tree went."""

  task_id: str
  turns: int
  success: bool
  truncated: bool


@dataclasses.dataclass(frozen=True)
class Tree:
  """The nodes of one task, parents before their children."""

  task_id: str
  nodes: tuple[Node, ...]

  def episodes(self) -> Iterator[EpisodeResult]:
    """Of the spine, or of each chain that no failure ended."""
    continued = {(node.parent, node.joint_action) for node in self.nodes}
    for index, node in enumerate(self.nodes):
      ends = range(len(node.steps)) if node.chosen is None else [node.chosen]
      for joint_action in ends:
        if (index, joint_action) in continued or node.failed(joint_action):
          continue
        step = node.steps[joint_action]
        yield EpisodeResult(
            self.task_id, node.turn + 1, step.success, step.truncated)

  def map_groups(self, function: Callable[[types.Group], types.Group]) -> Tree:
    """The tree with other groups."""
    return dataclasses.replace(self, nodes=tuple(
        dataclasses.replace(node, groups=tuple(map(function, node.groups)))
        for node in self.nodes))


def chain(task_id: str, nodes: Sequence[Node]) -> Tree:
  """The tree of one episode, whose nodes have one candidate of each role."""
  return Tree(task_id, tuple(
      dataclasses.replace(node, parent=index - 1, joint_action=0)
      if index else node for index, node in enumerate(nodes)))


def groups_of(trees: Sequence[Tree]) -> list[types.Group]:
  """All groups of a step: by turn and phase, then by task and branch."""
  order = {tree.task_id: index for index, tree in enumerate(trees)}
  nodes = sorted(
      (node for tree in trees for node in tree.nodes),
      key=lambda node: (
          node.turn, node.phase, order[node.groups[0].key.task_id],
          node.groups[0].key.branch))
  return [group for node in nodes for group in node.groups]


def value_examples_of(trees: Sequence[Tree]) -> list[types.ValueExample]:
  """All that critics learn from a step."""
  return [
      example for tree in trees for node in tree.nodes
      for example in node.value_examples]
