"""The tree of one task's rollout, and its JSON form.

The tree of AT-GRPO is a chain, the tree of plain GRPO is a root with G chains,
and the tree of MAGRPO branches at every joint action that continues. Like
`mctx.Tree`, it stores nodes with their parent and the action that led to them.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import gzip
import json
import math
import pathlib
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from environments import env_api

Json = dict[str, Any]

_GZIP_LEVEL = 6
_LOGPROB_DECIMALS = 6  # In JSON.
_MAX_SHOWN = 160  # Characters of a sample.
# A group of fewer distinct texts teaches little, unless the team has a success
# of `_MAX_FAILING` or more.
_MIN_DISTINCT, _MAX_FAILING = 1.5, 0.9


def failed(step: env_api.Step) -> bool:
  """True if a step failed for a reason outside the model."""
  return env_api.Outcome.INFRASTRUCTURE in step.outcomes.values()


@dataclasses.dataclass(frozen=True)
class Node:
  """One turn and phase of a tree, reached by one history."""

  turn: int  # Turn of the episode, from 0.
  phase: int  # Index in `Environment.phases`.
  state: env_api.State  # If read from JSON, a dict of `Environment.show`.
  groups: tuple[types.Group, ...]  # One for each role of the phase.
  # [J] the candidate of each group that a joint action takes: (i, ..., i) for
  # joint action i, unless all combinations are joint actions.
  joint_actions: tuple[tuple[int, ...], ...]
  steps: tuple[env_api.Step, ...]  # [J] the result of each joint action.
  # Index of the preceding node in `Tree.nodes`, and the joint action that led
  # from it to this one; None for the root.
  parent: int | None = None
  joint_action: int | None = None
  # The only joint action that continues; None if every one may.
  chosen: int | None = None
  value_examples: tuple[types.ValueExample, ...] = ()  # For critics.

  def failed(self, joint_action: int) -> bool:
    """True if a joint action failed for a reason outside the model."""
    return failed(self.steps[joint_action])

  def is_leaf(self, joint_action: int) -> bool:
    """True if nothing can follow a joint action."""
    return self.steps[joint_action].done or self.failed(joint_action)

  def with_returns(self, returns: Sequence[np.ndarray]) -> 'Node':
    """Replaces the returns by [G] float32 for each group.

    Values that are not finite become NaN.
    """
    return dataclasses.replace(self, groups=tuple(
        dataclasses.replace(group, candidates=tuple(
            dataclasses.replace(
                candidate, return_=value if np.isfinite(value) else np.nan)
            for candidate, value in zip(group.candidates, values)))
        for group, values in zip(self.groups, returns)))

  @property
  def team_rewards(self) -> np.ndarray:
    """Team rewards [J] float64 of joint actions; NaN for failed ones."""
    return np.array([
        math.nan if failed(step) else step.team_reward for step in self.steps])

  def rewards(self, role: str, alpha: float) -> np.ndarray:
    """Rewards [J] float64 of a role: alpha * team reward + local reward.

    NaN where a joint action failed.
    """
    return alpha * self.team_rewards + np.array([
        step.local_rewards[role] for step in self.steps])

  def to_json(
      self, show: Callable[[env_api.State], Mapping[str, str]],
      with_tokens: bool) -> Json:
    return {
        'turn': self.turn,
        'phase': self.phase,
        'parent': self.parent,
        'joint_action': self.joint_action,
        'chosen': self.chosen,
        'state': dict(show(self.state)),
        'groups': [_group_to_json(g, with_tokens) for g in self.groups],
        'joint_actions': [list(action) for action in self.joint_actions],
        'steps': [_step_to_json(step, show) for step in self.steps],
    }

  @classmethod
  def from_json(cls, task_id: str, record: Json) -> 'Node':
    turn = int(record['turn'])
    return cls(
        turn, record['phase'], record['state'],
        groups=tuple(
            _group_from_json(task_id, turn, x) for x in record['groups']),
        joint_actions=tuple(map(tuple, record['joint_actions'])),
        steps=tuple(map(_step_from_json, record['steps'])),
        parent=record['parent'], joint_action=record['joint_action'],
        chosen=record['chosen'])


@dataclasses.dataclass(frozen=True)
class Tree:
  """The nodes of one task, parents before their children."""

  task_id: str
  nodes: tuple[Node, ...]

  def ends(self) -> Iterator[tuple[Node, env_api.Step]]:
    """Yields the last node and step of each episode that did not fail."""
    continued = {(node.parent, node.joint_action) for node in self.nodes}
    for index, node in enumerate(self.nodes):
      ends = range(len(node.steps)) if node.chosen is None else [node.chosen]
      for j in ends:
        if (index, j) not in continued and not node.failed(j):
          yield node, node.steps[j]

  def groups(self) -> Iterator[types.Group]:
    """All groups, node by node."""
    for node in self.nodes:
      yield from node.groups

  def map_groups(
      self, function: Callable[[types.Group], types.Group]) -> 'Tree':
    """Replaces every group by `function(group)`."""
    return dataclasses.replace(self, nodes=tuple(
        dataclasses.replace(node, groups=tuple(map(function, node.groups)))
        for node in self.nodes))

  def to_json(
      self, show: Callable[[env_api.State], Mapping[str, str]] = dict,
      with_tokens: bool = True) -> Json:
    """The tree as lists and dicts; non-finite numbers become None.

    Args:
      show: `Environment.show`; the default is for a tree read from JSON.
      with_tokens: include ids and log-probabilities, rounded to 1e-6.
    """
    return {
        'task_id': self.task_id,
        'nodes': [node.to_json(show, with_tokens) for node in self.nodes]}

  @classmethod
  def from_json(cls, record: Json) -> 'Tree':
    """Reads a record of `to_json`; what it omits becomes empty.

    Raises LookupError, TypeError, ValueError or AttributeError for a malformed
    record.
    """
    return cls(record['task_id'], tuple(
        Node.from_json(record['task_id'], node) for node in record['nodes']))


def chain(task_id: str, nodes: Sequence[Node]) -> Tree:
  """A tree without branches: every node follows the one before it.

  A node follows the chosen joint action of its parent; if none was chosen, its
  parent has only one.
  """
  return Tree(task_id, tuple(
      dataclasses.replace(
          node, parent=index - 1, joint_action=nodes[index - 1].chosen or 0)
      if index else node for index, node in enumerate(nodes)))


def check_any_known(returns: Sequence[float], node: Node) -> None:
  """Raises InfrastructureError if no return [J] at a node is known."""
  if not np.isfinite(returns).any():
    group, *_ = node.groups
    raise errors.InfrastructureError(
        f'All candidates at {group.key}, or all that follow them, failed for '
        'reasons outside the model: '
        f'{[candidate.outcome.value for candidate in group.candidates]}.')


def groups_of(trees: Sequence[Tree]) -> list[types.Group]:
  """All groups of a step, by turn and phase, then by task and branch."""
  order = {tree.task_id: index for index, tree in enumerate(trees)}
  nodes = sorted(
      (node for tree in trees for node in tree.nodes),
      key=lambda node: (
          node.turn, node.phase, order[node.groups[0].key.task_id],
          node.groups[0].key.branch))
  return [group for node in nodes for group in node.groups]


def value_examples_of(trees: Sequence[Tree]) -> list[types.ValueExample]:
  """All training examples for critics in a step."""
  return [
      example for tree in trees for node in tree.nodes
      for example in node.value_examples]


# Metrics.


def metrics(trees: Sequence[Tree]) -> dict[str, float]:
  """Success, returns, advantages and outcomes of a rollout, for the log.

  `<role>/zero_advantage` is the fraction of prompts (AT-GRPO) or tasks (plain
  GRPO) without a nonzero advantage.
  """
  groups = groups_of(trees)
  ends = [end for tree in trees for end in tree.ends()]
  returns = np.concatenate([group.returns for group in groups])
  valid = np.concatenate([group.valid for group in groups])
  values = {
      'rollout/success': np.mean([step.success for _, step in ends]),
      'rollout/turns': np.mean([node.turn + 1 for node, _ in ends]),
      'rollout/truncated': np.mean([step.truncated for _, step in ends]),
      'return/mean': np.mean(returns[valid]),
      'return/invalid': np.sum(~valid),
  }
  nonzero = {
      group.baseline_id for group in groups if np.any(group.advantages)}
  for role in dict.fromkeys(group.key.role for group in groups):
    role_groups = [group for group in groups if group.key.role == role]
    values |= _role_metrics(role, role_groups)
    compared = {group.baseline_id for group in role_groups}
    values[f'{role}/zero_advantage'] = 1 - (
        len(nonzero & compared) / len(compared))
  return values


def _role_metrics(
    role: str, groups: Sequence[types.Group]) -> dict[str, float]:
  candidates = [c for group in groups for c in group.candidates]
  advantages = np.concatenate([group.advantages for group in groups])
  returns = np.concatenate([group.returns for group in groups])
  outcomes = [candidate.outcome for candidate in candidates]
  values = {
      f'{role}/return': np.nanmean(returns),
      f'{role}/first_return': np.nanmean([g.returns[0] for g in groups]),
      f'{role}/advantage_mean': np.mean(advantages),
      f'{role}/advantage_std': np.std(advantages),
      f'{role}/length': np.mean([len(c.completion) for c in candidates]),
      f'{role}/distinct': np.mean([
          len({c.text for c in g.candidates}) / len(g.candidates)
          for g in groups]),
  }
  terms = mean_terms(candidate.reward_terms for candidate in candidates)
  values |= {f'{role}/term/{name}': value for name, value in terms.items()}
  for outcome in dict.fromkeys(outcomes):  # A set has no fixed order.
    values[f'{role}/outcome/{outcome.value}'] = (
        outcomes.count(outcome) / len(outcomes))
  return values


def mean_terms(terms: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """The mean of each reward term over the mappings that have it."""
  values = collections.defaultdict(list)
  for by_name in terms:
    for name, value in by_name.items():
      values[name].append(value)
  return {name: float(np.mean(x)) for name, x in values.items()}


def samples(
    trees: Sequence[Tree], values: Mapping[str, float]) -> Iterator[str]:
  """Yields lines with a reply of each role to each of two tasks.

  More lines name the roles whose candidates are alike, though the team fails.
  `values` are the `metrics` of the trees.
  """
  for tree in trees[:2]:
    seen = set()
    for group in tree.groups():
      role, candidate = group.key.role, group.candidates[0]
      if role not in seen:
        seen.add(role)
        # A terminal would obey control characters.
        text = ''.join(
            x if x.isprintable() else ' ' for x in candidate.text[:_MAX_SHOWN])
        yield (f'{role}, {tree.task_id}, return {candidate.return_:.3g}: '
               f'{text}')
  if values['rollout/success'] >= _MAX_FAILING:
    return
  sizes = {
      group.key.role: len(group.candidates) for group in groups_of(trees)}
  for role, size in sizes.items():
    num_distinct = values[f'{role}/distinct'] * size
    if num_distinct < min(_MIN_DISTINCT, size):
      yield (f'warning: the {size} candidates of {role} are alike: a group has '
             f'{num_distinct:.1f} distinct texts, so it teaches little. Raise '
             'rollout.temperature, or go back to a checkpoint and lower '
             'optimizer.learning_rate.')


# Files.


def groups_path(workdir: pathlib.Path, step: int) -> pathlib.Path:
  """The file with the trees of a training step, counted from 0."""
  return workdir / 'groups' / f'{step:06d}.jsonl.gz'


def write(
    path: pathlib.Path, trees: Sequence[Tree],
    show: Callable[[env_api.State], Mapping[str, str]], *,
    with_tokens: bool) -> None:
  """Writes trees as gzipped JSON lines; equal trees give equal bytes.

  Creates the folder of `path`; `show` and `with_tokens` go to `Tree.to_json`.
  """
  if not hosts.is_first():
    return
  path.parent.mkdir(exist_ok=True)
  # A reader of a running job never sees half a file.
  with (files.whole_file(path) as file,
        gzip.GzipFile('', 'wb', _GZIP_LEVEL, file, mtime=0) as packed):
    for tree in trees:
      line = json.dumps(tree.to_json(show, with_tokens))
      packed.write(line.encode() + b'\n')


def read(path: pathlib.Path) -> Iterator[Tree]:
  """Yields the trees of a file.

  Raises UserError if the file is empty, damaged or malformed.
  """
  is_empty = True
  with (files.read_errors_as_user_errors(path, 'restore it, or delete it'),
        path.open('rb') as file,
        gzip.open(file, 'rt', encoding='utf-8') as lines):
    for line in lines:
      is_empty = False
      yield Tree.from_json(json.loads(line))
    if is_empty:
      raise ValueError('it is empty')


def _group_to_json(group: types.Group, with_tokens: bool) -> Json:
  record = {
      'role': group.key.role,
      'branch': group.key.branch,
      'policy': group.policy,
      'baseline_id': group.baseline_id,
      'messages': list(group.messages),
      'candidates': [
          _candidate_to_json(c, with_tokens) for c in group.candidates],
  }
  if group.value is not None:
    record['value'] = float(group.value)
  if with_tokens:
    record['prompt_ids'] = group.prompt.tolist()
  return record


def _group_from_json(task_id: str, turn: int, record: Json) -> types.Group:
  return types.Group(
      key=types.GroupKey(
          task_id, record['role'], turn, record['branch']),
      policy=record['policy'],
      prompt=np.array(record.get('prompt_ids', ()), np.int32),
      messages=tuple(record['messages']),
      candidates=tuple(map(_candidate_from_json, record['candidates'])),
      value=record.get('value'), baseline_id=record['baseline_id'])


def _candidate_to_json(candidate: types.Candidate, with_tokens: bool) -> Json:
  record = {
      'text': candidate.text,
      'reward': _finite_or_none(np.float32(candidate.reward)),
      'return': _finite_or_none(candidate.return_),
      'advantage': float(candidate.advantage),
      'weight': float(candidate.weight),
      'outcome': candidate.outcome.value,
  }
  if with_tokens:
    record['ids'] = candidate.completion.tolist()
    record['logprobs'] = [
        round(float(x), _LOGPROB_DECIMALS) for x in candidate.behavior_logprobs]
  return record


def _candidate_from_json(record: Json) -> types.Candidate:
  return types.Candidate(
      completion=np.array(record.get('ids', ()), np.int32),
      behavior_logprobs=np.array(record.get('logprobs', ()), np.float32),
      text=record['text'], reward=_nan_if_none(record['reward']),
      return_=_nan_if_none(record['return']),
      advantage=float(record['advantage']), weight=float(record['weight']),
      outcome=env_api.Outcome(record['outcome']))


def _step_to_json(
    step: env_api.Step,
    show: Callable[[env_api.State], Mapping[str, str]]) -> Json:
  return {
      'state': dict(show(step.state)),
      'team_reward': _finite_or_none(step.team_reward),
      'local_rewards': _map(_finite_or_none, step.local_rewards),
      'terms': _map(_finite_or_none, step.reward_terms),
      'outcomes': {role: x.value for role, x in step.outcomes.items()},
      'done': step.done,
      'success': step.success,
      'truncated': step.truncated,
  }


def _step_from_json(record: Json) -> env_api.Step:
  return env_api.Step(
      state=record['state'], team_reward=_nan_if_none(record['team_reward']),
      local_rewards=_map(_nan_if_none, record['local_rewards']),
      reward_terms=_map(_nan_if_none, record['terms']),
      done=record['done'], success=record['success'],
      truncated=record['truncated'],
      outcomes=_map(env_api.Outcome, record['outcomes']))


def _map(function: Callable[[Any], Any], values: Mapping[str, Any]) -> Json:
  return {name: function(value) for name, value in values.items()}


def _finite_or_none(value: float) -> float | None:
  """JSON has no NaN."""
  return float(value) if np.isfinite(value) else None


def _nan_if_none(value: float | None) -> float:
  return math.nan if value is None else float(value)
