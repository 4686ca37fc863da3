"""Programs and processes of servers at each level that this machine offers."""

from concurrent import futures
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

from environments import sandbox
from environments.sandbox import processes

ROOT = pathlib.Path(__file__).parents[3]
CANARY = 'canary-1f9c'
LIMITS = sandbox.Limits(
    cpu_seconds=1.0, wall_seconds=4.0, memory_bytes=128 << 20,
    output_bytes=10_000)
ORDINARY = 54321  # Id of a user without privileges or a name.


def _works(level):
  try:
    with sandbox.SandboxServer(1, level):
      return True
  except sandbox.NoSandboxError:
    return False


CONFINED = [level for level in ('bwrap', 'kernel') if _works(level)]
LEVELS = [*CONFINED, 'unsafe_rlimit']


def run(address, text, stdin='', **limits):
  """Runs an indented program with changes to LIMITS."""
  return sandbox.Sandbox(address, LIMITS._replace(**limits)).run(
      textwrap.dedent(text), stdin)


def run_all(programs, sources):
  """Runs programs side by side; results in the same order."""
  with futures.ThreadPoolExecutor(16) as pool:
    return list(pool.map(programs.run, sources))


def descendants(pid):
  found = []
  for child in processes.children(pid):
    found += [child, *descendants(child)]
  return found


def other_python():
  """An interpreter that ORDINARY may run; None if there is none."""
  program = (
      'import os, sys; print(sys.version_info >= (3, 11) '
      'and os.access(os.path.realpath(sys.executable), os.X_OK))')
  for python in (sys.executable, '/usr/bin/python3', '/usr/local/bin/python3'):
    if shutil.which('setpriv') and b'True' in subprocess.run(
        _as_ordinary([python, '-c', program]), cwd='/',
        capture_output=True).stdout:
      return python
  return None


def _as_ordinary(command):
  return [
      'setpriv', f'--reuid={ORDINARY}', f'--regid={ORDINARY}',
      '--clear-groups', '--inh-caps=-all', '--bounding-set=-all', *command]


@contextlib.contextmanager
def ordinary_server(python, level):
  """The address of a server that ORDINARY runs."""
  program = textwrap.dedent(f'''
      import sys
      sys.path.insert(0, {str(ROOT)!r})
      from environments import sandbox
      with sandbox.SandboxServer(2, {level!r}) as server:
        print(server.address, server.level.value, flush=True)
        sys.stdin.read()
      ''')
  with subprocess.Popen(
      _as_ordinary([python, '-c', program]), cwd='/', stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, text=True,
      env={'HF_TOKEN': CANARY, 'PATH': os.environ['PATH']}) as process:
    address, found = process.stdout.readline().split()
    assert found == level
    yield address
    process.stdin.close()
    assert process.wait() == 0
