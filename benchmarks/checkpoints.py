"""Kills runs, damages checkpoints and fills disks, and counts what is lost.

  JAX_PLATFORMS=cpu python -m benchmarks.checkpoints

The runs are of the small game in tests/echo.py.

  kills        `kill -9` at a random moment of a training; the same command goes
               on, and may be killed again. In the end metrics, groups,
               evaluations and parameters must be those of an undisturbed run,
               bit for bit.
  flips, cuts  One bit of a random file of the newest of two checkpoints is
               flipped, or the file cut at a random byte. What is read must be
               that checkpoint, or the one before with one warning.
  disks        The disk becomes full at a random moment of a training. The run
               must end with status 2 and one sentence, and after room is made
               the same command as if nothing had been. The disk is a tmpfs,
               which needs Linux and leave to make user namespaces.

Prints a table; ends with status 1 unless nothing is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

from absl import app
from absl import flags
from absl import logging

from atgrpo_jax import errors
from atgrpo_jax import main as main_lib
from atgrpo_jax import train  # noqa: F401  (Once, for all forks.)
from atgrpo_jax.io import checkpoints as checkpoints_lib
from benchmarks import harm
from tests import echo

_CHANGES = {
    'rollout.num_tasks': 4, 'rollout.group_size': 4, 'train.num_steps': 12,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 4}
_MAX_KILLS = 3  # Of one run.
_SECONDS = 600.0  # Until something hangs.
_DISK_BYTES = 48 << 20
_NEWNS, _NEWUSER = 0x20000, 0x10000000  # Of unshare(2).


class Run:
  """A training, in a fork of this process, which never runs jax."""

  def __init__(self, model: pathlib.Path, workdir: pathlib.Path):
    self._log = workdir.parent / f'{workdir.name}.log'
    self.workdir = workdir
    self.status = None
    self._pid = _fork(lambda: _train(model, workdir), self._log)

  def wait_for(self, *words: str) -> None:
    """Until it has printed one of these, or ended."""
    deadline = time.monotonic() + _SECONDS
    while self.is_running() and not any(
        word in self._log.read_text() for word in words):
      if time.monotonic() > deadline:
        self.kill()
        sys.exit(f'error: {self.workdir} hangs.')
      time.sleep(0.01)

  def is_running(self) -> bool:
    if self.status is None:
      pid, status = os.waitpid(self._pid, os.WNOHANG)
      if pid:
        self.status = os.waitstatus_to_exitcode(status)
    return self.status is None

  def end(self) -> str:
    """Waits for its end; what it said of an error."""
    self.wait_for()
    return ''.join(
        line for line in self._log.read_text().splitlines(keepends=True)
        if line.startswith(('error:', 'Traceback')))

  def kill(self) -> bool:
    """False if it has ended before."""
    if self.is_running():
      os.kill(self._pid, signal.SIGKILL)
      _, status = os.waitpid(self._pid, 0)
      self.status = os.waitstatus_to_exitcode(status)
    return self.status == -signal.SIGKILL


def _fork(function, log: pathlib.Path) -> int:
  """Runs a function in a fork, whose output goes to a file; its process id."""
  sys.stdout.flush()
  with log.open('w') as file:
    pid = os.fork()
    if pid:
      return pid
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  status = 1
  try:
    status = function() or 0
  except SystemExit as ended:
    status = ended.code
  finally:
    if sys.exc_info()[0]:
      traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _train(model: pathlib.Path, workdir: pathlib.Path) -> None:
  sys.argv = ['main.py', '--config=tests/echo.py', f'--workdir={workdir}', *(
      f'--config.{name}={value}'
      for name, value in ({'model.folder': model} | _CHANGES).items())]
  flags.FLAGS.unparse_flags()
  main_lib.run()


def _wait_for(function, log: pathlib.Path) -> None:
  """Runs a function in a fork, to its end."""
  _, status = os.waitpid(_fork(function, log), 0)
  if status:
    sys.exit(f'error: {log.read_text().splitlines()[-1]}')


def train_undisturbed(
    model: pathlib.Path, workdir: pathlib.Path) -> tuple[dict, float]:
  """What a run leaves, and the seconds of its training without its start."""
  run = Run(model, workdir)
  run.wait_for('starts afresh')
  start = time.monotonic()
  if said := run.end() or run.status:
    sys.exit(f'error: the undisturbed run ended with {said}.')
  return harm.results(workdir), time.monotonic() - start


def kill(
    model: pathlib.Path, folder: pathlib.Path, expected: dict, seconds: float,
    most: int, rng: random.Random) -> tuple[int, bool]:
  """Kills a run now and then; how often, and whether nothing is lost."""
  workdir = folder / 'killed'
  shutil.rmtree(workdir, ignore_errors=True)
  num_kills = 0
  while num_kills < min(most, _MAX_KILLS):
    run = Run(model, workdir)
    run.wait_for('starts afresh', 'resumes after')
    time.sleep(rng.uniform(0.0, seconds))
    if not run.kill():
      break
    num_kills += 1
  said = run.end()
  if run.status == -signal.SIGKILL:
    run = Run(model, workdir)
    said = run.end()
  return num_kills, not said and harm.results(workdir) == expected


def flip(path: pathlib.Path, rng: random.Random) -> None:
  data = bytearray(path.read_bytes())
  data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  path.write_bytes(data)


def cut(path: pathlib.Path, rng: random.Random) -> None:
  os.truncate(path, rng.randrange(path.stat().st_size))


def damage(
    model: pathlib.Path, trained: pathlib.Path, folder: pathlib.Path,
    kinds: list[str], rng: random.Random) -> list[str]:
  """What is read after each damage: 'newest', 'before' or else wrong."""
  found = folder / 'damages.jsonl'
  _wait_for(
      lambda: _damage(model, trained, folder, kinds, rng, found),
      folder / 'damages.log')
  return json.loads(found.read_text())


def _damage(model, trained, folder, kinds, rng, found):
  """In a process of its own, since it runs jax."""
  template = echo.experiment(model, **_CHANGES).state_template()
  warnings = []
  logging.get_absl_logger().addFilter(
      lambda record: warnings.append(record.getMessage()) is not None)
  steps = sorted(
      int(path.name) for path in (trained / 'checkpoints').glob('[0-9]*'))
  saved = {
      step: checkpoints_lib.digest(checkpoints_lib.Checkpoints(
          trained / 'checkpoints').restore(template, step=step).state)
      for step in steps}
  results = []
  for kind in kinds:
    copy = folder / 'damaged'
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(trained / 'checkpoints', copy)
    path = rng.choice([
        path for path in sorted((copy / str(steps[-1])).rglob('*'))
        if path.is_file() and path.stat().st_size])
    {'flip': flip, 'cut': cut}[kind](path, rng)
    warnings.clear()
    name = str(path.relative_to(copy))
    try:
      step, state, meta = checkpoints_lib.Checkpoints(copy).restore(template)
    except errors.UserError as error:
      results.append(f'{kind} of {name}: {error}')
      continue
    is_right = (
        checkpoints_lib.digest(state) == saved[step] and meta['step'] == step)
    if is_right and step == steps[-1] and not warnings:
      results.append('newest')
    elif is_right and step == steps[-2] and len(warnings) == 1:
      results.append('before')
    else:
      results.append(f'{kind} of {name}: step {step}, {warnings}')
  found.write_text(json.dumps(results))


def fill_disks(
    model: pathlib.Path, folder: pathlib.Path, expected: dict, seconds: float,
    times: int, rng: random.Random) -> list[str]:
  """What was wrong each time, '' for nothing."""
  found = folder / 'disks.json'
  _wait_for(
      lambda: _fill_disks(model, folder, expected, seconds, times, rng, found),
      folder / 'disks.log')
  return json.loads(found.read_text())


def _fill_disks(model, folder, expected, seconds, times, rng, found):
  """In a process of its own, with a disk that no other one sees."""
  disk = folder / 'disk'
  disk.mkdir()
  _mount_small_disk(disk)
  results = []
  while len(results) < times:
    workdir, filler = disk / 'run', disk / 'filler'
    shutil.rmtree(workdir, ignore_errors=True)
    run = Run(model, workdir)
    run.wait_for('starts afresh')
    time.sleep(rng.uniform(0.0, seconds))
    with contextlib.suppress(OSError), filler.open('wb', 0) as file:
      while True:
        file.write(bytes(4096))
    said = run.end()
    filler.unlink()
    if run.status == 0:
      continue  # It was done before.
    problem = ''
    if run.status != 2 or said.count('\n') != 1 or 'make room' not in said:
      problem = f'status {run.status}: {said}'
    again = Run(model, workdir)
    if said := again.end() or harm.results(workdir) != expected:
      problem += f' then {said}'
    results.append(problem)
  found.write_text(json.dumps(results))


def _mount_small_disk(folder: pathlib.Path) -> None:
  """A file system of `_DISK_BYTES` that lives as long as this process."""
  libc = ctypes.CDLL(None, use_errno=True)
  ids = os.getuid(), os.getgid()
  done = libc.unshare(_NEWUSER | _NEWNS) == 0
  if done:
    pathlib.Path('/proc/self/setgroups').write_text('deny')
    for kind, number in zip(('uid', 'gid'), ids):
      pathlib.Path(f'/proc/self/{kind}_map').write_text(f'0 {number} 1')
    done = libc.mount(
        b'tmpfs', bytes(folder), b'tmpfs', 0,
        f'size={_DISK_BYTES}'.encode()) == 0
  if not done:
    raise errors.UserError(
        f'--disks needs a user namespace ({os.strerror(ctypes.get_errno())}); '
        'allow them on this machine, or give --disks 0.')


def main(argv: list[str]) -> int:
  errors.refuse_arguments(argv)
  return measure(
      {name: flags.FLAGS[name].value for name in _NUMBERS}, flags.FLAGS.seed)


def measure(num: dict[str, int], seed: int) -> int:
  """Does so many of each harm and prints the table; the exit status."""
  logging.set_verbosity(logging.WARNING)
  rng = random.Random(seed)
  problems, num_wrong = [], 0

  def print_row(*cells):
    print('|', ' | '.join(map(str, cells)), '|', flush=True)

  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    model, plain = folder / 'model', folder / 'plain'
    _wait_for(lambda: echo.write_model(model) and None, folder / 'model.log')
    expected, seconds = train_undisturbed(model, plain)
    print_row(
        'what is done', 'times', 'as if nothing had been',
        'said in one sentence', 'wrong')
    print_row(*5 * ['---'])

    num_kills = num_right = 0
    while left := num['kills'] - num_kills:
      kills, is_right = kill(model, folder, expected, seconds, left, rng)
      num_kills += kills
      num_right += kills * is_right
    wrong = num_kills - num_right
    print_row(
        'a training is killed (`kill -9`)', num_kills, num_right, '', wrong)
    num_wrong += wrong
    for kind, words in (
        ('flip', 'a bit of a checkpoint is flipped'),
        ('cut', 'a file of a checkpoint is cut short')):
      count = num[f'{kind}s']
      found = damage(model, plain, folder, [kind] * count, rng)
      wrong = [x for x in found if x not in ('newest', 'before')]
      print_row(
          words, count, found.count('newest'), found.count('before'),
          len(wrong))
      problems += wrong
    found = []
    if num['disks']:
      found = fill_disks(model, folder, expected, seconds, num['disks'], rng)
    wrong = list(filter(None, found))
    print_row(
        'the disk becomes full', len(found), '', len(found) - len(wrong),
        len(wrong))
    problems += wrong
  for problem in problems:
    print(problem)
  return int(bool(num_wrong or problems))


_NUMBERS = {
    'kills': (30, 'Trainings that are killed.'),
    'flips': (100, 'Bits that are flipped.'),
    'cuts': (80, 'Files that are cut short.'),
    'disks': (6, 'Disks that become full.')}

if __name__ == '__main__':
  for flag, (default, words) in _NUMBERS.items():
    flags.DEFINE_integer(flag, default, words, lower_bound=0)
  flags.DEFINE_integer('seed', 0, 'Of what is harmed, and when.')
  app.run(main)
