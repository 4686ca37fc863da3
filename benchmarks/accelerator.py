"""Measures this project on the devices that jax finds, in a few minutes.

  python -m benchmarks.accelerator [--minutes 8] [--parts decode_0.6b errors]

Needs no network. The parts are benchmarks of `benchmarks.run`. Each runs in a
child process with an equal share of the remaining minutes, and writes every
result to FOLDER/PART.json as soon as it is known.

On a CPU all sizes are tiny, and the rates say nothing about the project.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks import cases
from benchmarks import run

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHILD = 'benchmarks.run'
_ENVIRONMENT = {
    # As in launch/_common.sh.
    'TFDS_DATA_DIR': str(ROOT / '.cache/datasets'),
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache/jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    # The last line of a traceback is then the error.
    'JAX_TRACEBACK_FILTERING': 'off'}


# The parent process never touches the accelerator.


def run_part(part: str, out: pathlib.Path, seconds: float) -> run.Record:
  """The result of a child; the case that ends the child gets the reason."""
  path = out / f'{part}.json'
  path.unlink(missing_ok=True)
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    log = pathlib.Path(folder, 'log')
    with log.open('w') as file:
      try:
        process = subprocess.run(
            [sys.executable, '-m', CHILD, part, '--repeats', '3', '--out', out],
            cwd=ROOT, env=_ENVIRONMENT | os.environ | {'TMPDIR': folder},
            stdout=file, stderr=file, timeout=seconds)
      except subprocess.TimeoutExpired:
        reason = f'the part was not finished after {seconds:.0f} s'
      else:
        *_, last = log.read_text(errors='replace').splitlines() or ['']
        reason = f'exit status {process.returncode}, after the output: {last}'
  result = json.loads(path.read_text()) if path.exists() else {
      'benchmark': part, 'cases': [{'name': 'all', 'error': run.NOT_REACHED}]}
  for case in result['cases']:
    if case.get('error') == run.NOT_REACHED:
      case['error'] = reason
      break
  run.write(path, result)
  return result


def table(result: run.Record) -> str:
  """The results of a part, in Markdown."""
  rows = [(result['benchmark'], 'result'), ('---',) * 2, *(
      (case['name'], run.describe(case)) for case in result['cases'])]
  return '\n'.join(
      f'| {" | ".join(x.replace("|", "/") for x in row)} |' for row in rows)


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
  args = parser.parse_args(argv)
  if not args.minutes > 0:
    parser.error(f'--minutes={args.minutes}: expected a number above 0.')
  return args


def main(argv: Sequence[str]) -> int:
  """Runs the parts and prints their tables; 1 if a case failed."""
  args = parse(argv)
  # Otherwise SIGTERM would leave a child that holds the accelerator.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  deadline, out = time.monotonic() + 60 * args.minutes, args.out.resolve()
  out.mkdir(parents=True, exist_ok=True)
  results = []
  for index, part in enumerate(args.parts):
    left = max(0.0, deadline - time.monotonic())
    results.append(run_part(part, out, left / (len(args.parts) - index)))
    print(f'{table(results[-1])}\n', flush=True)
  print(json.dumps(results[-1].get('machine')))
  return int(any('error' in case for x in results for case in x['cases']))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
