"""Runs the cells of the paper's tables; see `launch/paper.sh --help`.

  python -m paper.run --only 'main/*' --dry_run

`paper/cells.py` says what the cells are. Their workdirs are in `OUT/<scale>`. A
cell that has its result is skipped, one that was stopped resumes. At the end
`paper.tables` makes the tables from what is there.

With --keep, what is in these records is not run again, unless another cell
starts from its checkpoints, and its tokens are the budget of others. At the end
the finished runs are added to the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

from absl import app
from absl import flags

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics
from paper import cell as cell_lib
from paper import cells as cells_lib
from paper import data
from paper import records

_POLL_SECONDS = 0.1

# All runs fit it, those with a policy for each role too: docs/hardware.md.
_HARDWARE = '16 TPU v6e chips (4x4); with 1.7b, v5e chips will do as well'
_POD = ('launch/tpu_pod.sh', '--name', 'NAME', '--zone', 'ZONE',
        '--accelerator-type', 'v6e-16')


def run_cells(
    cells: Sequence[cell_lib.Cell], out: pathlib.Path, num_jobs: int,
    kept: records.Runs) -> int:
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
  running: dict[int, tuple[cell_lib.Cell, subprocess.Popen]] = {}  # By share.
  cores = sorted(os.sched_getaffinity(0))
  num_passed_on, failed = 0, 0
  with _lock(out), _signals() as signals:
    _wait_for_trainers(cells, out, signals)
    waiting = {
        index: cell for index, cell in enumerate(cells)
        if not cell.is_done(out)}
    try:
      while True:
        for share in sorted(set(range(num_jobs)) - set(running)):
          if failed or signals:
            break
          index = _first_ready(waiting, [cell for cell, _ in running.values()])
          if index is None:
            break
          cell = waiting.pop(index)
          line = [
              '-m', 'atgrpo_jax.main',
              *cell_lib.command(cell, out, _budget(cell, out, kept))]
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
    cells: Sequence[cell_lib.Cell], out: pathlib.Path,
    signals: Sequence[int]) -> None:
  """Returns when nobody trains in the workdirs, or on a signal."""
  for workdir in dict.fromkeys(out / cell.path for cell in cells):
    if not workdir.exists():
      continue
    held = files.try_lock(workdir)  # As `workdir.lock` does.
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
    waiting: Mapping[int, cell_lib.Cell],
    running: Sequence[cell_lib.Cell]) -> int | None:
  """The first cell that waits, but not for one of these; None if all do."""
  unfinished = {cell.key for cell in (*waiting.values(), *running)}
  return next((
      index for index, cell in waiting.items()
      if unfinished.isdisjoint(cells_lib.needed(cell))), None)


def _budget(
    cell: cell_lib.Cell, out: pathlib.Path, kept: records.Runs) -> int:
  """Completion tokens that it may generate; 0 if its steps are limited."""
  if not cell.budget_of:
    return 0
  steps = (
      kept[cell.budget_of].steps if cell.budget_of in kept
      else metrics.read(out / cell.budget_of))
  generated = int(sum(step['budget/completion_tokens'] for step in steps))
  return int(cell.budget_share * generated)


def _log_path(cell: cell_lib.Cell, out: pathlib.Path) -> pathlib.Path:
  return out / 'logs' / f'{cell.path}.{cell.mode}'


def _start(
    line: Sequence[str], log_path: pathlib.Path,
    cores: Sequence[int]) -> subprocess.Popen:
  """Starts Python on these cores."""
  # A second device would have no core to itself.
  env = {'JAX_NUM_CPU_DEVICES': '1'} if len(cores) == 1 else {}
  log_path.parent.mkdir(parents=True, exist_ok=True)
  with log_path.open('a') as log:
    # In its own session, it gets Ctrl-C from here alone, and once.
    process = subprocess.Popen(
        [sys.executable, *line], stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, env=os.environ | env)
  os.sched_setaffinity(process.pid, cores)
  return process


def print_cells(
    cells: Sequence[cell_lib.Cell], out: pathlib.Path, scale: str) -> None:
  """Prints what would be run."""
  if scale != 'nano':
    print(f'Each of these {len(cells)} runs needs {_HARDWARE}.')
    print('\n'.join(['They read of the hub:', *data.describe(cells)]))
  for cell in cells:
    share = '' if cell.budget_share == 1 else f'{cell.budget_share:.2g} x the '
    arguments = cell_lib.command(
        cell, out, f'<{share}tokens of {cell.budget_of}>')
    line = ['python', '-m', 'atgrpo_jax.main', *arguments]
    if scale != 'nano':
      line = ['bash', *_POD, *arguments[:6], '--', *arguments[6:]]
    print(shlex.join(line) + ('  # done' if cell.is_done(out) else ''))


def main(argv: list[str]) -> int:
  given = flags.FLAGS
  out = pathlib.Path(given.out) / given.scale
  cells = cells_lib.make_cells(given.scale, given.seeds, given.sandbox)
  try:
    errors.refuse_arguments(argv)
    chosen = cells_lib.choose(cells, given.only)
    keep = ['--keep', given.keep] if given.keep else []
    if keep and given.scale != 'nano':
      raise errors.UserError(
          f'--keep is for cells that are run; of --scale={given.scale} the '
          'commands are printed. Leave it out.')
    kept = records.read(pathlib.Path(given.keep)) if keep else {}
    cells = cells_lib.with_needed(chosen, cells, out, kept)
    if given.dry_run or given.scale != 'nano':
      print_cells(cells, out, given.scale)
      return 0
    cores = len(os.sched_getaffinity(0))
    if given.jobs > cores:
      raise errors.UserError(
          f'--jobs={given.jobs} cells at a time need a core each; there are '
          f'{cores}.')
    return run_cells(cells, out, given.jobs, kept) or subprocess.call(
        [sys.executable, '-m', 'paper.tables', '--out', str(out), *keep])
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
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
  flags.DEFINE_string(
      'keep', '', 'Folder of kept records: what is in it is not run again, and '
      'what is finished is added.')
  flags.DEFINE_enum(
      'sandbox', 'auto', ['auto', 'bwrap', 'kernel', 'unsafe_rlimit'],
      'Sandbox level of all cells. Tables refuse rows of several levels.')
  flags.DEFINE_bool('dry_run', False, 'Print the commands; run none.')
  app.run(main)
