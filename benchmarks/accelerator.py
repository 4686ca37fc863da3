"""Measures this project on the devices that jax finds, in a few minutes.

  python -m benchmarks.accelerator [--minutes 8] [--parts decode_0.6b errors]

Needs no network. The parts are benchmarks of `benchmarks.run`. Each runs in a
child process with an equal share of the remaining minutes, prints every result
and writes it to FOLDER/PART.json as soon as it is known.

On a CPU all sizes are tiny, and the rates say nothing about the project.
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import sys
import time

from benchmarks import cases

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHILD = 'benchmarks.run'
# As in launch/_common.sh.
_ENVIRONMENT = {
    'TFDS_DATA_DIR': str(ROOT / '.cache/datasets'),
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache/jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.accelerator', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--minutes', type=float, default=8.0)
  parser.add_argument(
      '--parts', nargs='+', choices=cases.ACCELERATOR,
      default=list(cases.ACCELERATOR))
  parser.add_argument(
      '--out', type=pathlib.Path, metavar='FOLDER',
      default=ROOT / 'benchmarks/results/accelerator')
  return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
  """Runs the parts in child processes; returns 1 if a case failed.

  This process never touches the accelerator.
  """
  args = parse(argv)
  # Otherwise SIGTERM would leave a child that holds the accelerator.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  deadline, status = time.monotonic() + 60 * args.minutes, 0
  for index, part in enumerate(args.parts):
    left = max(0.0, deadline - time.monotonic())
    seconds = left / (len(args.parts) - index)
    print(f'{part}:', flush=True)
    try:
      done = subprocess.run(
          [sys.executable, '-m', CHILD, part, '--repeats', '3', '--out',
           args.out.resolve()],
          cwd=ROOT, env=_ENVIRONMENT | os.environ, timeout=seconds)
      status = 1 if done.returncode else status
    except subprocess.TimeoutExpired:
      print(f'error: {part} was not finished after {seconds:.0f} s')
      status = 1
  return status


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
