"""Measures this project on the devices that jax finds, in a few minutes.

  python -m benchmarks.accelerator [--minutes 8] [--parts decode_0.6b step]

Needs no network. The parts of `benchmarks.accelerator_parts` share the minutes.
Each runs in a child process, which writes every cell to the results file as
soon as it is known: measured, or skipped or failed with the reason. Parts that
are not in --parts keep their results in the file.

On a CPU all sizes are tiny, and the rates say nothing about the project.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from atgrpo_jax import errors

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / 'benchmarks/results'
CHILD = 'benchmarks.accelerator_parts'
# Part -> its weight when the remaining time is divided.
WEIGHTS = {
    'kernels': 3, 'logprobs': 3, 'decode_0.6b': 5, 'compute_0.6b': 4,
    'quickstart': 10, 'step': 5, 'decode_1.7b': 5, 'compute_1.7b': 4,
    'smollm2': 5}
_ENVIRONMENT = {
    # As in launch/_common.sh.
    'TFDS_DATA_DIR': str(ROOT / '.cache/datasets'),
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache/jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    # The last line of a traceback is then the error.
    'JAX_TRACEBACK_FILTERING': 'off'}
# The state of a cell before it is measured.
_WAITING = {'status': 'skipped', 'reason': 'not reached'}

Record = dict[str, Any]
# Part -> cell -> function that measures it.
Parts = Mapping[str, Mapping[str, Callable[[], Mapping[str, float]]]]


def _read(path: pathlib.Path) -> Record:
  return json.loads(path.read_text())


def _write(path: pathlib.Path, result: Record) -> None:
  temporary = path.with_suffix('.tmp')  # A killed child must leave no half.
  temporary.write_text(json.dumps(result, indent=1) + '\n')
  temporary.replace(path)


def run_child(
    describe_machine: Callable[[], Record], make_parts: Callable[[str], Parts],
    argv: Sequence[str]) -> None:
  """Prints the machine or, with arguments, measures a part.

  `make_parts` takes the level of the sandbox.
  """
  if not argv:
    print(json.dumps(describe_machine()))
    return
  part, path, sandbox = argv
  path, measurements = pathlib.Path(path), make_parts(sandbox)[part]
  result = _read(path)
  cells = dict.fromkeys(measurements, _WAITING)
  result['parts'][part]['cells'] = cells
  for name, measure in measurements.items():
    _write(path, result)
    try:
      cells[name] = {'status': 'measured', 'values': measure()}
    except errors.UserError as error:
      cells[name] = {'status': 'skipped', 'reason': str(error)}
    except RuntimeError as error:  # From XLA.
      is_full = 'RESOURCE_EXHAUSTED' in str(error)
      cells[name] = {
          'status': 'skipped' if is_full else 'failed',
          'reason': errors.one_line(error)}
  _write(path, result)


# The parent process never touches the accelerator.


def run_part(
    part: str, path: pathlib.Path, seconds: float, sandbox: str) -> None:
  """Runs a child; the cell that ends it gets the reason."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    log = pathlib.Path(folder, 'log')
    with log.open('w') as file:
      try:
        process = subprocess.run(
            [sys.executable, '-m', CHILD, part, path, sandbox], cwd=ROOT,
            env=_ENVIRONMENT | os.environ | {'TMPDIR': folder}, stdout=file,
            stderr=file, timeout=seconds)
      except subprocess.TimeoutExpired:
        outcome = {'status': 'skipped', 'reason': (
            f'the part was not finished after {seconds:.0f} s')}
      else:
        *_, last = log.read_text(errors='replace').splitlines() or ['']
        outcome = {'status': 'failed', 'reason': (
            f'exit status {process.returncode}, after the output: {last}')}
  result = _read(path)
  cells = result['parts'][part]['cells']
  for name in [name for name in cells if cells[name] == _WAITING][:1]:
    cells[name] = outcome
  _write(path, result)
  print(f'{part}: {_count(cells.values())}', flush=True)


def _count(cells: Iterable[Record]) -> str:
  counts = collections.Counter(cell['status'] for cell in cells)
  return ', '.join(f'{num} {status}' for status, num in counts.items())


def table(results: Sequence[Record]) -> str:
  """All results, in Markdown."""
  rows = [('device', 'work', 'result', 'measured with'), ('---',) * 4]
  for result in results:
    machine = result['machine']
    device = f'{machine["num_devices"]} x {machine["device"]}'
    cells = [
        (f'{part}, {name}', cell, _source(record['machine']))
        for part, record in result['parts'].items()
        for name, cell in record['cells'].items()]
    if machine['sizes'] == 'tiny':
      rows.append((
          device, f'{len(result["parts"])} parts, with tiny models',
          f'{len(cells)} cells: {_count(cell for _, cell, _ in cells)}',
          _source(machine)))
    else:
      rows += [
          (device, work, _describe(cell), source)
          for work, cell, source in cells]
  return '\n'.join(
      f'| {" | ".join(x.replace("|", "/") for x in row)} |' for row in rows)


def _source(machine: Record) -> str:
  return f'jax {machine["jax"]}, {machine["date"][:10]}'


def _describe(cell: Record) -> str:
  if cell['status'] != 'measured':
    return f'{cell["status"]}: {cell["reason"]}'
  return ', '.join(
      f'{value:,.0f} {name}' if value >= 1000 else f'{value:.3g} {name}'
      for name, value in cell['values'].items())


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.accelerator', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--minutes', type=float, default=8.0)
  parser.add_argument('--parts', nargs='+', choices=WEIGHTS, default=WEIGHTS)
  parser.add_argument(
      '--out', type=pathlib.Path, metavar='FILE',
      help='default: benchmarks/results/accelerator_DEVICE.json')
  parser.add_argument(
      '--sandbox', default='auto', metavar='LEVEL',
      help='isolation of the programs that models write (sandbox.level)')
  args = parser.parse_args(argv)
  if not args.minutes > 0:
    parser.error(f'--minutes={args.minutes}: expected a number above 0.')
  return args


def main(argv: Sequence[str]) -> int:
  """Runs the parts and prints the table; 1 if a cell failed."""
  args = parse(argv)
  # Otherwise SIGTERM would leave a child that holds the accelerator.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  deadline = time.monotonic() + 60 * args.minutes
  machine = json.loads(subprocess.run(
      [sys.executable, '-m', CHILD], cwd=ROOT, check=True,
      stdout=subprocess.PIPE, timeout=60 * args.minutes).stdout)
  device = re.sub(r'\W+', '_', machine['device']).strip('_').lower()
  path = (args.out or RESULTS / f'accelerator_{device}.json').resolve()
  path.parent.mkdir(parents=True, exist_ok=True)
  parts = _read(path)['parts'] if path.exists() else {}
  result = {'machine': machine, 'parts': parts}
  for part in args.parts:
    parts[part] = {'machine': machine, 'cells': {'all': _WAITING}}
  _write(path, result)
  weights = [WEIGHTS[part] for part in args.parts]
  for index, part in enumerate(args.parts):
    left = max(0.0, deadline - time.monotonic())
    run_part(
        part, path, left * weights[index] / sum(weights[index:]), args.sandbox)
  result = _read(path)
  print(f'{table([result])}\nwritten to {path}')
  return int(any(
      cell['status'] == 'failed' for part in args.parts
      for cell in result['parts'][part]['cells'].values()))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
