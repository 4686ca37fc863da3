"""Measures programs per second of a sandbox, and checks that it leaks nothing.

  python -m benchmarks.sandbox [--level LEVEL] [--programs N] [--rounds N]
      [--soak N] [--out FILE]

Two trivial programs take turns on every core: a plain one, and one in an
interpreter with numpy and sympy. Each runs in a fork of a warm interpreter.

Then N programs of several kinds run on the same server. Exits with status 1
after a wrong status, or if the server then has more processes, descriptors,
files or (above 10 %) memory than before.

--out adds the figures of this level to a JSON file.
"""

import argparse
from collections.abc import Sequence
from concurrent import futures
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

from environments import sandbox
from environments.sandbox import launcher
from environments.sandbox import processes

_PLAIN = 'print(int(input()) + 1)'
_PACKAGES = f'{_PLAIN}  # numpy'
# Programs of the soak and their statuses.
_KINDS = (
    (_PLAIN, sandbox.Status.OK),
    ('import numpy; print(numpy.zeros(3).sum())', sandbox.Status.OK),
    ('1 / 0', sandbox.Status.ERROR),
    ('import ctypes; ctypes.string_at(0)', sandbox.Status.ERROR),
    ('import sys; sys.stdout.write("x" * 2_000_000)',
     sandbox.Status.RESOURCE_LIMIT),
    ('x = [0] * 10**9', sandbox.Status.RESOURCE_LIMIT),
    ('import threading, time\n'
     'for _ in range(9): threading.Thread(target=print).start()',
     sandbox.Status.OK),
)


def measure(
    server: sandbox.SandboxServer, num: int,
    rounds: int) -> dict[str, list[float]]:
  """Programs per second of each round, by kind."""
  rates = {'plain': [], 'packages': []}
  with futures.ThreadPoolExecutor(server.num_slots) as pool:
    server.sandbox.run(_PACKAGES, '1')  # Starts the interpreter with packages.
    for _ in range(rounds):
      for kind, source in (('plain', _PLAIN), ('packages', _PACKAGES)):
        start = time.perf_counter()
        results = list(pool.map(
            server.sandbox.run, [source] * num, map(str, range(num))))
        rates[kind].append(num / (time.perf_counter() - start))
        assert [result.stdout for result in results] == [
            f'{i + 1}\n' for i in range(num)], results[:3]
  return rates


def soak(server: sandbox.SandboxServer, num: int) -> dict[str, Any]:
  """Runs programs of all kinds; counts wrong statuses and what was leaked."""

  def is_wrong(i: int) -> bool:
    source, expected = _KINDS[i % len(_KINDS)]
    return server.sandbox.run(source, str(i)).status is not expected

  with futures.ThreadPoolExecutor(2 * server.num_slots) as pool:
    list(pool.map(is_wrong, range(10 * len(_KINDS))))
    before = _resources(server)
    num_wrong = sum(pool.map(is_wrong, range(num)))
  time.sleep(1.5)  # Until the server has swept up.
  return {
      'programs': num, 'num_wrong': num_wrong, 'before': before,
      'after': _resources(server)}


def _resources(server: sandbox.SandboxServer) -> dict[str, int]:
  """Resources of the server and its descendants."""
  pids = [server.pid]
  for pid in pids:
    pids += processes.children(pid)
  status = [pathlib.Path(f'/proc/{pid}/status').read_text() for pid in pids]
  sizes = [int(text.partition('VmRSS:')[2].split()[0]) for text in status]
  return {
      'processes': len(pids),
      'descriptors': sum(len(os.listdir(f'/proc/{pid}/fd')) for pid in pids),
      'files': sum(
          1 for _ in pathlib.Path(server.address).parent.rglob('*')),
      'memory_mib': sum(sizes) // 1024,
      'client_descriptors': len(os.listdir('/proc/self/fd'))}


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.sandbox', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--level', default=launcher.AUTO, choices=sandbox.LEVELS)
  parser.add_argument('--programs', type=int, default=400)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--soak', type=int, default=200)
  parser.add_argument('--out', type=pathlib.Path)
  return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
  args = parse(argv)
  with sandbox.SandboxServer(level=args.level) as server:
    load = os.getloadavg()[0]
    rates = measure(server, args.programs, args.rounds)
    soaked = soak(server, args.soak)
    level = server.level.value
  print(f'sandbox level {level}, {server.num_slots} at a time, load {load:.1f}')
  for kind, found in rates.items():
    print(f'{kind:9s} {statistics.median(found):7.1f} programs/s  '
          f'({min(found):.1f} to {max(found):.1f})')
  print(f'soak      {soaked}')
  if args.out:
    records = json.loads(args.out.read_text()) if args.out.exists() else {}
    records[level] = {
        'slots': server.num_slots, 'load': load, 'rates': rates, 'soak': soaked}
    args.out.write_text(json.dumps(records, indent=1) + '\n')
  before = soaked['before']
  before['memory_mib'] += before['memory_mib'] // 10
  return int(soaked['num_wrong'] > 0 or any(
      soaked['after'][name] > before[name] for name in before))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
