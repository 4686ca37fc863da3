"""What is told of the trees of a rollout: metrics, and the trees in a file."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
import gzip
import json
import pathlib
from typing import Any
import zlib

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api

_GZIP_LEVEL = 6


def rollout_metrics(
    trees: Sequence[tree_lib.Tree],
    counters: runner_lib.Counters) -> dict[str, float]:
  """What a rollout and the credit for it looked like, for the log.

  `<role>/without_signal` is a share of what is compared, each baseline once:
  of prompts in a tree, of tasks where `advantage.group_key` is `env`.
  """
  groups = tree_lib.groups_of(trees)
  episodes = [episode for tree in trees for episode in tree.episodes()]
  returns, valid = _concatenate(groups)
  values = {
      'rollout/success': np.mean([e.success for e in episodes]),
      'rollout/turns': np.mean([e.turns for e in episodes]),
      'rollout/truncated': np.mean([e.truncated for e in episodes]),
      'return/mean': np.mean(returns[valid]),
      'return/invalid': np.sum(~valid),
  }
  for name, count in counters.ledger().items():
    values[f'budget/{name}'] = count
  with_signal = {
      group.baseline_id for group in groups if np.any(group.advantages)}
  for role in dict.fromkeys(group.key.role for group in groups):
    own = [group for group in groups if group.key.role == role]
    values |= _role_metrics(role, own)
    compared = {group.baseline_id for group in own}
    values[f'{role}/without_signal'] = 1 - (
        len(with_signal & compared) / len(compared))
  return values


def worker_metrics(workers: workers_lib.Workers) -> dict[str, int]:
  """What was replaced and done again since the last call, in all processes."""
  counts = hosts.exchange(workers.take_counts())
  return {
      f'workers/{name}': sum(count[name] for count in counts)
      for name in counts[0]}


def _concatenate(
    groups: Sequence[types.Group]) -> tuple[np.ndarray, np.ndarray]:
  """Returns and whether they are known, each [N], of all candidates."""
  return (np.concatenate([group.returns for group in groups]),
          np.concatenate([group.valid for group in groups]))


def _role_metrics(
    role: str, groups: Sequence[types.Group]) -> dict[str, float]:
  """Returns, credit, terms, outcomes and lengths of a role's candidates."""
  candidates = [c for group in groups for c in group.candidates]
  advantages = np.concatenate([group.advantages for group in groups])
  returns, _ = _concatenate(groups)
  outcomes = [candidate.outcome for candidate in candidates]
  values = {
      f'{role}/return': np.nanmean(returns),
      f'{role}/first_return': np.nanmean([g.returns[0] for g in groups]),
      f'{role}/advantage_mean': np.mean(advantages),
      f'{role}/advantage_std': np.std(advantages),
      f'{role}/length': np.mean([len(c.completion) for c in candidates]),
  }
  terms = collections.defaultdict(list)  # Not every phase has all terms.
  for candidate in candidates:
    for name, value in candidate.reward_terms.items():
      terms[name].append(value)
  values |= {f'{role}/term/{name}': np.mean(x) for name, x in terms.items()}
  for outcome in dict.fromkeys(outcomes):  # A set has no fixed order.
    values[f'{role}/outcome/{outcome.value}'] = (
        outcomes.count(outcome) / len(outcomes))
  return values


def groups_path(workdir: pathlib.Path, step: int) -> pathlib.Path:
  """Where the trees of a step are, counted from 0."""
  return workdir / 'groups' / f'{step:06d}.jsonl.gz'


def write_trees(
    path: pathlib.Path, trees: Sequence[tree_lib.Tree],
    environment: env_api.Environment, *, with_tokens: bool) -> None:
  """Writes all of some trees, one JSON object per line, compressed by gzip.

  Equal trees give equal bytes.

  Args:
    path: its folder may be missing, but not that one's.
    trees: of a step or an evaluation.
    environment: shows the states.
    with_tokens: ids and log-probabilities too.
  """
  if not hosts.is_first():
    return
  path.parent.mkdir(exist_ok=True)
  # Who reads a run that goes on finds no half of a file.
  with (files.whole_file(path) as file,
        gzip.GzipFile('', 'wb', _GZIP_LEVEL, file, mtime=0) as packed):
    for tree in trees:
      record = {
          'task_id': tree.task_id,
          'nodes': [_node(n, environment, with_tokens) for n in tree.nodes]}
      packed.write(json.dumps(record).encode() + b'\n')


def read_trees(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """What `write_trees` wrote; a UserError where it cannot be read."""
  is_empty = True
  try:
    with (path.open('rb') as file,
          gzip.open(file, 'rt', encoding='utf-8') as lines):
      for line in lines:
        tree = files.parse_json(line)
        is_empty = False
        yield tree
    if is_empty:
      raise ValueError('it is empty')
  except (OSError, EOFError, zlib.error, ValueError) as error:
    raise errors.UserError(
        f'{path} is no record of trees, or damaged '
        f'({errors.one_line(error)}); delete it.') from error


def _node(
    node: tree_lib.Node, environment: env_api.Environment,
    with_tokens: bool) -> dict[str, Any]:
  return {
      'turn': node.turn,
      'phase': node.phase,
      'parent': node.parent,
      'joint_action': node.joint_action,
      'chosen': node.chosen,
      'state': dict(environment.show(node.state)),
      'groups': [
          _group(group, environment.observe(node.state, group.key.role),
                 with_tokens)
          for group in node.groups],
      'joint_actions': node.joint_actions,
      'steps': [_step(step, environment) for step in node.steps],
  }


def _group(
    group: types.Group, messages: Sequence[env_api.Message],
    with_tokens: bool) -> dict[str, Any]:
  record = {
      'role': group.key.role,
      'branch': group.key.branch,
      'policy': group.policy,
      'baseline_id': group.baseline_id,
      'messages': messages,
      'candidates': [_candidate(c, with_tokens) for c in group.candidates],
  }
  if group.value is not None:
    record['value'] = float(group.value)
  if with_tokens:
    record['prompt_ids'] = group.prompt.tolist()
  return record


def _candidate(
    candidate: types.Candidate, with_tokens: bool) -> dict[str, Any]:
  record = {
      'text': candidate.text,
      'reward': _number(np.float32(candidate.reward)),
      'return': _number(candidate.return_),
      'advantage': float(candidate.advantage),
      'weight': float(candidate.weight),
      'outcome': candidate.outcome.value,
  }
  if with_tokens:
    record['ids'] = candidate.completion.tolist()
    record['logprobs'] = [
        round(float(x), 6) for x in candidate.behavior_logprobs]
  return record


def _step(
    step: env_api.Step, environment: env_api.Environment) -> dict[str, Any]:
  return {
      'state': dict(environment.show(step.state)),
      'team_reward': _number(step.team_reward),
      'local_rewards': {
          role: _number(value) for role, value in step.local_rewards.items()},
      'terms': {
          name: _number(value) for name, value in step.reward_terms.items()},
      'outcomes': {
          role: outcome.value for role, outcome in step.outcomes.items()},
      'done': step.done,
      'success': step.success,
      'truncated': step.truncated,
  }


def _number(value: float) -> float | None:
  """JSON has no numbers that are not finite."""
  return float(value) if np.isfinite(value) else None
