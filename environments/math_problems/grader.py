r"""Grades answers in a process with limits on CPU time and memory.

An answer may be a formula that takes forever, or all memory, to compare.
math-verify's own limit is an alarm signal: it needs the main thread and does
not stop a computation in C. So each process that calls `grade` starts

  python -m environments.math_problems.grader SOCKET_FD

which imports math-verify once and forks for each pair. The limits are CPU time
and memory, so a verdict does not depend on the load of the machine.

A grader that dies or hangs is replaced, and the pair is graded again. After a
second failure the verdict is FAILED, which says nothing about the answer.
"""

import contextlib
import enum
import functools
import gc
import importlib.util
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from typing import NoReturn

from environments.sandbox import processes

MAX_LETTERS = 2000  # Longer answers are CUT_OFF.
# For one pair. The slowest of 1005 gold and 1005 wrong answers takes 0.5 s.
CPU_SECONDS = 3
MEMORY_BYTES = 640 << 20  # Address space, besides that of the imports.
# Only a grader that hangs takes longer than these.
_START_SECONDS = 300.0
_WALL_SECONDS = 120.0
_READY = b'ready\n'
_INTEGER = re.compile(r'-?\d{1,30}', re.ASCII)
# Parser tables that these pairs build are shared by all forks.
_WARM_UP = (
    (r'\frac{1}{2}+\sqrt{3}', r'\sqrt{3}+0.5'), (r'(n+1)^{2}', 'n^2+2n+1'),
    (r'x \ge 2', 'x > 2'), (r'\{1,2\} \cup (3, \infty)', r'\sin(x)'),
    (r'\log_{2} 8', r'\binom{4}{2}\pi'), ('a_{1}', 'y=2x'))


class Verdict(enum.Enum):
  EQUAL = 'equal'
  DIFFERENT = 'different'
  CUT_OFF = 'cut_off'  # Too much time or memory, or an exception.
  FAILED = 'failed'  # The grader failed; the answer is not graded.


# Exit codes of a fork, and signals that a pair can cause.
_EXIT_CODES = {
    0: Verdict.EQUAL,
    1: Verdict.DIFFERENT,
    2: Verdict.CUT_OFF,
    -signal.SIGXCPU: Verdict.CUT_OFF,
    -signal.SIGSEGV: Verdict.CUT_OFF,
    -signal.SIGABRT: Verdict.CUT_OFF,
}


def check_installed() -> None:
  """Raises ValueError if math-verify is not installed."""
  if importlib.util.find_spec('math_verify') is None:
    raise ValueError(
        "math-verify, which grades mathematics, is not installed; run pip "
        "install -e '.[maths]'.")


def grade(answer: str | None, gold: str | None) -> Verdict:
  """Compares an answer with the gold answer; None equals nothing."""
  if answer is None or gold is None:
    return Verdict.DIFFERENT
  if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
    return Verdict.EQUAL if int(answer) == int(gold) else Verdict.DIFFERENT
  if len(answer) > MAX_LETTERS:
    return Verdict.CUT_OFF
  try:
    return _grade(answer, gold)
  except OSError:
    return Verdict.FAILED


@functools.lru_cache(maxsize=4096)
def _grade(answer: str, gold: str) -> Verdict:
  """Asks the grader; raises OSError so that failures are not cached."""
  global _grader
  request = json.dumps([answer, gold, CPU_SECONDS]).encode() + b'\n'
  with _lock:
    for _ in range(2):
      verdict = Verdict.FAILED
      try:
        with contextlib.suppress(OSError, ValueError):
          if _grader is None or _grader.owner != os.getpid():
            _grader = _Grader()
          verdict = _grader.ask(request)
      finally:  # After an interrupt, the next request must not read this reply.
        if verdict is Verdict.FAILED and _grader is not None:
          _grader.close()
          _grader = None
      if verdict is not Verdict.FAILED:
        return verdict
  raise OSError('the grader died or hung twice')


class _Grader:
  """A running grader process; the constructor raises OSError on failure."""

  def __init__(self):
    self.owner = os.getpid()  # A fork of this process needs another grader.
    self._connection, other = socket.socketpair()
    with other:
      self.process = subprocess.Popen(
          [sys.executable, '-P', '-X', 'utf8', '-m',
           'environments.math_problems.grader', str(other.fileno())],
          # A fixed hash seed gives sets the same order every time.
          env={'PYTHONPATH': os.pathsep.join(
              path or os.getcwd() for path in sys.path),
               'PYTHONHASHSEED': '0', **processes.ONE_THREAD},
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
          pass_fds=(other.fileno(),), start_new_session=True)
    self._lines = self._connection.makefile('rb')
    try:
      if self._ask(b'', _START_SECONDS) != _READY:
        raise OSError('the grader did not start')
    except OSError:
      self.close()
      raise

  def ask(self, request: bytes) -> Verdict:
    """Returns the verdict on a pair; OSError or ValueError on failure."""
    return Verdict(self._ask(request, _WALL_SECONDS).decode().strip())

  def _ask(self, request: bytes, seconds: float) -> bytes:
    self._connection.settimeout(seconds)
    self._connection.sendall(request)
    return self._lines.readline()

  def close(self) -> None:
    """Kills the process and its fork."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()
    self._lines.close()
    self._connection.close()


_grader: _Grader | None = None
_lock = threading.Lock()


def serve(fd: int) -> None:
  """Answers each line with a verdict.

  A line is a JSON list of answer, gold and the limit of CPU seconds.
  """
  from environments.math_problems import equivalence  # Takes 100 MB.

  def grade_and_exit(line: bytes) -> NoReturn:
    code = 2
    try:
      processes.set_option(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
      *pair, seconds = json.loads(line)
      resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
      resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
      resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
      code = int(not equivalence.equivalent(*pair))
    finally:
      os._exit(code)

  processes.set_option(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
  for pair in _WARM_UP:
    equivalence.equivalent(*pair)
  gc.collect()
  gc.freeze()  # Otherwise a fork's first collection copies every page.
  num_pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  max_bytes = num_pages * resource.getpagesize() + MEMORY_BYTES
  with socket.socket(fileno=fd) as connection:
    connection.sendall(_READY)
    with connection.makefile('rb') as lines:
      for line in lines:
        pid = os.fork()
        if not pid:
          grade_and_exit(line)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        verdict = _EXIT_CODES.get(code, Verdict.FAILED)
        connection.sendall(f'{verdict.value}\n'.encode())


if __name__ == '__main__':
  serve(int(sys.argv[1]))
