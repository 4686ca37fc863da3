"""The trainer hears signals, its workers do not; and they die with it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from atgrpo_jax.runtime import signals

ROOT = pathlib.Path(__file__).resolve().parents[2]

_TRAINER = """
import multiprocessing
import os
import sys
from concurrent import futures
from atgrpo_jax.runtime import signals

if __name__ == '__main__':
  stop = signals.StopFlag()
  pool = futures.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context('spawn'),
      initializer=signals.begin_worker)
  print(pool.submit(os.getpid).result(), flush=True)
  sys.stdin.readline()
  print(stop.name, pool.submit(int).result(), flush=True)
  sys.stdin.readline()
"""


def _is_running(pid):
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return False
  return stat.rpartition(') ')[2][0] != 'Z'


def test_first_signal_asks_and_second_kills():
  stop = signals.StopFlag()
  assert not stop.is_set()
  os.kill(os.getpid(), signal.SIGINT)
  assert stop.is_set() and stop.name == 'SIGINT'
  assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_worker_outlives_signals_to_the_group_but_not_its_parent(tmp_path):
  script = tmp_path / 'trainer.py'
  script.write_text(_TRAINER)
  trainer = subprocess.Popen(
      [sys.executable, script], text=True, stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, start_new_session=True,
      env=os.environ | {'PYTHONPATH': str(ROOT)})
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
