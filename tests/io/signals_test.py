"""signals.py: when a trainer stops, and what its workers do."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from atgrpo_jax.io import signals
from tests import checkout

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

_HELD = """
import ctypes
import sys
import time
from atgrpo_jax.io import signals

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
stop = signals.StopFlag()
try:
  with stop.listen():
    if 'starts' in sys.argv:
      print('starts', flush=True)
      time.sleep(60)
    stop.hold()
    print('works', flush=True)
    # Like a compilation, the second call runs no handler before it returns.
    for _ in range(2 * ('compiles' in sys.argv)):
      libc.pthread_mutex_lock(mutex)
    while not stop.is_set():
      time.sleep(0.01)
    sys.stdin.readline()
    print('saves', flush=True)
    stop.release()
    print('evaluates', flush=True)
except signals.Stopped as error:
  print('exits', error, flush=True)
  sys.stdin.readline()
  raise SystemExit(error.status)
"""


def _start(script, tmp_path, *args, stdin=subprocess.PIPE):
  path = tmp_path / 'trainer.py'
  path.write_text(script)
  return subprocess.Popen(
      [sys.executable, path, *args], text=True, stdin=stdin,
      stdout=subprocess.PIPE, start_new_session=True,
      env=os.environ | {'PYTHONPATH': str(checkout.ROOT)})


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_with_nothing_to_save_ends_the_run(number, tmp_path):
  trainer = _start(_HELD, tmp_path, 'starts')
  assert trainer.stdout.readline() == 'starts\n'
  os.kill(trainer.pid, number)
  out, _ = trainer.communicate('\n', timeout=300)
  assert trainer.returncode == signals.STOPPED == 42
  assert f'stopped by {signal.Signals(number).name}' in out


TERM, INT = signal.SIGTERM, signal.SIGINT


def _send(trainer, numbers, is_terminal):
  """Sends signals one by one and checks the answers."""
  assert trainer.stdout.readline() == 'works\n'
  for index, number in enumerate(numbers):
    os.kill(trainer.pid, number)
    if number not in numbers[:index]:
      advice = '; press again to end now' * (is_terminal and number == INT)
      assert trainer.stdout.readline() == (
          f'{number.name}: stopping after this update{advice}\n')


@pytest.mark.parametrize('numbers', [(TERM,) * 5, (TERM, INT, INT)], ids=str)
def test_repeated_signals_are_ignored(numbers, tmp_path):
  trainer = _start(_HELD, tmp_path)
  _send(trainer, numbers, is_terminal=False)
  trainer.stdin.write('\n')
  trainer.stdin.flush()
  assert trainer.stdout.readline() == 'saves\n'
  assert trainer.stdout.readline().startswith('exits ')
  for number in numbers:
    os.kill(trainer.pid, number)
  out, _ = trainer.communicate('\n', timeout=300)
  assert (trainer.returncode, out) == (signals.STOPPED, '')


@pytest.mark.parametrize('state', ['steps', 'compiles'])
def test_second_ctrl_c_in_a_terminal_ends_the_run(state, tmp_path):
  terminal, stdin = pty.openpty()
  trainer = _start(_HELD, tmp_path, state, stdin=stdin)
  _send(trainer, (INT, TERM, INT), is_terminal=True)
  out, _ = trainer.communicate(timeout=300)
  os.close(terminal)
  os.close(stdin)
  assert (trainer.returncode, out) == (130, '')


def test_worker_ignores_signals_and_exits_with_its_parent(tmp_path):
  trainer = _start(_TRAINER, tmp_path)
  worker = int(trainer.stdout.readline())
  os.killpg(trainer.pid, signal.SIGTERM)
  assert 'SIGTERM: stopping' in trainer.stdout.readline()
  trainer.stdin.write('\n')
  trainer.stdin.flush()
  assert trainer.stdout.readline() == 'SIGTERM 0\n'

  trainer.kill()
  trainer.wait()
  checkout.wait_until(lambda: not checkout.is_running(worker))
