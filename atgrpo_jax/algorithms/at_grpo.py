"""AT-GRPO: agent- and turn-wise groups on a greedy spine.

Algorithm 1 of arXiv 2510.11062. For every environment, turn and agent in
order: G candidates are sampled from one prompt; each is stepped from the same
state; their rewards make one group under the key (task, role, turn); the
candidate with the largest reward is the one whose state goes on. The next
agent acts on that state in the same turn.

Deviations from the paper: ties go to the first candidate; a candidate that
failed for a reason that is not the model's own leaves its group.

Deviations from the authors' code (each has a test): a group never holds
candidates of two tasks or roles; agents act one after another within a turn;
every candidate is scored from the same state, and the chosen one's state is
the one that goes on; the other agents of a turn keep their samples when one
agent ends the episode; nothing is filtered or duplicated before the group
statistics.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from atgrpo_jax.algorithms import play
from atgrpo_jax.algorithms import selection
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rl import returns as returns_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from environments import env_api


def play_task(
    runner: runner_lib.EpisodeRunner, task: env_api.Task,
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """Algorithm 1 for one task; returns its `Tree`, a spine."""
  task_id, environment = task['task_id'], runner.environment
  state, nodes = environment.reset(task), []
  positions = play.positions(environment)
  for index, position in enumerate(positions):
    # Every candidate is tried from the one state of the spine.
    node = yield from play.sample_and_step(
        runner, task_id, state, position, group_size=spec.group_size, branch=0)
    returns, team = node.groups[0].returns, node.team_rewards
    if spec.return_type == 'monte_carlo':
      continuations = yield from _continuations(
          runner, task_id, node, index, positions, spec)
      team = team + continuations
      returns = returns_lib.add_continuations(
          node.groups[0].rewards, continuations, spec.alpha)
    elif spec.return_type != 'immediate':
      raise NotImplementedError(f'No tree knows {spec.return_type!r}.')
    returns = returns.astype(np.float32)
    selection.check_any_known(node, returns)
    chosen = selection.select(
        returns, team.astype(np.float32), spec,
        rng=selection.rng(runner, node.groups[0].key))
    nodes.append(dataclasses.replace(
        node.with_returns([returns]), chosen=chosen,
        parent=index - 1 if nodes else None,
        joint_action=nodes[-1].chosen if nodes else None))
    step = node.steps[chosen]
    if step.done:
      break
    state = step.state
  return tree_lib.Tree(task_id, tuple(nodes))


def _continuations(
    runner: runner_lib.EpisodeRunner, task_id: str, node: tree_lib.Node,
    index: int, positions: list[tuple[int, int]],
    spec: spec_lib.RolloutSpec) -> runner_lib.EpisodeCoroutine:
  """Continuations [G] float64 of the candidates, from sampled episodes."""
  num = spec.num_continuations
  # Branch 0 is the spine.
  first = 1 + index * spec.group_size * num
  open_ended = [i for i in range(spec.group_size) if not node.is_leaf(i)]
  played = yield [
      play.play_parallel(
          runner, task_id, node.steps[i].state, positions[index + 1:],
          num_episodes=num, branch=first + i * num)
      for i in open_ended]
  continuations = np.zeros(spec.group_size)
  for i, (root, chains) in zip(open_ended, played):
    continuations[i] = returns_lib.continuation(np.array([
        returns_lib.returns_to_go([
            reached.team_rewards[i]
            for reached, i in play.path(root, j, chain)], spec.discount)[0]
        for j, chain in enumerate(chains)]), spec.discount)
  return continuations
