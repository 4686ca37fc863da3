"""The cells of AT-GRPO's mathematics and code (arXiv 2510.11062, section 5.2).

The table `problems` has untrained teams and single agents, AT-GRPO, and the
others with as many tokens as AT-GRPO. Beyond nano what was trained is exported
and evaluated on each benchmark, in
`OUT/problems/<task>/<row>/<benchmark>/seed-<n>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from configs import contests as contests_config
from configs import maths as maths_config
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from paper import cell as cell_lib

# Task, as its config is called -> benchmark -> its name in tables.
BENCHMARKS = {
    'maths': {
        'aime24': 'AIME24', 'aime25': 'AIME25',
        'olympiadbench': 'OlympiadBench'},
    'contests': {
        'livecodebench': 'LiveCodeBench v6', 'apps': 'APPS',
        'code_contests': 'CodeContests'},
}
# The one of nano, which is tested where it is trained.
SMALL = {'maths': ('stories', 'Word problems'),
         'contests': ('recipes', 'Recipes')}
AT_GRPO = 'at_grpo'
# AT-GRPO is the first. Task -> row -> tasks in a step, relative to AT-GRPO, so
# that as many tokens make about as many updates.
_SYSTEMS = {
    AT_GRPO: 1, 'sa_grpo': 2, 'mas_grpo': 1 / 2, 'at_grpo_per_role': 1}
SYSTEMS = {'maths': {**_SYSTEMS, 'sa_tool_grpo': 2}, 'contests': _SYSTEMS}
# What trains a team, with as many turns as it has untrained.
_SYSTEM_OF = {'pair': AT_GRPO, 'solo': 'sa_grpo', 'tool': 'sa_tool_grpo'}
_TEAMS = {'maths': maths.TEAMS, 'contests': contests.TEAMS}
_CONFIGS = {'maths': maths_config, 'contests': contests_config}


def make(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  """All cells, each behind those it needs."""
  for task, benchmarks in BENCHMARKS.items():
    folder = f'problems/{task}'
    if scale != 'nano':
      for team in _TEAMS[task]:
        for name in benchmarks:
          yield _evaluate(
              f'{folder}/untrained_{team}', task, name, scale, seed,
              {}, system=_SYSTEM_OF[team])
    at_grpo = f'{folder}/{AT_GRPO}/seed-{seed}'
    for system, share in SYSTEMS[task].items():
      path = f'{folder}/{system}/seed-{seed}'
      config = _CONFIGS[task].get_config(f'size={scale}')
      cell = cell_lib.Cell(
          path, cell_lib.config_of(task, scale, system=system), {
              'seed': seed,
              'rollout.num_tasks': int(share * config.rollout.num_tasks),
              **({'evaluation.test': 'test'} if scale == 'nano' else {})},
          budget_of='' if path == at_grpo else at_grpo)
      yield cell
      if scale != 'nano':
        yield from _benchmarks(cell, task, system, scale, seed)


def _benchmarks(
    cell: cell_lib.Cell, task: str, system: str, scale: str,
    seed: int) -> Iterator[cell_lib.Cell]:
  """The evaluations of a training on all benchmarks."""
  folder = f'{{out}}/{cell.path}/export'
  models, last = {'model.folder': f'{folder}/shared'}, 'shared'
  if system == 'at_grpo_per_role':
    roles = _TEAMS[task]['pair']
    models, last = {'per_policy': ';'.join(
        f'{role}.model.folder={folder}/{role}' for role in roles)}, roles[-1]
  yield cell_lib.export(cell, last)
  for name in BENCHMARKS[task]:
    yield _evaluate(
        f'problems/{task}/{system}', task, name, scale, seed, models,
        system=system)


def _evaluate(
    row: str, task: str, benchmark: str, scale: str, seed: int,
    models: Mapping[str, Any], **arguments: str) -> cell_lib.Cell:
  """Plays a benchmark with exported models, or with those of the config."""
  changes = {'seed': seed, **models}
  if task == 'contests':
    arguments = {**arguments, 'data': benchmark}
  else:
    changes['evaluation.test'] = benchmark
  return cell_lib.Cell(
      f'{row}/{benchmark}/seed-{seed}',
      cell_lib.config_of(task, scale, **arguments), changes, mode='evaluate',
      result='evals/evaluation.json')
