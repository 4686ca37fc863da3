"""signals.py: when a trainer stops, and what its workers do."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from atgrpo_jax.io import signals

ROOT = pathlib.Path(__file__).resolve().parents[2]

_TRAINER = """
import multiprocessing
import os
import sys
from concurrent import futures
from atgrpo_jax.io import signals

if __name__ == '__main__':
  stop = signals.StopFlag()
  with stop.listen():
    stop.hold()
    pool = futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context('spawn'),
        initializer=signals.begin_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    sys.stdin.readline()
    print(stop.name, pool.submit(int).result(), flush=True)
    sys.stdin.readline()
"""

_STARTING = """
import time
from atgrpo_jax.io import signals

with signals.StopFlag().listen():
  try:
    print('starts', flush=True)
    time.sleep(60)
  except signals.Stopped as error:
    print(error)
    raise SystemExit(error.status)
"""
_HELD = """
import sys
import time
from atgrpo_jax.io import signals

stop = signals.StopFlag()
with stop.listen():
  stop.hold()
  print('works', flush=True)
  while not stop.is_set():
    time.sleep(0.01)
  print('saves', flush=True)
  sys.stdin.readline()
  try:
    stop.release()
  except signals.Stopped as error:
    raise SystemExit(error.status)
  print('evaluates', flush=True)
"""


def _is_running(pid):
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return False
  return stat.rpartition(') ')[2][0] != 'Z'


def _start(script, tmp_path):
  path = tmp_path / 'trainer.py'
  path.write_text(script)
  return subprocess.Popen(
      [sys.executable, path], text=True, stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, start_new_session=True,
      env=os.environ | {'PYTHONPATH': str(ROOT)})


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_with_nothing_to_save_ends_the_run(number, tmp_path):
  trainer = _start(_STARTING, tmp_path)
  assert trainer.stdout.readline() == 'starts\n'
  os.kill(trainer.pid, number)
  out, _ = trainer.communicate(timeout=300)
  assert trainer.returncode == signals.STOPPED == 42
  assert f'stopped by {signal.Signals(number).name}' in out


@pytest.mark.parametrize('num_signals, status', [(2, -signal.SIGINT), (1, 42)])
def test_first_signal_saves_and_second_kills(num_signals, status, tmp_path):
  trainer = _start(_HELD, tmp_path)
  assert trainer.stdout.readline() == 'works\n'
  os.kill(trainer.pid, signal.SIGINT)
  assert trainer.stdout.readline() == 'saves\n'
  if num_signals == 2:
    os.kill(trainer.pid, signal.SIGINT)
  out, _ = trainer.communicate('\n', timeout=300)
  assert trainer.returncode == status
  assert 'evaluates' not in out


def test_worker_ignores_signals_and_exits_with_its_parent(tmp_path):
  trainer = _start(_TRAINER, tmp_path)
  worker = int(trainer.stdout.readline())
  os.killpg(trainer.pid, signal.SIGTERM)
  trainer.stdin.write('\n')
  trainer.stdin.flush()
  assert trainer.stdout.readline() == 'SIGTERM 0\n'

  trainer.kill()
  trainer.wait()
  deadline = time.monotonic() + 30
  while _is_running(worker):
    assert time.monotonic() < deadline
    time.sleep(0.01)
