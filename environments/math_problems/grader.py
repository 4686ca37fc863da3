"""Compares answers with gold answers, in a process that can be cut off.

`grade` is a function of the two texts. An answer may be a formula that takes
forever, or all memory, to compare, so that is done in a process of its own. Its
limits are CPU time and memory, so a verdict does not depend on what else the
machine does. (The limit that math-verify has is an alarm signal, which needs
the main thread, and which a computation in C does not heed.) Each process that
calls `grade` starts one grader, which ends with it.

A grader that dies or stops is replaced, and the pair is graded again. If that
fails too, the verdict is FAILED: it is no judgement on the answer.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

READY = b'ready\n'
# Far beyond the CPU time of a start or of a pair: only a grader that is stopped
# takes so long.
_START_SECONDS = 300.0
_WALL_SECONDS = 120.0
MAX_LETTERS = 2000  # A longer answer is cut off.
# These need no process.
_INTEGER = re.compile(r'-?\d{1,30}', re.ASCII)


class Verdict(enum.Enum):
  """What became of a pair."""

  EQUAL = 'equal'  # The answer is right.
  DIFFERENT = 'different'  # The answer is wrong.
  # The comparison took too long or too much memory, or ended with an error.
  CUT_OFF = 'cut_off'
  FAILED = 'failed'  # The grader failed, not the answer.


class _FailedError(OSError):
  """The grader died or stopped."""


def check_installed() -> None:
  """Raises ValueError unless math-verify is there."""
  if importlib.util.find_spec('math_verify') is None:
    raise ValueError(
        'mathematics is graded by the package math-verify, which is not '
        "installed; run pip install -e '.[maths]'.")


def grade(answer: str, gold: str) -> Verdict:
  """Whether an answer is equal to the gold answer."""
  if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
    return Verdict.EQUAL if int(answer) == int(gold) else Verdict.DIFFERENT
  if len(answer) > MAX_LETTERS:
    return Verdict.CUT_OFF
  try:
    return _grade(answer, gold)
  except _FailedError:
    return Verdict.FAILED


@functools.lru_cache(maxsize=4096)
def _grade(answer: str, gold: str) -> Verdict:
  """Raises _FailedError, so that a failure is not remembered."""
  global _grader
  request = json.dumps([answer, gold]).encode() + b'\n'
  with _lock:
    for _ in range(2):
      try:
        if _grader is None or _grader.owner != os.getpid():
          _grader = _Grader()
        verdict = _grader.ask(request)
        if verdict is not Verdict.FAILED:
          return verdict
      except (OSError, ValueError):
        pass
      if _grader is not None:
        _grader.close()
        _grader = None
  raise _FailedError('the grader failed twice')


class _Grader:
  """A running server."""

  def __init__(self):
    """Starts it; an OSError if it does not begin."""
    self.owner = os.getpid()  # A fork of that one needs a grader of its own.
    self._connection, other = socket.socketpair()
    with other:
      self._process = subprocess.Popen(
          [sys.executable, '-X', 'utf8', '-m',
           'environments.math_problems.grader_server', str(other.fileno())],
          # A fixed hash seed, so that sets have the same order every time.
          env={'PYTHONPATH': os.pathsep.join(
              path or os.getcwd() for path in sys.path),
               'PYTHONHASHSEED': '0'},
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
          pass_fds=(other.fileno(),), start_new_session=True)
    self._lines = self._connection.makefile('rb')
    try:
      if self._ask(b'', _START_SECONDS) != READY:
        raise _FailedError('the grader did not start')
    except OSError:
      self.close()
      raise

  @property
  def pid(self) -> int:
    return self._process.pid

  def ask(self, request: bytes) -> Verdict:
    """The verdict on a pair; an OSError or ValueError if it fails."""
    return Verdict(self._ask(request, _WALL_SECONDS).decode().strip())

  def _ask(self, request: bytes, seconds: float) -> bytes:
    self._connection.settimeout(seconds)
    self._connection.sendall(request)
    return self._lines.readline()

  def close(self) -> None:
    """Kills it, and the fork that grades."""
    try:
      os.killpg(self._process.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass
    self._process.wait()
    self._lines.close()
    self._connection.close()


_grader: _Grader | None = None
_lock = threading.Lock()
