"""Measures programs per second of a sandbox, and checks that it leaks nothing.

  python -m benchmarks.sandbox [--level LEVEL] [--programs N] [--rounds N]
      [--soak N]

Three ways to run a trivial program take turns on every core:

  fork      `Sandbox.run`: each program is a fork of a warm interpreter
  packages  the same, of an interpreter with numpy and sympy
  fresh     a new interpreter per program, which enters the same isolation; at
            the level bwrap inside bubblewrap

With --soak, that many programs of several kinds run on one server. Exits with
status 1 after a wrong status, or if the server then has more processes,
descriptors, files or (above 10 %) memory than before.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
from concurrent import futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from environments import sandbox
from environments.sandbox import launcher

_PROGRAM = 'print(int(input()) + 1)'
# Enters the isolation, then runs a program.
_FRESH = f'''
import os, sys
for name in 'environments', 'environments.sandbox':
  sys.modules[name] = type(sys)(name)
  sys.modules[name].__path__ = [{launcher._FOLDER!r}]
from environments.sandbox import isolation, protocol
isolation.Isolation(protocol.Level(sys.argv[1]), '/').enter(protocol.Limits())
os.closerange(3, 1 << 16)
exec(compile(sys.argv[2], '<program>', 'exec'), {{'__name__': '__main__'}})
'''
# Programs of the soak -> the expected status.
_KINDS = {
    _PROGRAM: sandbox.Status.OK,
    'import numpy; print(numpy.zeros(3).sum())': sandbox.Status.OK,
    '1 / 0': sandbox.Status.ERROR,
    'import os; os._exit(3)': sandbox.Status.ERROR,
    'import ctypes; ctypes.string_at(0)': sandbox.Status.ERROR,
    'import os\nos.close(0); os.close(1); os.close(2)': sandbox.Status.OK,
    'import sys; sys.stdout.write("x" * 2_000_000)':
        sandbox.Status.RESOURCE_LIMIT,
    'x = [0] * 10**9': sandbox.Status.RESOURCE_LIMIT,
    'import threading, time\n'
    'for _ in range(9): threading.Thread(target=print).start()':
        sandbox.Status.OK,
    'import os\ntry: os.fork() or os._exit(0)\nexcept OSError: pass':
        sandbox.Status.OK,
}
_TIMEOUT = 'import time; time.sleep(60)', sandbox.Status.TIMEOUT
_TIMEOUT_EVERY = 200


def fresh(level: str, source: str, stdin: str) -> str:
  """Output of a program in a new interpreter."""
  command = [
      os.path.realpath(sys.executable), '-s', '-P', '-S', '-X', 'utf8', '-c',
      _FRESH, level, source]
  if level == sandbox.Level.BWRAP.value:
    # Entering the isolation starts a session.
    skipped = {'--as-pid-1', '--new-session'}
    command = [
        *(x for x in launcher._bwrap([]) if x not in skipped), '--', *command]
  return subprocess.run(
      command, input=stdin, capture_output=True, text=True, env={}).stdout


def measure(server: sandbox.SandboxServer, num: int, rounds: int) -> None:
  """Prints programs per second: median, minimum and maximum of the rounds."""
  programs = sandbox.Sandbox(server.address)
  level = server.level.value

  def run_fork(number: int, source: str = _PROGRAM) -> str:
    return programs.run(source, str(number)).stdout

  ways = {
      'fork': (run_fork, num),
      'packages': (lambda n: run_fork(n, f'{_PROGRAM}  # numpy'), num),
      'fresh': (
          lambda n: fresh(level, _PROGRAM, str(n)), max(num // 10, 1))}
  rates, costs = collections.defaultdict(list), collections.defaultdict(list)
  with futures.ThreadPoolExecutor(server.num_slots) as pool:
    run_fork(1, f'{_PROGRAM}  # numpy')  # Starts the fork with packages.
    for _ in range(rounds):
      for name, (function, count) in ways.items():
        cpu, start = cpu_seconds(server), time.perf_counter()
        printed = list(pool.map(function, range(count)))
        rates[name].append(count / (time.perf_counter() - start))
        costs[name].append(1000 * (cpu_seconds(server) - cpu) / count)
        assert printed == [f'{n + 1}\n' for n in range(count)], printed[:3]
  for name, found in rates.items():
    cost = (
        '' if name == 'fresh' else
        f', {statistics.median(costs[name]):.1f} ms of CPU time each')
    print(f'{name:9s} {statistics.median(found):7.1f} programs/s  '
          f'({min(found):.1f} to {max(found):.1f}){cost}')
  ratios = [a / b for a, b in zip(rates['fork'], rates['fresh'])]
  print(f'fork is {statistics.median(ratios):.1f} times as fast as fresh')


def cpu_seconds(server: sandbox.SandboxServer) -> float:
  """CPU time of this process, the server, and its finished children."""
  ticks = 0
  for pid in family(server):
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    ticks += sum(map(int, stat.rpartition(')')[2].split()[11:15]))
  return ticks / os.sysconf('SC_CLK_TCK') + time.process_time()


def family(server: sandbox.SandboxServer) -> list[int]:
  """Ids of the server and its descendants."""
  pids = [server.pid]
  for pid in pids:
    children = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
    pids += map(int, children.split())
  return pids


def held(server: sandbox.SandboxServer) -> dict[str, int]:
  """Resources of the server and its descendants."""
  pids = family(server)
  status = [pathlib.Path(f'/proc/{pid}/status').read_text() for pid in pids]
  sizes = [int(text.partition('VmRSS:')[2].split()[0]) for text in status]
  return {
      'processes': len(pids),
      'descriptors': sum(len(os.listdir(f'/proc/{pid}/fd')) for pid in pids),
      'files': sum(
          1 for _ in pathlib.Path(server.address).parent.rglob('*')),
      'memory_mib': sum(sizes) // 1024,
      'client_descriptors': len(os.listdir('/proc/self/fd'))}


def soak(server: sandbox.SandboxServer, num: int) -> bool:
  """Runs programs of all kinds; True if nothing leaked or went wrong."""
  limits = sandbox.Limits(wall_seconds=1.0)
  programs = sandbox.Sandbox(server.address, limits)
  kinds = list(_KINDS.items())

  def run(number: int) -> tuple[str, sandbox.Status, sandbox.Status]:
    source, expected = kinds[number % len(kinds)]
    if number % _TIMEOUT_EVERY == 0:
      source, expected = _TIMEOUT
    elif number % len(kinds) == 0:  # A different text each time.
      source += f'  # {number}'
    return source, expected, programs.run(source, str(number)).status

  with futures.ThreadPoolExecutor(2 * server.num_slots) as pool:
    list(pool.map(run, range(10 * len(kinds))))
    before = held(server)
    start = time.perf_counter()
    results = list(pool.map(run, range(num)))
    seconds = time.perf_counter() - start
  time.sleep(1.5)  # Until the server has swept up.
  after = held(server)
  wrong = [(source, str(found)) for source, expected, found in results
           if found is not expected]
  print(f'soak: {num} programs in {seconds:.0f} s, {len(wrong)} with a wrong '
        f'status {collections.Counter(wrong).most_common(3)}')
  print(f'before: {json.dumps(before)}\nafter:  {json.dumps(after)}')
  before['memory_mib'] += before['memory_mib'] // 10
  return not wrong and all(after[name] <= before[name] for name in before)


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.sandbox', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--level', default=launcher.AUTO, choices=sandbox.LEVELS)
  parser.add_argument('--programs', type=int, default=400)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--soak', type=int, default=0)
  return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
  given = parse(argv)
  with sandbox.SandboxServer(level=given.level) as server:
    print(f'sandbox level {server.level.value}, {server.num_slots} at a time, '
          f'load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores')
    measure(server, given.programs, given.rounds)
    return 0 if not given.soak or soak(server, given.soak) else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
