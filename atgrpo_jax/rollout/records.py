"""What is told of the trees of a step: metrics, and every group in a file."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.runtime import hosts


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
      'time/sample': counters.sample_seconds,
      'time/environment': counters.environment_seconds,
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


def write_groups(
    folder: pathlib.Path, step: int, trees: Sequence[tree_lib.Tree]) -> None:
  """Writes every group of a step, one JSON object per line."""
  if not hosts.is_first():
    return
  folder.mkdir(exist_ok=True)
  with (folder / f'{step:06d}.jsonl').open('w') as file:
    for tree in trees:
      for index, node in enumerate(tree.nodes):
        for group in node.groups:
          file.write(json.dumps(_record(group, node, index)) + '\n')


def _record(
    group: types.Group, node: tree_lib.Node, index: int) -> dict[str, Any]:
  value = {} if group.value is None else {'value': float(group.value)}
  return {
      'key': group.key._asdict(),
      'node': index,
      'parent': node.parent,
      'joint_action': node.joint_action,
      'chosen': node.chosen,
      'policy': group.policy,
      'prompt_ids': group.prompt.tolist(),
      'baseline_id': group.baseline_id,
      **value,
      'candidates': [_candidate(c) for c in group.candidates],
  }


def _candidate(candidate: types.Candidate) -> dict[str, Any]:
  def known(value):
    return float(value) if np.isfinite(value) else None

  return {
      'text': candidate.text,
      'ids': candidate.completion.tolist(),
      'logprobs': [round(float(x), 6) for x in candidate.behavior_logprobs],
      'reward': known(candidate.reward),
      'return': known(candidate.return_),
      'advantage': float(candidate.advantage),
      'weight': float(candidate.weight),
      'terms': candidate.reward_terms,
      'outcome': candidate.outcome.value,
  }
