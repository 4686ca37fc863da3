"""Runs every cell of the paper's tables; see `launch/paper.sh --help`.

A cell is one process of `atgrpo_jax.main` with the workdir
`OUT/<scale>/<table>/<task>/<row>/seed-<n>`. A cell that has its result is
skipped, one that was stopped resumes. At the end `paper_tables` makes the
tables from what is there.

Tables (arXiv 2510.11062, sections 5.2 and 5.3, and what its reviewers asked
for):

  main         all systems on all games. AT-GRPO by one policy comes first and
               takes `train.num_steps`; the others get as many generated tokens
               as it took with the same seed. What is compared with it has as
               many tasks in a step as make about as many updates of these
               tokens, see `SHARE_OF_TASKS`; `mas_grpo_same_tasks` has as many
               tasks in a step as AT-GRPO
  reward       the other presets: `outcome`, in which nothing but the team's
               checker pays (so the tool, whose step pays nothing at once, has
               no signal); `outcome_and_plans`, in which the checker also pays
               for proposals; on Sokoban `oracle`, with a term that sees dead
               ends
  roles        each role trained beside the untrained other, with half of the
               tokens each; the two combined; and roles played by the policies
               of other roles and seeds
  agents       1, 2, 3, 5 and 7 agents
  rollout      independent episodes whose prompts of one agent and turn are
               compared, with the reward of a step and with that of all later
               ones: what AT-GRPO would be without its tree. All in steps of a
               third of the tasks
  selection, target, normaliser, group_size, turns
               other values of these switches
  unchanged    AT-GRPO with a third of its tokens, which is what `rollout` and
               the switches get: there is still something to learn then
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fnmatch
import itertools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

from absl import app
from absl import flags

from atgrpo_jax import errors
from atgrpo_jax import files
from atgrpo_jax import metrics
from configs import common
from configs import pod
from environments import games

TASKS = ('plan_path', 'sokoban', 'sudoku')
# The task of the ablations, as in the paper's Table 4.
ABLATED = 'plan_path'

# Tables that change AT-GRPO by a few values.
SWITCHES = (
    'rollout', 'selection', 'target', 'normaliser', 'group_size', 'turns')

# Row -> AT-GRPO in steps of as many tasks, which it is compared with. All other
# rows are compared with the AT-GRPO that their table has.
SAME_STEPS = {
    'parallel_immediate': 'tree_immediate',
    'parallel_return_to_go': 'tree_immediate',
    'monte_carlo_small_steps': 'immediate_small_steps',
}

# Tasks in a step, in those of AT-GRPO. An episode that is played to its end by
# every candidate takes more tokens than a tree, one of a single agent fewer.
SHARE_OF_TASKS = {
    'sa_grpo': 5, 'sa_grpo_turns': 2, 'mas_grpo': 1 / 2,
    'mas_grpo_agent': 1 / 2, 'mas_grpo_turn': 1 / 2,
    'mas_grpo_agent_turn': 1 / 2}

# All cells, so that all rows can be compared.
_WHOLE_TEST = {'evaluation.test': 'test'}


def _small_steps(num_tasks: int) -> dict[str, Any]:
  """A third of the `num_tasks` tasks of a step."""
  return {'rollout.num_tasks': num_tasks // 3}


def _switched(num_tasks: int) -> dict[str, dict[str, dict[str, Any]]]:
  """Table -> row -> overrides, where a step has `num_tasks` tasks."""
  # Continuations cost tokens: with smaller steps there are as many updates.
  eighth = {'rollout.num_tasks': num_tasks // 8}
  parallel = {**_small_steps(num_tasks), 'rollout.rollout': 'parallel'}
  return {
      'rollout': {
          'tree_immediate': _small_steps(num_tasks),
          'parallel_immediate': parallel,
          'parallel_return_to_go': {
              **parallel, 'rollout.target': 'return_to_go'}},
      'selection': {
          name: {'rollout.selection': name} for name in (
              'team_greedy', 'softmax', 'uniform', 'epsilon_greedy')},
      'target': {
          'immediate_small_steps': eighth,
          'monte_carlo_small_steps': {
              **eighth, 'rollout.target': 'monte_carlo',
              'rollout.num_continuations': 1}},
      'normaliser': {
          name: {'advantage.normaliser': name}
          for name in ('none', 'leave_one_out')},
      'group_size': {
          str(size): {'rollout.group_size': size} for size in (2, 4, 8, 16)},
      'turns': {
          str(turns): {'environment.max_turns': turns}
          for turns in (1, 2, 4, 8)},
  }


_POLL_SECONDS = 0.1

# What every model beyond nano needs, one policy for each role included (see
# `--mode compile_check` and the README).
_HARDWARE = '16 TPU v6e chips (4x4); with 1.7b, v5e chips will do as well'
_TOPOLOGY = 'v6e:4x4'
_POD = ('launch/tpu_pod.sh', '--name', 'NAME', '--zone', 'ZONE',
        '--accelerator-type', 'v6e-16')


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
    budget_share: which part of these it may generate.
  """

  path: str
  config: str
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mode: str = 'train'
  result: str = 'evals/after.json'
  budget_of: str = ''
  budget_share: float = 1.0


def make_cells(scale: str, num_seeds: int) -> list[Cell]:
  """All cells, each behind those it needs; `{out}` stands for OUT."""
  cells = []
  for seed in range(num_seeds):
    cells += [*_main(scale, seed), *_switches(scale, seed)]
    cells += [*_agents(scale, seed), *_roles(scale, seed)]
  cells += _cross_play(scale, num_seeds)
  if scale == 'nano':
    return cells
  cut = pod.get_config(f'size={scale},topology={_TOPOLOGY}')
  as_cut = {
      'mesh.fsdp': cut.mesh.fsdp, 'mesh.tensor': cut.mesh.tensor,
      'buckets.groups': cut.buckets.groups}
  return [
      dataclasses.replace(cell, overrides={**cell.overrides, **as_cut})
      for cell in cells]


def _train(
    path, task, scale, seed, overrides=(), budget_of='', budget_share=1.0,
    **arguments):
  given = ''.join(f',{name}={value}' for name, value in arguments.items())
  return Cell(
      f'{path}/seed-{seed}', f'configs/{task}.py:size={scale}{given}',
      {'seed': seed, **_WHOLE_TEST, **dict(overrides)},
      budget_of=budget_of and f'{budget_of}/seed-{seed}',
      budget_share=budget_share)


def _main(scale: str, seed: int) -> Iterator[Cell]:
  for task in TASKS:
    first = f'main/{task}/at_grpo'
    yield _train(first, task, scale, seed)
    num_tasks = common.game_config(task, f'size={scale}').rollout.num_tasks
    for system in common.SYSTEMS:
      if system != 'at_grpo':
        changes = {}
        if system in SHARE_OF_TASKS:
          changes['rollout.num_tasks'] = round(
              SHARE_OF_TASKS[system] * num_tasks)
        yield _train(
            f'main/{task}/{system}', task, scale, seed, changes, first,
            system=system)
    yield _train(
        f'main/{task}/mas_grpo_same_tasks', task, scale, seed, (), first,
        system='mas_grpo')
    rewards = ['outcome', 'outcome_and_plans']
    if task == 'sokoban':
      rewards.append('oracle')
    for reward in rewards:
      yield _train(
          f'reward/{task}/{reward}', task, scale, seed,
          {'environment.reward': reward}, first)


def _switches(scale: str, seed: int) -> Iterator[Cell]:
  config = common.game_config(ABLATED, f'size={scale}')
  first = f'main/{ABLATED}/at_grpo'
  yield _train(
      f'unchanged/{ABLATED}/at_grpo', ABLATED, scale, seed, (), first, 1 / 3)
  for table, rows in _switched(config.rollout.num_tasks).items():
    for row, overrides in rows.items():
      changed = config.copy_and_resolve_references()
      changed.update_from_flattened_dict(overrides)
      if changed != config:  # Else it is `unchanged`.
        yield _train(
            f'{table}/{ABLATED}/{row}', ABLATED, scale, seed, overrides, first,
            1 / 3)


def _agents(scale: str, seed: int) -> Iterator[Cell]:
  for team, roles in games.TEAMS.items():
    if team != 'pair':
      yield _train(
          f'agents/{ABLATED}/{len(roles)}', ABLATED, scale, seed, (),
          f'main/{ABLATED}/at_grpo', team=team)


def _roles(scale: str, seed: int) -> Iterator[Cell]:
  """Trained apart, combined, and swapped; and what `_cross_play` needs."""
  config = f'configs/{ABLATED}.py:size={scale},system=at_grpo_per_role'
  folder = f'roles/{ABLATED}'
  both = f'main/{ABLATED}/at_grpo_per_role/seed-{seed}'
  apart = {}
  for role, other in (('tool', 'planner'), ('planner', 'tool')):
    cell = _train(
        f'{folder}/only_{role}', ABLATED, scale, seed,
        {'per_policy': f'{other}.model.trained=none'},
        f'main/{ABLATED}/at_grpo', 0.5, system='at_grpo_per_role')
    yield cell
    yield _export(cell, role)
    apart[role] = f'{cell.path}/export/{role}'
  yield _played(f'{folder}/combined/seed-{seed}', config, seed, apart)
  together = Cell(both, config, {'seed': seed, **_WHOLE_TEST})
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
      # Each policy's folder is there whole or not at all, and this is the last.
      result=f'export/{last}/tokenizer.json')


def _played(
    path: str, config: str, seed: int, folders: Mapping[str, str]) -> Cell:
  """A team of finished policies."""
  return Cell(
      path, config, {
          'seed': seed, **_WHOLE_TEST,
          'per_policy': ';'.join(
              f'{role}.model.folder={{out}}/{folder}'
              for role, folder in folders.items())},
      mode='evaluate', result='evals/evaluation.json')


def command(cell: Cell, out: pathlib.Path, tokens: int | str) -> list[str]:
  """The flags of the trainer; `tokens` is the budget, if the cell has one."""
  overrides = dict(cell.overrides)
  if cell.budget_of:
    overrides |= {'train.num_steps': 0, 'train.completion_tokens': tokens}
  return [
      '--mode', cell.mode, '--config', cell.config,
      '--workdir', str(out / cell.path), *(
          f'--config.{key}={value}'.replace('{out}', str(out))
          for key, value in overrides.items())]


def generated_tokens(workdir: pathlib.Path) -> int:
  """Completion tokens of all rollouts of a run."""
  return int(sum(
      line['budget/completion_tokens'] for line in metrics.read(workdir)))


def needed(cell: Cell) -> list[tuple[str, str]]:
  """(mode, path) of the cells that this one starts from or is compared with."""
  cells = [
      ('export', path) for path in re.findall(
          r'{out}/([^;]*)/export/', cell.overrides.get('per_policy', ''))]
  if cell.budget_of:
    cells.append(('train', cell.budget_of))
  if cell.mode == 'export':
    cells.append(('train', cell.path))
  table, task, row, *_, seed = cell.path.split('/')
  if table in SWITCHES:
    cells.append(('train', f'unchanged/{task}/at_grpo/{seed}'))
  if table == 'roles':
    cells.append(('train', f'main/{task}/at_grpo_per_role/{seed}'))
  if row in SAME_STEPS:
    cells.append(('train', f'{table}/{task}/{SAME_STEPS[row]}/{seed}'))
  return cells


def with_needed(
    chosen: Sequence[Cell], cells: Sequence[Cell],
    out: pathlib.Path) -> list[Cell]:
  """Those of `cells` that are chosen, or needed by one of them and not done."""
  makes = {(cell.mode, cell.path): cell for cell in cells}
  wanted = {(cell.mode, cell.path) for cell in chosen}
  stack = [cell for cell in chosen if not is_done(cell, out)]
  while stack:
    for name in needed(stack.pop()):
      if name not in wanted and not is_done(makes[name], out):
        wanted.add(name)
        stack.append(makes[name])
  return [cell for cell in cells if (cell.mode, cell.path) in wanted]


def is_done(cell: Cell, out: pathlib.Path) -> bool:
  """Whether the cell has its result."""
  return (out / cell.path / cell.result).exists()


def run_cells(
    cells: Sequence[Cell], out: pathlib.Path, num_jobs: int = 1) -> int:
  """Runs what is not done, up to `num_jobs` cells at a time.

  With several, each has its share of the cores. A cell waits for those it
  needs. Once one fails, no other is started. SIGINT and SIGTERM are passed on
  to those that run, so that they save; SIGHUP, of a terminal that is closed, as
  SIGTERM.

  Trainers that this program has left when it was killed are waited for. Raises
  UserError if another of it is at work in `out`.

  Returns:
    The exit status of the first that failed; else 128 + the first signal; or 0.
  """
  running: dict[int, tuple[Cell, subprocess.Popen]] = {}  # By their share.
  cores = sorted(os.sched_getaffinity(0))
  num_passed_on, failed = 0, 0
  with _lock(out), _signals() as signals:
    _wait_for_trainers(cells, out, signals)
    waiting = {
        index: cell for index, cell in enumerate(cells)
        if not is_done(cell, out)}
    try:
      while True:
        for share in sorted(set(range(num_jobs)) - set(running)):
          if failed or signals:
            break
          index = _first_ready(waiting, [cell for cell, _ in running.values()])
          if index is None:
            break
          cell = waiting.pop(index)
          tokens = cell.budget_of and int(
              cell.budget_share * generated_tokens(out / cell.budget_of))
          line = ['-m', 'atgrpo_jax.main', *command(cell, out, tokens)]
          print(
              f'[{index + 1}/{len(cells)}] python {shlex.join(line)}',
              flush=True)
          running[share] = cell, _start(
              line, _log_path(cell, out), cores[share::num_jobs])
        if not running:
          break
        time.sleep(_POLL_SECONDS)
        new = signals[num_passed_on:]
        num_passed_on += len(new)
        for share, (cell, process) in list(running.items()):
          for number in new:
            process.send_signal(
                signal.SIGTERM if number == signal.SIGHUP else number)
          if process.poll() is not None:
            del running[share]
            failed = failed or process.returncode
            if process.returncode:
              print(
                  f'error: the cell ended with status {process.returncode}; '
                  f'its log is {_log_path(cell, out)}. The same command goes '
                  'on here.', file=sys.stderr)
    finally:
      for _, process in running.values():  # If this program has an error.
        process.terminate()
        process.wait()
  return failed or (128 + signals[0] if signals else 0)


def _lock(out: pathlib.Path) -> contextlib.ExitStack:
  """Keeps others of this program out of OUT until it is closed."""
  out.mkdir(parents=True, exist_ok=True)
  held = files.try_lock(out)
  if held is None:
    raise errors.UserError(
        f'Cells are being run in {out} already; wait, or give another --out.')
  return held


def _wait_for_trainers(
    cells: Sequence[Cell], out: pathlib.Path, signals: Sequence[int]) -> None:
  """Returns when nobody trains in the workdirs, or on a signal."""
  for workdir in dict.fromkeys(out / cell.path for cell in cells):
    if not workdir.exists():
      continue
    held = files.try_lock(workdir)  # As `experiment.lock` does.
    if held is None:
      print(f'waits for the trainer that is at work in {workdir}', flush=True)
    while held is None and not signals:
      time.sleep(_POLL_SECONDS)
      held = files.try_lock(workdir)
    if held is not None:
      held.close()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
  """A list to which SIGINT, SIGTERM and SIGHUP that come are added."""
  came = []
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup has it.
    numbers.append(signal.SIGHUP)
  before = {
      number: signal.signal(number, lambda number, frame: came.append(number))
      for number in numbers}
  try:
    yield came
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _first_ready(
    waiting: Mapping[int, Cell], running: Sequence[Cell]) -> int | None:
  """The first cell that waits, but not for one of these; None if all do."""
  unfinished = {
      (cell.mode, cell.path) for cell in (*waiting.values(), *running)}
  return next((
      index for index, cell in waiting.items()
      if unfinished.isdisjoint(needed(cell))), None)


def _log_path(cell: Cell, out: pathlib.Path) -> pathlib.Path:
  return out / 'logs' / f'{cell.path}.{cell.mode}'


def _start(
    line: Sequence[str], log_path: pathlib.Path,
    cores: Sequence[int]) -> subprocess.Popen:
  """Starts Python on these cores."""
  # A second device would have no core of its own.
  one = {'JAX_NUM_CPU_DEVICES': '1'} if len(cores) == 1 else {}
  log_path.parent.mkdir(parents=True, exist_ok=True)
  with log_path.open('a') as log:
    # In a session of its own, Ctrl-C reaches it from here alone, and once.
    process = subprocess.Popen(
        [sys.executable, *line], stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, env=os.environ | one)
  os.sched_setaffinity(process.pid, cores)
  return process


def print_cells(cells: Sequence[Cell], out: pathlib.Path, scale: str) -> None:
  """Prints what would be run."""
  if scale != 'nano':
    print(f'Each of these {len(cells)} runs needs {_HARDWARE}.')
  for cell in cells:
    share = '' if cell.budget_share == 1 else f'{cell.budget_share:.2g} x the '
    arguments = command(cell, out, f'<{share}tokens of {cell.budget_of}>')
    line = ['python', '-m', 'atgrpo_jax.main', *arguments]
    if scale != 'nano':
      line = ['bash', *_POD, *arguments[:6], '--', *arguments[6:]]
    print(shlex.join(line) + ('  # done' if is_done(cell, out) else ''))


def _define_flags() -> None:
  flags.DEFINE_string('out', 'runs/paper', 'Folder of all workdirs.')
  flags.DEFINE_enum(
      'scale', 'nano', ['nano', '1.7b', '8b'],
      'Size of the models. Beyond nano the commands are printed, with the '
      'hardware they need, and not run.')
  flags.DEFINE_integer('seeds', 3, 'Seeds of each cell.', lower_bound=1)
  flags.DEFINE_list(
      'only', ['*'], 'Cells whose path fits one of these patterns, such as '
      '"main/sokoban/*" or "roles/*", and those that they need.')
  flags.DEFINE_integer(
      'jobs', 1, 'Cells at a time, each with its share of the cores.',
      lower_bound=1)
  flags.DEFINE_bool('dry_run', False, 'Print the commands; run none.')


def choose(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
  """The cells whose path fits a pattern; each pattern must fit one."""
  paths = [cell.path for cell in cells]
  for pattern in patterns or ['']:
    if not fnmatch.filter(paths, pattern):
      raise errors.UserError(
          f'no cell fits {pattern!r} of --only; see --dry_run for their '
          'paths.')
  return [
      cell for cell in cells
      if any(fnmatch.fnmatch(cell.path, pattern) for pattern in patterns)]


def main(argv: list[str]) -> int:
  given = flags.FLAGS
  out = pathlib.Path(given.out) / given.scale
  cells = make_cells(given.scale, given.seeds)
  try:
    errors.refuse_arguments(argv)
    chosen = choose(cells, given.only)
    cells = with_needed(chosen, cells, out)
    if given.dry_run or given.scale != 'nano':
      print_cells(cells, out, given.scale)
      return 0
    cores = len(os.sched_getaffinity(0))
    if given.jobs > cores:
      raise errors.UserError(
          f'--jobs={given.jobs} cells at a time need a core each; there are '
          f'{cores}.')
    return run_cells(cells, out, given.jobs) or subprocess.call(
        [sys.executable, '-m', 'atgrpo_jax.paper_tables', '--out', str(out)])
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
  _define_flags()
  app.run(main)
