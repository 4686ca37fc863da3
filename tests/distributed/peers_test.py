"""When one of three processes ends, the others end and say why, in a sentence.

The processes here do nothing but wait; hosts_test.py has whole runs.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_AGAIN = '; see what it printed, then run the same command again.'

# Arguments: port, number of processes, which of them this is.
_PROCESS = """
import sys
import threading
from atgrpo_jax import errors
from atgrpo_jax.distributed import peers

def report(error):
  print(f'reported: {error}', file=sys.stderr)
  return getattr(error, 'status', 1)

peers._BEAT, peers._VERDICT = 0.1, 0.3
port, num_processes, process_id = sys.argv[1:]
with peers.Peers(
    f'localhost:{port}', int(num_processes), int(process_id),
    report=report) as others:
  others.expect_beats()
  print('here', flush=True)
  order = sys.stdin.readline()
  if order == 'user error\\n':
    raise errors.UserError('x=1 is wrong.')
  elif order == 'bug\\n':
    raise KeyError('x')
  elif order == 'signal\\n':
    threading.Thread(target=others.end, args=[42, 'stopped by it']).start()
    threading.Event().wait()
print('done', flush=True)
"""


def free_port():
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]


def _start(num_processes, ids=None, port=None):
  port = port or free_port()
  return [
      subprocess.Popen(
          [sys.executable, '-c', _PROCESS, str(port), str(num_processes),
           str(index)], cwd=ROOT, text=True, stdin=subprocess.PIPE,
          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
      for index in ids or range(num_processes)]


@pytest.fixture
def three():
  """Processes that have met."""
  processes = _start(3)
  for process in processes:
    assert process.stdout.readline() == 'here\n'
  yield processes
  for process in processes:
    process.kill()
    process.communicate()


def _order(process, words):
  process.stdin.write(f'{words}\n')
  process.stdin.flush()


def _ends(processes):
  """(exit status, stdout, stderr) of each."""
  found = []
  for process in processes:
    out, err = process.communicate(timeout=60)
    found.append((process.returncode, out, err))
  return found


@pytest.mark.parametrize('victim', [0, 2])
@pytest.mark.parametrize('number, how', [
    (signal.SIGKILL, 'has ended without a word'),
    (signal.SIGSTOP, 'has given no sign of life for 1 seconds')])
def test_one_dies(victim, number, how, three):
  os.kill(three[victim].pid, number)
  others = [process for process in three if process != three[victim]]
  assert _ends(others) == [
      (3, '', f'error: Process {victim} {how}{_AGAIN}\n')] * 2


@pytest.mark.parametrize('victim', [0, 2])
@pytest.mark.parametrize('order, status, own, of_others', [
    ('user error', 2, 'reported: x=1 is wrong.', 'x=1 is wrong.'),
    ('bug', 1, "reported: 'x'", "failed with KeyError: 'x'; see what it print")
])
def test_one_fails(victim, order, status, own, of_others, three):
  _order(three[victim], order)
  for index, (found, out, err) in enumerate(_ends(three)):
    assert (found, out, err.count('\n')) == (status, '', 1)
    if index == victim:
      assert err == f'{own}\n'
    else:
      assert err.startswith(f'error: Process {victim}') and of_others in err


def test_a_signal_to_one_stops_all(three):
  _order(three[1], 'signal')
  assert _ends(three) == [(42, 'stopped by it\n', '')] * 3


def test_all_wait_until_all_are_done(three):
  for process in three[:2]:
    _order(process, 'go on')
  with pytest.raises(subprocess.TimeoutExpired):
    three[0].wait(0.5)
  _order(three[2], 'go on')
  assert _ends(three) == [(0, 'done\n', '')] * 3


@pytest.mark.parametrize('num_processes, index, words', [
    (3, 1, '--num_processes=3, but process 0 has 2'),
    (2, 1, '--process_id=1 is taken by another process')])
def test_who_does_not_belong_is_sent_away(num_processes, index, words):
  port = free_port()
  first, = _start(2, [0], port)
  if num_processes == 2:
    second, = _start(2, [1], port)
    assert first.stdout.readline() == 'here\n'
  stranger, = _start(num_processes, [index], port)
  (status, _, err), = _ends([stranger])
  assert (status, err.count('\n')) == (2, 1) and words in err
  with socket.create_connection(('localhost', port)) as other:
    other.sendall(b'GET / HTTP/1.1\r\n')
    assert other.recv(1) == b''
  if num_processes == 3:
    second, = _start(2, [1], port)
  for process in (first, second):
    _order(process, 'go on')
  assert [found[0] for found in _ends([first, second])] == [0, 0]


def test_a_port_in_use_and_an_address_without_one(three):
  port = three[0].args[3]
  again, = _start(3, [0], port)
  status, _, err = _ends([again])[0]
  assert status == 1 and f'port {port} cannot be used' in err
  nowhere, = _start(3, [0], 'none')
  assert 'must be HOST:PORT' in _ends([nowhere])[0][2]
