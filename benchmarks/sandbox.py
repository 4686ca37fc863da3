"""Measures programs per second of a sandbox.

  python -m benchmarks.sandbox [--level LEVEL] [--programs N] [--rounds N]
      [--out FILE]

Two trivial programs take turns on every core: a plain one, and one in an
interpreter with numpy and sympy. Each runs in a fork of a warm interpreter.

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

from environments import sandbox
from environments.sandbox import launcher

_PLAIN = 'print(int(input()) + 1)'
_PACKAGES = f'{_PLAIN}  # numpy'


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


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.sandbox', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--level', default=launcher.AUTO, choices=sandbox.LEVELS)
  parser.add_argument('--programs', type=int, default=400)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--out', type=pathlib.Path)
  return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
  args = parse(argv)
  with sandbox.SandboxServer(level=args.level) as server:
    load = os.getloadavg()[0]
    rates = measure(server, args.programs, args.rounds)
    level = server.level.value
  print(f'sandbox level {level}, {server.num_slots} at a time, load {load:.1f}')
  for kind, found in rates.items():
    print(f'{kind:9s} {statistics.median(found):7.1f} programs/s  '
          f'({min(found):.1f} to {max(found):.1f})')
  if args.out:
    records = json.loads(args.out.read_text()) if args.out.exists() else {}
    records[level] = {'slots': server.num_slots, 'load': load, 'rates': rates}
    args.out.write_text(json.dumps(records, indent=1) + '\n')


if __name__ == '__main__':
  main(sys.argv[1:])
