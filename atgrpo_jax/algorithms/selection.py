"""Which candidate, or joint action, goes on where one does."""

from __future__ import annotations

import zlib

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib


def select(
    returns: np.ndarray, team_returns: np.ndarray, spec: spec_lib.RolloutSpec,
    *, rng: np.random.Generator) -> int:
  """The index of the one whose state goes on.

  Args:
    returns: [J] float, the acting agent's, or the team's; one that is not
      finite is never chosen.
    team_returns: [J] float, of the team reward alone.
    spec: `selection` and its parameters.
    rng: for the rules that draw.
  """
  candidates = np.flatnonzero(np.isfinite(returns))
  if spec.selection == 'first':
    return int(candidates[0])
  if spec.selection == 'team_greedy':
    return int(candidates[np.argmax(team_returns[candidates])])
  if spec.selection == 'uniform' or (
      spec.selection == 'epsilon_greedy'
      and rng.random() < spec.selection_epsilon):
    return int(rng.choice(candidates))
  if spec.selection == 'softmax':
    scaled = returns[candidates] / spec.selection_temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(candidates, p=weights / weights.sum()))
  if spec.selection in ('acting_greedy', 'epsilon_greedy'):
    return int(candidates[np.argmax(returns[candidates])])
  raise NotImplementedError(f'No rule for selection={spec.selection!r}.')


def check_any_known(node: tree_lib.Node, returns: np.ndarray) -> None:
  """Raises if no return [J] of a node is known."""
  if not np.isfinite(returns).any():
    raise errors.InfrastructureError(
        f'All {len(returns)} candidates of {node.groups[0].key} failed for '
        "reasons that are not the model's own: "
        f'{[c.outcome.value for c in node.groups[0].candidates]}.')


def rng(
    runner: runner_lib.EpisodeRunner,
    key: types.GroupKey) -> np.random.Generator:
  """For the selection at a node; a function of the seed, step and key."""
  return np.random.default_rng([
      runner.seed, runner.train_step, key.turn,
      zlib.crc32(key.task_id.encode()), zlib.crc32(key.role.encode())])
