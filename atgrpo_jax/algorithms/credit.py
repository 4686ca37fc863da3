"""Credit: compares the candidates of a step and gives them advantages.

AT-GRPO and MAGRPO compare the candidates of one prompt; plain GRPO on a team
compares all actions of a task (arXiv 2510.11062, sections 4.1 and 5.1). The
group key decides which candidates share a baseline.
"""

from collections.abc import Hashable, Sequence
import dataclasses

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import grpo
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import advantages as advantages_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def assign_advantages(
    trees: Sequence[tree_lib.Tree], spec: spec_lib.AdvantageSpec,
    rollout: spec_lib.RolloutSpec) -> list[tree_lib.Tree]:
  """Adds advantages, weights and baseline ids to the trees of a step.

  An advantage is the weighted sum of the terms of `spec`, or the weighted mean
  of those that are not 0. A candidate whose return in a term is unknown gets 0
  from it. The trees have the baseline ids and weights of the first term.
  """
  groups = tree_lib.groups_of(trees)
  terms, prompts = [], {}
  for tree in trees:
    prompts |= _prompts(tree)
  for return_type, group_key, weight in (
      (rollout.return_type, spec.group_key, 1.0), *spec.extra_terms):
    term_groups = groups
    if return_type != rollout.return_type:
      term_groups = tree_lib.groups_of([
          grpo.with_returns(tree, rollout, return_type) for tree in trees])
    parts = [spec_lib.find_rule('group_key', name) for name in group_key]
    keys = [
        [part(group.key, prompts[group.key]) for part in parts]
        for group in term_groups]
    try:
      baseline_ids = _number(keys)
    except TypeError as error:
      raise errors.UserError(
          f'advantage.group_key={group_key}: a function returned a value that '
          f'is not hashable ({error}); return a text, a number or a tuple.'
          ) from error
    terms.append((weight, baseline_ids, *_term(
        term_groups, baseline_ids, spec, return_type)))
  _, baseline_ids, _, return_weights = terms[0]
  advantages = sum(weight * found for weight, _, found, _ in terms)
  if spec.combination == 'mean':
    total = sum(weight * (found != 0) for weight, _, found, _ in terms)
    advantages = advantages / np.where(total, total, 1.0)
  valid = np.concatenate([group.valid for group in groups])
  advantages = np.where(valid, advantages, 0.0).astype(np.float32)
  ends = np.cumsum([len(group.candidates) for group in groups])[:-1]
  compared = {
      group.key: dataclasses.replace(
          group, baseline_id=int(baseline_id), candidates=tuple(
              dataclasses.replace(candidate, advantage=advantage, weight=weight)
              for candidate, advantage, weight in zip(
                  group.candidates, group_advantages, group_weights)))
      for group, baseline_id, group_advantages, group_weights in zip(
          groups, baseline_ids, np.split(advantages, ends),
          np.split(return_weights, ends))}
  return [
      tree.map_groups(lambda group: compared[group.key]) for tree in trees]


def _term(
    groups: Sequence[types.Group], baseline_ids: np.ndarray,
    spec: spec_lib.AdvantageSpec,
    return_type: str) -> tuple[np.ndarray, np.ndarray]:
  """Advantages [N] of one return type, and weights [N] of the returns.

  With 'episode_return', all actions of a role in an episode have the same
  return, and their weights in a baseline add up to 1. So an episode counts once
  per role with the group key ('env',), and once with ('env', 'agent').
  """
  sizes = [len(group.candidates) for group in groups]
  flat_ids = np.repeat(baseline_ids, sizes)
  weights, episodes, values = np.ones(len(flat_ids)), None, None
  if return_type == 'episode_return':
    return_keys = [
        (group.key.task_id, group.key.branch + i, group.key.role)
        for group in groups for i in range(len(group.candidates))]
    weights = advantages_lib.return_weights(flat_ids, _number(return_keys))
    episodes = _number([key[:2] for key in return_keys])
  if spec.baseline == 'critic':
    values = np.repeat([group.value for group in groups], sizes)
  advantages = advantages_lib.group_advantages(
      np.concatenate([group.returns for group in groups]), flat_ids,
      np.concatenate([group.valid for group in groups]),
      baseline=spec_lib.find_rule('baseline', spec.baseline),
      scale=spec_lib.find_rule('scale', spec.scale), weights=weights,
      episodes=episodes, values=values)
  return advantages, weights


_Prompt = tuple[tuple[str, str], ...]  # Author and text of each message.


def _prompts(
    tree: tree_lib.Tree) -> dict[types.GroupKey, tuple[_Prompt, ...]]:
  """The prompt of each group and the role's preceding ones, the last first."""
  prompts, by_node = {}, []
  for node in tree.nodes:
    seen = {} if node.parent is None else dict(by_node[node.parent])
    for group in node.groups:
      prompt = tuple((x['role'], env_api.text_of(x)) for x in group.messages)
      seen[group.key.role] = (prompt, *seen.get(group.key.role, ()))
      prompts[group.key] = seen[group.key.role]
    by_node.append(seen)
  return prompts


def _number(items: Sequence[Sequence[Hashable]]) -> np.ndarray:
  """Numbers [N] int of items in order of appearance; equal items share one."""
  numbers = {}
  return np.array(
      [numbers.setdefault(tuple(item), len(numbers)) for item in items], int)
