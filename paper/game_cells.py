"""The cells of the games (arXiv 2510.11062, sections 5.2 and 5.3).

And what its reviewers asked for. Tables:

  main         all systems on all games. AT-GRPO with one policy comes first and
               takes `train.num_steps`. The others may generate as many tokens
               as it did with the same seed, in steps with as many tasks as make
               about as many updates; see `SHARE_OF_TASKS`.
               `mas_grpo_same_tasks` has as many tasks in a step as AT-GRPO
  reward       the other presets: `outcome`, in which nothing but the team's
               checker pays (so the tool, whose step pays nothing at once, has
               no signal); `outcome_and_plans`, in which the checker also pays
               for proposals; on Sokoban `oracle`, with a term that sees dead
               ends
  roles        each role trained beside the untrained other, with half of the
               tokens each; the two combined; and roles played by the policies
               of other roles
  cross_play   each role played by the policies of each role and seed
  agents       1, 3, 5 and 7 agents; 2 are in `main`
  rollout      independent episodes whose prompts of one agent and turn are
               compared, with the reward of a step and with that of all later
               ones: what AT-GRPO would be without its tree. All in steps of a
               third of the tasks
  selection, return_type, advantage, loss, group_size, turns
               other values of these switches
  unchanged    AT-GRPO with a third of its tokens, which is what `rollout` and
               the switches get: there is still something to learn then
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import itertools
from typing import Any

from configs import common
from environments.boards import board_game
from paper import cell as cell_lib

# Name of a game in configs/ and workdirs -> its name in tables.
TASKS = {'plan_path': 'Plan-Path', 'sokoban': 'Sokoban', 'sudoku': 'Sudoku'}
# The task of the ablations, as in the paper's Table 4.
ABLATED = 'plan_path'
_PER_ROLE = f'main/{ABLATED}/at_grpo_per_role'

# Table -> row -> what it changes of AT-GRPO.
SWITCHES = {
    'rollout': {
        'tree_immediate': {},
        'parallel_immediate': {
            'rollout.mode': 'parallel', 'rollout.selection': 'all'},
        'parallel_return_to_go': {
            'rollout.mode': 'parallel', 'rollout.selection': 'all',
            'rollout.return_type': 'return_to_go'}},
    'selection': {
        name: {'rollout.selection': name}
        for name in ('team_greedy', 'softmax', 'uniform', 'epsilon_greedy')},
    'return_type': {
        'immediate_small_steps': {},
        'monte_carlo_small_steps': {
            'rollout.return_type': 'monte_carlo',
            'rollout.num_continuations': 1}},
    'advantage': {
        'without_scale': {'advantage.scale': 'none'}},
    # With one update the ratio is 1: its level and the dual clip are nothing.
    'loss': {
        'sequence_mean': {'loss.aggregation': 'sequence_mean'},
        'constant': {'loss.aggregation': 'constant'},
        'kl': {'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.01},
        'kl_forward': {
            'loss.kl_estimator': 'k3_forward', 'loss.kl_coefficient': 0.01},
        'entropy': {'loss.entropy_coefficient': 0.01},
        'four_updates': {'train.updates_per_rollout': 4},
        'four_updates_sequence': {
            'train.updates_per_rollout': 4, 'loss.ratio_level': 'sequence'},
        'four_updates_dual_clip': {
            'train.updates_per_rollout': 4, 'loss.dual_clip': 3.0}},
    'group_size': {
        str(size): {'rollout.group_size': size} for size in (2, 4, 8, 16)},
    'turns': {
        str(turns): {'environment.max_turns': turns} for turns in (1, 2, 4, 8)},
}

# Row -> tasks in a step, relative to AT-GRPO; 1 for all other rows.
SHARE_OF_TASKS = {
    # An episode that is played to its end by every candidate takes more tokens
    # than a tree, one of a single agent fewer.
    'sa_grpo': 5, 'sa_grpo_turns': 2, 'mas_grpo': 1 / 2,
    'mas_grpo_agent': 1 / 2, 'mas_grpo_turn': 1 / 2,
    'mas_grpo_agent_turn': 1 / 2,
    # All branches are played, up to 510 answers a task.
    'magrpo': 1 / 8,
    'tree_immediate': 1 / 3, 'parallel_immediate': 1 / 3,
    'parallel_return_to_go': 1 / 3,
    # Continuations cost tokens: with smaller steps there are as many updates.
    'immediate_small_steps': 1 / 8, 'monte_carlo_small_steps': 1 / 8}

# Row -> AT-GRPO with as many tasks and updates in a step, which it is compared
# with. All other rows are compared with the AT-GRPO that their table has.
SAME_STEPS = {
    'parallel_immediate': 'tree_immediate',
    'parallel_return_to_go': 'tree_immediate',
    'monte_carlo_small_steps': 'immediate_small_steps',
    'four_updates_sequence': 'four_updates',
    'four_updates_dual_clip': 'four_updates',
}


def make(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  """All but those of `cross_play`, each behind those it needs."""
  yield from _main(scale, seed)
  yield from _switches(scale, seed)
  yield from _agents(scale, seed)
  yield from _roles(scale, seed)


def _overrides(seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
  # All cells have the whole test split, so that all rows can be compared.
  return {'seed': seed, 'evaluation.test': 'test', **changes}


def _train(
    row_path: str, scale: str, seed: int,
    changes: Mapping[str, Any] | None = None, budget_share: float = 1.0,
    **arguments: str) -> cell_lib.Cell:
  """A training, with the budget of AT-GRPO unless it is AT-GRPO itself."""
  _, task, row = row_path.split('/')
  overrides = {}
  if row in SHARE_OF_TASKS:
    num_tasks = common.game_config(task, f'size={scale}').rollout.num_tasks
    overrides['rollout.num_tasks'] = int(SHARE_OF_TASKS[row] * num_tasks)
  at_grpo = f'main/{task}/at_grpo'
  return cell_lib.Cell(
      f'{row_path}/seed-{seed}', cell_lib.config_of(task, scale, **arguments),
      _overrides(seed, overrides | (changes or {})),
      budget_of='' if row_path == at_grpo else f'{at_grpo}/seed-{seed}',
      budget_share=budget_share)


def _main(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  for task in TASKS:
    yield _train(f'main/{task}/at_grpo', scale, seed)
    for system in common.SYSTEMS:
      if system != 'at_grpo':
        changes = {}
        if system in ('magrpo', 'iac', 'maac'):
          # A diagnosis of MAGRPO's many groups takes as long as an update. So
          # these rows have no norm, entropy and KL in the tables.
          changes['train.diagnose_every'] = 0
        if system == 'magrpo':  # Steps without a failure are a few answers.
          changes['evaluation.validate_every'] = 25
        yield _train(
            f'main/{task}/{system}', scale, seed, changes, system=system)
    yield _train(
        f'main/{task}/mas_grpo_same_tasks', scale, seed, system='mas_grpo')
    rewards = ['outcome', 'outcome_and_plans']
    if task == 'sokoban':
      rewards.append('oracle')
    for reward in rewards:
      yield _train(
          f'reward/{task}/{reward}', scale, seed,
          {'environment.reward': reward})


def _switches(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  yield _train(f'unchanged/{ABLATED}/at_grpo', scale, seed, budget_share=1 / 3)
  config = common.game_config(ABLATED, f'size={scale}')
  for table, rows in SWITCHES.items():
    for row, changes in rows.items():
      changed = config.copy_and_resolve_references()
      changed.update_from_flattened_dict(changes)
      if changed != config or row in SHARE_OF_TASKS:  # Else it is `unchanged`.
        yield _train(f'{table}/{ABLATED}/{row}', scale, seed, changes, 1 / 3)


def _agents(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  for team, roles in board_game.TEAMS.items():
    if team != 'pair':
      yield _train(f'agents/{ABLATED}/{len(roles)}', scale, seed, team=team)


def _roles(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  """Trained apart, combined, and swapped; and what `cross_play` needs."""
  apart = {}
  for role, other in (('tool', 'planner'), ('planner', 'tool')):
    cell = _train(
        f'roles/{ABLATED}/only_{role}', scale, seed,
        {'per_policy': f'{other}.model.trained=none'}, 0.5,
        system='at_grpo_per_role')
    yield cell
    yield cell_lib.export(cell, role)
    apart[role] = f'{cell.path}/export/{role}'
  yield _play(f'roles/{ABLATED}/combined/seed-{seed}', scale, seed, apart)
  together = _train(_PER_ROLE, scale, seed, system='at_grpo_per_role')
  yield cell_lib.export(together, 'planner')
  yield _play(f'roles/{ABLATED}/swapped/seed-{seed}', scale, seed, {
      'tool': f'{together.path}/export/planner',
      'planner': f'{together.path}/export/tool'})


def cross_play(scale: str, num_seeds: int) -> Iterator[cell_lib.Cell]:
  """Each role played by each role's policy of each seed."""
  folders = {
      f'{role}-{seed}': f'{_PER_ROLE}/seed-{seed}/export/{role}'
      for seed in range(num_seeds) for role in ('tool', 'planner')}
  for tool, planner in itertools.product(folders, folders):
    yield _play(
        f'cross_play/{ABLATED}/{tool}/{planner}', scale, 0,
        {'tool': folders[tool], 'planner': folders[planner]})


def _play(
    path: str, scale: str, seed: int,
    folders: Mapping[str, str]) -> cell_lib.Cell:
  """Evaluates a team of exported policies, {role: folder below OUT}."""
  per_policy = ';'.join(
      f'{role}.model.folder={{out}}/{folder}'
      for role, folder in folders.items())
  return cell_lib.Cell(
      path, cell_lib.config_of(ABLATED, scale, system='at_grpo_per_role'),
      _overrides(seed, {'per_policy': per_policy}),
      mode='evaluate', result='evals/evaluation.json')
