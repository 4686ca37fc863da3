"""Faults at random moments of small runs, which must not change the results.

  python -m pytest -m long tests/fault_injection_test.py

Metrics, groups, evaluations and parameters of the disturbed run must equal
those of an undisturbed one, bit for bit. Takes about five minutes.
"""

import contextlib
import pathlib
import random
import subprocess
import sys
import time

import pytest

from tests import checkout
from tests import commands
from tests import fault_injection

_ECHO = {
    'rollout.num_tasks': 4, 'rollout.group_size': 4, 'train.num_steps': 12,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 4}
_DISK_BYTES = 48 << 20
_NUM_FAULTS = 3  # In one run.


class _Run:
  """A training of the echo game in a subprocess, which has begun its steps."""

  def __init__(self, workdir, changes):
    self._log = workdir.parent / f'{workdir.name}.log'
    with self._log.open('w') as log:
      self.process = subprocess.Popen(
          commands.train('tests/echo.py', workdir, changes), cwd=checkout.ROOT,
          stdout=log, stderr=log)
    while self.process.poll() is None and not any(
        word in self._log.read_text()
        for word in ('starts afresh', 'resumes after')):
      time.sleep(0.01)

  def end(self):
    """Waits for the end; (exit status, the lines of errors)."""
    status = self.process.wait(600)
    return status, [
        line for line in self._log.read_text().splitlines()
        if line.startswith(('error:', 'Traceback'))]


@pytest.fixture(scope='module')
def undisturbed(echo_folder, tmp_path_factory):
  """(changes, results, seconds) of an undisturbed run of the echo game."""
  workdir = tmp_path_factory.mktemp('echo') / 'run'
  changes = {'model.folder': str(echo_folder)} | _ECHO
  run = _Run(workdir, changes)
  start = time.monotonic()
  assert run.end() == (0, [])
  return changes, fault_injection.results(workdir), time.monotonic() - start


@pytest.mark.long
@pytest.mark.parametrize('seed', range(5))
def test_killed_training_resumes_with_equal_results(
    seed, undisturbed, tmp_path):
  changes, expected, seconds = undisturbed
  rng, workdir = random.Random(seed), tmp_path / 'run'
  for _ in range(_NUM_FAULTS):
    run = _Run(workdir, changes)
    time.sleep(rng.uniform(0.0, seconds))
    run.process.kill()
    run.process.wait()
  assert _Run(workdir, changes).end() == (0, [])
  assert fault_injection.results(workdir) == expected


def fill_disk(folder, seed, seconds, *changes):
  """Runs in a mount namespace where `folder` is a small disk."""
  rng, workdir = random.Random(int(seed)), pathlib.Path(folder) / 'run'
  changes = dict(change.split('=', 1) for change in changes)
  filler = workdir.parent / 'filler'
  run = _Run(workdir, changes)
  time.sleep(rng.uniform(0.0, float(seconds)))
  with filler.open('wb', 0) as file, contextlib.suppress(OSError):
    while True:
      file.write(bytes(4096))
  status, lines = run.end()
  filler.unlink()
  if status:  # 0: the run had already ended.
    assert status == 2 and len(lines) == 1 and 'free some space' in lines[0]
    assert _Run(workdir, changes).end() == (0, []), lines
  print(fault_injection.results(workdir))


@pytest.mark.long
@pytest.mark.parametrize('seed', range(5))
def test_full_disk_is_one_sentence_and_loses_nothing(
    seed, undisturbed, tmp_path):
  changes, expected, seconds = undisturbed
  code = 'import runpy, sys; _, test, function, *args = sys.argv; '
  code += 'runpy.run_path(test)[function](*args)'
  mount = f'mount -t tmpfs -o size={_DISK_BYTES} tmpfs "$1" && exec "${{@:2}}"'
  result = subprocess.run(
      ['unshare', '--map-root-user', '--mount', 'bash', '-c', mount, 'bash',
       tmp_path, sys.executable, '-c', code, __file__, 'fill_disk', tmp_path,
       str(seed), str(seconds), *(f'{k}={v}' for k, v in changes.items())],
      cwd=checkout.ROOT, capture_output=True, text=True)
  if 'unshare' in result.stderr:
    pytest.skip(f'needs user namespaces: {result.stderr}')
  assert result.returncode == 0, result.stderr
  assert result.stdout.strip() == str(expected)
