"""Measures programs per second of a sandbox, and checks that it leaks nothing.

  python -m benchmarks.sandbox [--level LEVEL] [--programs N] [--rounds N]
      [--soak N]

Two trivial programs take turns on every core: a plain one, and one in an
interpreter with numpy and sympy. Each runs in a fork of a warm interpreter.

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
import sys
import time

from environments import sandbox
from environments.sandbox import launcher

_PROGRAM = 'print(int(input()) + 1)'
_PACKAGES = f'{_PROGRAM}  # numpy'
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


def measure(server: sandbox.SandboxServer, num: int, rounds: int) -> None:
  """Prints programs per second: median, minimum and maximum of the rounds."""
  programs = sandbox.Sandbox(server.address)
  rates = collections.defaultdict(list)
  with futures.ThreadPoolExecutor(server.num_slots) as pool:
    programs.run(_PACKAGES, '1')  # Starts the interpreter with packages.
    for _ in range(rounds):
      for name, source in (('plain', _PROGRAM), ('packages', _PACKAGES)):
        start = time.perf_counter()
        results = list(pool.map(
            programs.run, [source] * num, map(str, range(num))))
        rates[name].append(num / (time.perf_counter() - start))
        assert [it.stdout for it in results] == [
            f'{n + 1}\n' for n in range(num)], results[:3]
  for name, found in rates.items():
    print(f'{name:9s} {statistics.median(found):7.1f} programs/s  '
          f'({min(found):.1f} to {max(found):.1f})')


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
