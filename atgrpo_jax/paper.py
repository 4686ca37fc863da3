"""Runs every cell of the paper's tables; see `launch/paper.sh --help`.

A cell is one process of `atgrpo_jax.main` with the workdir
`OUT/<table>/<task>/<row>/seed-<n>`. A cell that has its result is skipped, one
that was stopped resumes. `paper_tables` makes the tables from what is there.

Tables (arXiv 2510.11062, sections 5.2 and 5.3, and what its reviewers asked
for):

  main         all systems on all games. AT-GRPO by one policy comes first and
               takes `train.num_steps`; the others get as many generated tokens
               as it took with the same seed.
  outcome      no reward but the checker's
  roles        each role trained beside the untrained other, the two then
               combined, and roles played by the policies of other roles and
               seeds
  agents       1, 2, 3, 5 and 7 agents
  selection, target, normaliser, group_size, turns
               the other values of these switches
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import fnmatch
import itertools
import json
import pathlib
import shlex
import subprocess
import sys
from typing import Any

from absl import app
from absl import flags

from configs import common

_OUT = flags.DEFINE_string('out', 'runs/paper', 'Folder of all workdirs.')
_SCALE = flags.DEFINE_enum(
    'scale', 'nano', ['nano', '1.7b', '8b'],
    'Size of the models. Beyond nano the commands are printed, with the '
    'hardware they need, and not run.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds of each cell.', lower_bound=1)
_ONLY = flags.DEFINE_list(
    'only', ['*'], 'Cells whose path fits one of these patterns, such as '
    '"main/sokoban/*" or "roles/*".')
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'Print the commands; run none.')

TASKS = ('plan_path', 'sokoban', 'sudoku')
# The task of the ablations, as in the paper's Table 4.
ABLATED = 'plan_path'
TEAMS = {1: 'solo', 2: 'pair', 3: 'trio', 5: 'quintet', 7: 'septet'}

# Row -> overrides, of the tables that change one switch. What is left out is
# AT-GRPO itself, which stands in `main`.
SWITCHES = {
    'selection': {
        name: {'rollout.selection': name}
        for name in ('team_greedy', 'softmax', 'uniform', 'epsilon_greedy')},
    'target': {'monte_carlo': {'rollout.target': 'monte_carlo'}},
    'normaliser': {
        name: {'advantage.normaliser': name}
        for name in ('none', 'leave_one_out')},
    'group_size': {
        str(size): {'rollout.group_size': size} for size in (2, 4, 16)},
    'turns': {
        str(turns): {'environment.max_turns': turns} for turns in (1, 2, 8)},
}

# Size -> what its teams need; from `--mode compile_check`, see the README.
_HARDWARE = {
    '1.7b': 'a TPU slice v5e:4x4 (16 chips) or larger, whatever the team',
    '8b': (
        'a TPU slice v5e:4x4 (16 chips) for teams that share a policy or have '
        'adapters, and v6e:4x4 (16 chips) for one policy per role'),
}


@dataclasses.dataclass(frozen=True)
class Cell:
  """One process.

  Attributes:
    path: of its workdir, below OUT.
    config: config file and arguments.
    overrides: key -> value of the config.
    mode: of `atgrpo_jax.main`.
    result: the file that says that it is done, in the workdir.
    budget_of: path of the cell whose generated tokens are its limit; '' for
      none.
  """

  path: str
  config: str
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mode: str = 'train'
  result: str = 'evals/after.json'
  budget_of: str = ''


def make_cells(scale: str, num_seeds: int) -> list[Cell]:
  """All cells, each behind those it needs; `{out}` stands for OUT."""
  cells = []
  for seed in range(num_seeds):
    cells += [*_main(scale, seed), *_switches(scale, seed)]
    cells += [*_agents(scale, seed), *_roles(scale, seed)]
  return cells + list(_cross_play(scale, num_seeds))


def _train(path, task, scale, seed, overrides=(), budget_of='', **arguments):
  given = ''.join(f',{name}={value}' for name, value in arguments.items())
  return Cell(
      f'{path}/seed-{seed}', f'configs/{task}.py:size={scale}{given}',
      {'seed': seed, **dict(overrides)},
      budget_of=budget_of and f'{budget_of}/seed-{seed}')


def _main(scale: str, seed: int) -> Iterator[Cell]:
  for task in TASKS:
    first = f'main/{task}/at_grpo'
    yield _train(first, task, scale, seed)
    for system in common.SYSTEMS:
      if system != 'at_grpo':
        yield _train(
            f'main/{task}/{system}', task, scale, seed, budget_of=first,
            system=system)
    yield _train(
        f'outcome/{task}/outcome_only', task, scale, seed,
        {'environment.reward': 'outcome'}, first)


def _switches(scale: str, seed: int) -> Iterator[Cell]:
  for table, rows in SWITCHES.items():
    for row, overrides in rows.items():
      yield _train(
          f'{table}/{ABLATED}/{row}', ABLATED, scale, seed, overrides,
          f'main/{ABLATED}/at_grpo')


def _agents(scale: str, seed: int) -> Iterator[Cell]:
  for num_agents, team in TEAMS.items():
    if team != 'pair':
      yield _train(
          f'agents/{ABLATED}/{num_agents}', ABLATED, scale, seed, (),
          f'main/{ABLATED}/at_grpo', team=team)


def _roles(scale: str, seed: int) -> Iterator[Cell]:
  """Trained apart, combined, and swapped; and what `_cross_play` needs."""
  config = f'configs/{ABLATED}.py:size={scale},system=at_grpo_per_role'
  folder = f'roles/{ABLATED}'
  both = f'main/{ABLATED}/at_grpo_per_role/seed-{seed}'
  apart = {}
  for role, other in (('tool', 'planner'), ('planner', 'tool')):
    cell = _train(
        f'{folder}/{role}_alone', ABLATED, scale, seed,
        {'per_policy': f'{other}.model.trained=none'},
        f'main/{ABLATED}/at_grpo', system='at_grpo_per_role')
    yield cell
    yield _export(cell, role)
    apart[role] = f'{cell.path}/export/{role}'
  yield _played(f'{folder}/combined/seed-{seed}', config, seed, apart)
  together = Cell(both, config, {'seed': seed})
  yield _export(together, 'planner')
  yield _played(f'{folder}/swapped/seed-{seed}', config, seed, {
      'tool': f'{both}/export/planner', 'planner': f'{both}/export/tool'})


def _cross_play(scale: str, num_seeds: int) -> Iterator[Cell]:
  """Each role played by each role's policy of each seed."""
  config = f'configs/{ABLATED}.py:size={scale},system=at_grpo_per_role'
  players = [
      (role, seed) for seed in range(num_seeds) for role in ('tool', 'planner')]
  for one, other in itertools.product(players, players):
    folders = {
        role: f'main/{ABLATED}/at_grpo_per_role/seed-{seed}/export/{policy}'
        for role, (policy, seed) in zip(('tool', 'planner'), (one, other))}
    yield _played(
        f'cross_play/{ABLATED}/{one[0]}-{one[1]}/{other[0]}-{other[1]}',
        config, 0, folders)


def _export(cell: Cell, last: str) -> Cell:
  return dataclasses.replace(
      cell, mode='export', budget_of='',
      overrides={**cell.overrides, 'export.dtype': 'float32'},
      result=f'export/{last}/config.json')


def _played(
    path: str, config: str, seed: int, folders: Mapping[str, str]) -> Cell:
  """A team of finished policies."""
  return Cell(
      path, config, {
          'seed': seed,
          'per_policy': ';'.join(
              f'{role}.model.folder={{out}}/{folder}'
              for role, folder in folders.items())},
      mode='evaluate', result='evals/evaluation.json')


def command(cell: Cell, out: pathlib.Path, tokens: int | str) -> list[str]:
  """What to run after `python`; `tokens` is the budget, if the cell has one."""
  overrides = dict(cell.overrides)
  if cell.budget_of:
    overrides |= {'train.num_steps': 0, 'train.completion_tokens': tokens}
  return [
      '-m', 'atgrpo_jax.main', '--mode', cell.mode, '--config', cell.config,
      '--workdir', str(out / cell.path), *(
          f'--config.{key}={value}'.replace('{out}', str(out))
          for key, value in overrides.items())]


def generated_tokens(workdir: pathlib.Path) -> int:
  """Completion tokens of all rollouts of a run."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return int(sum(
      json.loads(line)['budget/completion_tokens'] for line in lines))


def run_cells(cells: Sequence[Cell], out: pathlib.Path, dry_run: bool) -> int:
  """Runs what is not done; the exit status of the first that fails, or 0."""
  for index, cell in enumerate(cells):
    if (out / cell.path / cell.result).exists():
      continue
    tokens = ''
    if cell.budget_of and (out / cell.budget_of / 'evals/after.json').exists():
      tokens = generated_tokens(out / cell.budget_of)
    elif cell.budget_of:
      tokens = f'<tokens of {cell.budget_of}>'
    line = ['python', *command(cell, out, tokens)]
    print(f'[{index + 1}/{len(cells)}] {shlex.join(line)}', flush=True)
    if dry_run:
      continue
    if isinstance(tokens, str) and cell.budget_of:
      print(
          f'error: {cell.path} may generate as many tokens as '
          f'{cell.budget_of}, which has not been run; add it to --only.',
          file=sys.stderr)
      return 2
    log_path = out / 'logs' / f'{cell.path}.{cell.mode}'
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open('a') as log:
      status = subprocess.run(
          [sys.executable, *line[1:]], stdout=log,
          stderr=subprocess.STDOUT).returncode
    if status:
      print(
          f'error: the cell ended with status {status}; its log is '
          f'{log_path}. The same command goes on here.', file=sys.stderr)
      return status
  return 0


def main(argv: list[str]) -> int:
  del argv
  out = pathlib.Path(_OUT.value)
  cells = [
      cell for cell in make_cells(_SCALE.value, _SEEDS.value)
      if any(fnmatch.fnmatch(cell.path, only) for only in _ONLY.value)]
  if not cells:
    print(f'error: no cell fits --only={",".join(_ONLY.value)}; see '
          '--dry_run for their paths.', file=sys.stderr)
    return 2
  if _SCALE.value != 'nano':
    print(f'Each of these {len(cells)} runs needs '
          f'{_HARDWARE[_SCALE.value]}.')
  return run_cells(cells, out, _DRY_RUN.value or _SCALE.value != 'nano')


if __name__ == '__main__':
  app.run(main)
