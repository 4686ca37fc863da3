"""Programs and processes of servers at each level that this machine offers."""

from concurrent import futures
import contextlib
import os
import pathlib
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
# Starts a process as a user without privileges or a name.
_ORDINARY = {'user': 54321, 'group': 54321, 'extra_groups': [], 'cwd': '/'}


def start(level='auto'):
  """The level of a server, or why there is none."""
  try:
    with sandbox.SandboxServer(1, level) as server:
      assert server.sandbox.run('print(1)').stdout == '1\n'
      return server.level.value
  except sandbox.NoSandboxError as error:
    return str(error)


# The reason why a level does not start has several words.
CONFINED = [x for x in ('bwrap', 'kernel') if ' ' not in start(x)]
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
  """An interpreter that an ordinary user may run; None if there is none."""
  program = 'import sys; sys.exit(sys.version_info < (3, 11))'
  for python in (sys.executable, '/usr/bin/python3', '/usr/local/bin/python3'):
    with contextlib.suppress(OSError):
      if not subprocess.run([python, '-c', program], **_ORDINARY).returncode:
        return python
  return None


@contextlib.contextmanager
def ordinary_server(python, level):
  """The address of a server that an ordinary user runs."""
  program = textwrap.dedent(f'''
      import sys
      sys.path.insert(0, {str(ROOT)!r})
      from environments import sandbox
      with sandbox.SandboxServer(2, {level!r}) as server:
        print(server.address, server.level.value, flush=True)
        sys.stdin.read()
      ''')
  with subprocess.Popen(
      [python, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
      text=True, env={'HF_TOKEN': CANARY, 'PATH': os.environ['PATH']},
      **_ORDINARY) as process:
    address, found = process.stdout.readline().split()
    assert found == level
    yield address
    process.stdin.close()
    assert process.wait() == 0
