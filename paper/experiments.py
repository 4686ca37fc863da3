"""All jobs of the paper's tables.

Games (arXiv 2510.11062, sections 5.2 and 5.3):

  main         all systems. AT-GRPO with one policy runs first, for
               `train.num_steps`; the others may generate as many tokens with
               the same seed; `NUM_TASKS_RATIO` scales their tasks per step
  reward       other presets of the reward. With `outcome` the tool's step pays
               nothing at once, so the tool has no advantage
  roles        each role trained beside the untrained other role, with half of
               the tokens each; both combined; policies of roles swapped
  agents       1, 3, 5 and 7 agents; `main` has 2
  rollout      AT-GRPO without its tree: independent episodes that compare the
               prompts of one agent and turn
  selection, return_type, advantage, loss, group_size, turns
               other values of these switches
  unchanged    AT-GRPO with a third of its tokens, like `rollout` and the
               switches, so that no row is fully trained

Mathematics and code (arXiv 2510.11062, section 5.2) are in `problems`. Beyond
nano the trained policies are exported and evaluated on each benchmark, in
`OUT/problems/<task>/<row>/<benchmark>/seed-<n>`.

MAGRPO's tasks (arXiv 2508.04652) are in `writing` and `functions`: untrained
teams, MAGRPO, and the other systems with as many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

from configs import common
from configs import contests as contests_config
from configs import maths as maths_config
from environments.boards import board_game
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from environments.writing import env as writing
from paper import jobs as jobs_lib

AT_GRPO = 'at_grpo'
# Config and folder of a game -> its name in tables.
GAMES = {'plan_path': 'Plan-Path', 'sokoban': 'Sokoban', 'sudoku': 'Sudoku'}
# The game of all ablations, as in the paper's Table 4.
ABLATED = 'plan_path'
_PER_ROLE = f'main/{ABLATED}/at_grpo_per_role'

# Table -> row -> overrides of AT-GRPO.
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
    # The ratio of a single update is 1, so its level and the dual clip are
    # compared with four updates.
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

# Row -> tasks per step relative to AT-GRPO, where it is not 1.
NUM_TASKS_RATIO = {
    # An episode that every candidate plays to its end takes more tokens than a
    # tree, an episode of a single agent fewer.
    'sa_grpo': 5, 'sa_grpo_turns': 2, 'mas_grpo': 1 / 2,
    'mas_grpo_agent': 1 / 2, 'mas_grpo_turn': 1 / 2,
    'mas_grpo_agent_turn': 1 / 2,
    # Every branch is played, with up to 510 candidates per task.
    'magrpo': 1 / 8,
    'tree_immediate': 1 / 3, 'parallel_immediate': 1 / 3,
    'parallel_return_to_go': 1 / 3,
    # Continuations cost tokens; smaller steps keep the number of updates.
    'immediate_small_steps': 1 / 8, 'monte_carlo_small_steps': 1 / 8}

# Row -> the AT-GRPO row with as many tasks and updates per step, which it is
# compared with. Other rows are compared with the AT-GRPO of their table.
SAME_STEPS = {
    'parallel_immediate': 'tree_immediate',
    'parallel_return_to_go': 'tree_immediate',
    'monte_carlo_small_steps': 'immediate_small_steps',
    'four_updates_sequence': 'four_updates',
    'four_updates_dual_clip': 'four_updates',
}

# Config of a problem -> benchmark -> its name in tables.
BENCHMARKS = {
    'maths': {
        'aime24': 'AIME24', 'aime25': 'AIME25',
        'olympiadbench': 'OlympiadBench'},
    'contests': {
        'livecodebench': 'LiveCodeBench v6', 'apps': 'APPS',
        'code_contests': 'CodeContests'},
}
# The data set of nano, which is trained and tested on the same distribution.
NANO_BENCHMARK = {
    'maths': ('stories', 'Word problems'), 'contests': ('recipes', 'Recipes')}
# Task -> system -> tasks per step relative to AT-GRPO, so that as many tokens
# make about as many updates. AT-GRPO comes first.
_PROBLEM_SYSTEMS = {
    AT_GRPO: 1, 'sa_grpo': 2, 'mas_grpo': 1 / 2, 'at_grpo_per_role': 1}
PROBLEM_SYSTEMS = {
    'maths': {**_PROBLEM_SYSTEMS, 'sa_tool_grpo': 2},
    'contests': _PROBLEM_SYSTEMS}
# System -> its team, which is also evaluated untrained.
TEAM_OF_SYSTEM = {AT_GRPO: 'pair', 'sa_grpo': 'solo', 'sa_tool_grpo': 'tool'}
_SYSTEM_OF_TEAM = {team: system for system, team in TEAM_OF_SYSTEM.items()}
_PROBLEM_TEAMS = {'maths': maths.TEAMS, 'contests': contests.TEAMS}
_PROBLEM_CONFIGS = {'maths': maths_config, 'contests': contests_config}

# Config of a joint task -> its kind -> name in tables.
JOINT_TASKS = {
    'writing': {
        'posts': 'Posts', 'tldr': 'TL;DR', 'arxiv_a': 'arXiv, window to 1.3',
        'arxiv_b': 'arXiv, window to 1.6'},
    'functions': {
        'recipes': 'Recipes', 'humaneval': 'HumanEval',
        'coop_humaneval': 'CoopHumanEval', 'mbpp': 'MBPP'},
}
_NANO_KINDS = ('posts', 'recipes')
_JOINT_TEAMS = {'writing': writing.TEAMS, 'functions': functions.TEAMS}
MAGRPO = 'magrpo'
_NUM_TIMED = 50  # Tasks.


def make_jobs(
    scale: str, num_seeds: int,
    sandbox_level: str = 'auto') -> list[jobs_lib.Job]:
  """All jobs, each after the jobs it needs."""
  jobs = []
  for seed in range(num_seeds):
    jobs += _main(scale, seed)
    jobs += _switches(scale, seed)
    jobs += _agents(scale, seed)
    jobs += _roles(scale, seed)
    jobs += _problems(scale, seed)
    jobs += _joint(scale, seed)
  if sandbox_level == 'auto':
    return jobs
  return [
      dataclasses.replace(
          job, overrides={**job.overrides, 'sandbox.level': sandbox_level})
      for job in jobs]


def _config(file: str, scale: str, **arguments: str) -> str:
  """Value of --config for a file in configs/."""
  given = ''.join(f',{name}={value}' for name, value in arguments.items())
  return f'configs/{file}.py:size={scale}{given}'


def _export(job: jobs_lib.Job, last_policy: str) -> jobs_lib.Job:
  """Exports the policies of a training."""
  return dataclasses.replace(
      job, mode='export', budget_of='', budget_ratio=1.0,
      overrides={**job.overrides, 'export.dtype': 'float32'},
      # Each policy's folder is written atomically.
      result=f'export/{last_policy}/tokenizer.json', needs=(job.key,))


# The games.


def _train_game(
    row_path: str, scale: str, seed: int,
    changes: Mapping[str, Any] | None = None, budget_ratio: float = 1.0,
    **arguments: str) -> jobs_lib.Job:
  """Trains a row, with AT-GRPO's budget unless it is AT-GRPO itself."""
  table, task, row = row_path.split('/')
  # Every row is tested on the whole split, so all rows are comparable.
  overrides = {'seed': seed, 'evaluation.test': 'test'}
  if row in NUM_TASKS_RATIO:
    num_tasks = common.game_config(task, f'size={scale}').rollout.num_tasks
    overrides['rollout.num_tasks'] = int(NUM_TASKS_RATIO[row] * num_tasks)
  at_grpo = f'main/{task}/{AT_GRPO}'
  needs = []
  if row_path != at_grpo:
    needs.append(at_grpo)
  if table in SWITCHES:
    needs.append(f'unchanged/{task}/{AT_GRPO}')
  if table == 'roles':
    needs.append(_PER_ROLE)
  if row in SAME_STEPS:
    needs.append(f'{table}/{task}/{SAME_STEPS[row]}')
  return jobs_lib.Job(
      f'{row_path}/seed-{seed}', _config(task, scale, **arguments),
      overrides | (changes or {}),
      budget_of='' if row_path == at_grpo else f'{at_grpo}/seed-{seed}',
      budget_ratio=budget_ratio,
      needs=tuple(('train', f'{path}/seed-{seed}') for path in needs))


def _main(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  for task in GAMES:
    yield _train_game(f'main/{task}/{AT_GRPO}', scale, seed)
    for system in common.SYSTEMS:
      if system != AT_GRPO:
        changes = {}
        if system in ('magrpo', 'iac', 'maac'):
          # Diagnosing MAGRPO's many groups takes as long as an update, so the
          # tables have no gradient norm, entropy and KL of these rows.
          changes['train.diagnose_every'] = 0
        if system == 'magrpo':  # It has about ten times as many steps.
          changes['evaluation.validate_every'] = 25
        yield _train_game(
            f'main/{task}/{system}', scale, seed, changes, system=system)
    for reward in ('outcome', 'outcome_and_plans'):
      yield _train_game(
          f'reward/{task}/{reward}', scale, seed,
          {'environment.reward': reward})


def _switches(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  yield _train_game(
      f'unchanged/{ABLATED}/{AT_GRPO}', scale, seed, budget_ratio=1 / 3)
  config = common.game_config(ABLATED, f'size={scale}')
  for table, rows in SWITCHES.items():
    for row, changes in rows.items():
      changed = config.copy_and_resolve_references()
      changed.update_from_flattened_dict(changes)
      # A row that changes nothing would repeat `unchanged`.
      if changed != config or row in NUM_TASKS_RATIO:
        yield _train_game(
            f'{table}/{ABLATED}/{row}', scale, seed, changes, 1 / 3)


def _agents(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  for team, roles in board_game.TEAMS.items():
    if team != 'pair':
      yield _train_game(
          f'agents/{ABLATED}/{len(roles)}', scale, seed, team=team)


def _roles(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  """Roles trained apart, combined and swapped."""
  trained_apart = {}
  for role, other in (('tool', 'planner'), ('planner', 'tool')):
    job = _train_game(
        f'roles/{ABLATED}/only_{role}', scale, seed,
        {'per_policy': ((other, 'model.trained', 'none'),)}, 0.5,
        system='at_grpo_per_role')
    yield job
    yield _export(job, role)
    trained_apart[role] = job.path, role
  yield _play(f'roles/{ABLATED}/combined/seed-{seed}', scale, seed,
              trained_apart)
  together = _train_game(_PER_ROLE, scale, seed, system='at_grpo_per_role')
  yield _export(together, 'planner')
  yield _play(f'roles/{ABLATED}/swapped/seed-{seed}', scale, seed, {
      'tool': (together.path, 'planner'), 'planner': (together.path, 'tool')})


def _play(
    path: str, scale: str, seed: int,
    exports: Mapping[str, tuple[str, str]]) -> jobs_lib.Job:
  """Evaluates exported policies: role -> (path of a training, policy)."""
  per_policy = tuple(
      (role, 'model.folder', f'{{out}}/{trained}/export/{policy}')
      for role, (trained, policy) in exports.items())
  needs = [('export', trained) for trained, _ in exports.values()]
  needs.append(('train', f'{_PER_ROLE}/seed-{seed}'))
  return jobs_lib.Job(
      path, _config(ABLATED, scale, system='at_grpo_per_role'),
      {'seed': seed, 'evaluation.test': 'test', 'per_policy': per_policy},
      mode='evaluate', result='evals/evaluation.json', needs=tuple(needs))


# Mathematics and code.


def _problems(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  for task, benchmarks in BENCHMARKS.items():
    folder = f'problems/{task}'
    if scale != 'nano':
      for team in _PROBLEM_TEAMS[task]:
        for benchmark in benchmarks:
          yield _evaluate_benchmark(
              f'{folder}/untrained_{team}', task, benchmark, scale, seed,
              _SYSTEM_OF_TEAM[team], {})
    at_grpo = f'{folder}/{AT_GRPO}/seed-{seed}'
    for system, ratio in PROBLEM_SYSTEMS[task].items():
      path = f'{folder}/{system}/seed-{seed}'
      config = _PROBLEM_CONFIGS[task].get_config(f'size={scale}')
      is_first = path == at_grpo
      job = jobs_lib.Job(
          path, _config(task, scale, system=system), {
              'seed': seed,
              'rollout.num_tasks': int(ratio * config.rollout.num_tasks),
              **({'evaluation.test': 'test'} if scale == 'nano' else {})},
          budget_of='' if is_first else at_grpo,
          needs=() if is_first else (('train', at_grpo),))
      yield job
      if scale != 'nano':
        yield from _benchmarks(job, task, system, scale, seed)


def _benchmarks(
    job: jobs_lib.Job, task: str, system: str, scale: str,
    seed: int) -> Iterator[jobs_lib.Job]:
  """Evaluates a training on all benchmarks."""
  folder = f'{{out}}/{job.path}/export'
  models, last = {'model.folder': f'{folder}/shared'}, 'shared'
  if system == 'at_grpo_per_role':
    roles = _PROBLEM_TEAMS[task]['pair']
    last = roles[-1]
    models = {'per_policy': tuple(
        (role, 'model.folder', f'{folder}/{role}') for role in roles)}
  export = _export(job, last)
  yield export
  for benchmark in BENCHMARKS[task]:
    yield _evaluate_benchmark(
        f'problems/{task}/{system}', task, benchmark, scale, seed, system,
        models, needs=(export.key,))


def _evaluate_benchmark(
    row: str, task: str, benchmark: str, scale: str, seed: int, system: str,
    models: Mapping[str, Any],
    needs: tuple[jobs_lib.Key, ...] = ()) -> jobs_lib.Job:
  """Evaluates on a benchmark, with `models` instead of the config's."""
  arguments, changes = {'system': system}, {'seed': seed, **models}
  if task == 'contests':
    arguments['data'] = benchmark
  else:
    changes['evaluation.test'] = benchmark
  return jobs_lib.Job(
      f'{row}/{benchmark}/seed-{seed}', _config(task, scale, **arguments),
      changes, mode='evaluate', result='evals/evaluation.json', needs=needs)


# MAGRPO's tasks.


def _joint(scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  for table, kinds in JOINT_TASKS.items():
    for kind in kinds:
      if (kind in _NANO_KINDS) == (scale == 'nano'):
        yield from _joint_kind(table, kind, scale, seed)


def _joint_kind(
    table: str, kind: str, scale: str, seed: int) -> Iterator[jobs_lib.Job]:
  folder = f'{table}/{kind}'
  timed = {'seed': seed, 'evaluation.num_timed': _NUM_TIMED}
  # HumanEval has one split, of which a part is tested; arXiv has one split for
  # validation and test.
  is_humaneval, is_arxiv = 'humaneval' in kind, 'arxiv' in kind
  tested = {} if is_humaneval or is_arxiv else {'evaluation.test': 'test'}
  for team in _JOINT_TEAMS[table]:
    yield jobs_lib.Job(
        f'{folder}/untrained_{team}/seed-{seed}',
        _config(table, scale, kind=kind, team=team), timed | tested,
        mode='evaluate', result='evals/evaluation.json')
  magrpo = f'{folder}/{MAGRPO}/seed-{seed}'
  for system in common.MAGRPO_SYSTEMS:
    path = f'{folder}/{system}/seed-{seed}'
    is_first = path == magrpo
    job = jobs_lib.Job(
        path, _config(table, scale, kind=kind, system=system),
        {'seed': seed, **tested}, budget_of='' if is_first else magrpo,
        needs=() if is_first else (('train', magrpo),))
    yield job
    timed_tasks = {}
    if not is_humaneval:  # Its test has fewer tasks.
      split = 'val' if is_arxiv else 'test'
      timed_tasks = {'evaluation.test': f'{split}[:{_NUM_TIMED}]'}
    yield dataclasses.replace(
        job, mode='evaluate', result='evals/timed.json', budget_of='',
        overrides={**timed, **timed_tasks, 'evaluation.name': 'timed'},
        needs=(job.key,))
