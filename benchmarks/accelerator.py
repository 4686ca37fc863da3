"""Measures this project on the devices that jax finds, in a few minutes.

  python -m benchmarks.accelerator [--minutes 8] [--parts decode_0.6b,step]

Needs no network. Each part of `benchmarks.accelerator_parts` runs in a child
process with a time limit; the parts share the minutes. If a child dies or
hangs, another one continues after the failed cell. Every cell is written to the
results file as soon as it is known: measured, or skipped or failed with the
reason. Parts that are not in --parts keep their results in the file.

On a CPU all sizes are tiny, and the rates say nothing about the project.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import faulthandler
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

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / 'benchmarks/results'
CHILD = 'benchmarks.accelerator_parts'

# Part -> its weight when the remaining time is divided. Cheap facts come first.
WEIGHTS = {
    'device': 2, 'kernels': 3, 'logprobs': 3, 'decode_0.6b': 5,
    'compute_0.6b': 3, 'quickstart': 10, 'step': 5, 'decode_1.7b': 5,
    'compute_1.7b': 3, 'smollm2': 5}
# Results of others: device, work, result, share of the peak, source.
ANCHORS = (
    ('L40S', 'decode, Qwen3-4B, batch 1', '76 tokens/s', '71 % of bandwidth',
     'JAX, SkyRL PR #1363'),
    ('H100', 'decode with prefill, Qwen3-0.6B, batch 2048, prompt 10',
     '87,978 tokens/s', '', 'JAX, SkyRL PR #674'),
    ('16 x H100', 'GRPO step, Llama-3.1-8B', '1,581 tokens/s/device', '',
     'NeMo-RL v0.5'))
_POLL_SECONDS = 0.2
# As in launch/_common.sh.
_ENVIRONMENT = {
    'TFDS_DATA_DIR': str(ROOT / '.cache/datasets'),
    'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache/jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}

Record = dict[str, Any]


class Skipped(Exception):
  """A cell cannot be measured here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Options:
  """The arguments of a child process."""

  record: str  # File of the part's record.
  seconds: float  # Time limit.
  folder: str  # For temporary files.
  smollm2: str  # Folder of the model.
  sandbox: str  # `sandbox.level` of the runs.


# The child process.


def run_cells(
    parts: Mapping[str, Callable[[Options], Iterable]], argv: Sequence[str],
    describe_machine: Callable[[], Record],
    describe_memory: Callable[[], Record]) -> None:
  """Measures the cells of a part that are not in its record yet.

  `parts` has a function for each part, which returns pairs of the name of a
  cell and the function that measures it.
  """
  part, options = argv
  options = Options(**json.loads(options))
  deadline = time.monotonic() + options.seconds
  path, cells = pathlib.Path(options.record), dict(parts[part](options))
  record = json.loads(path.read_text()) if path.exists() else {
      'machine': describe_machine(),
      'cells': {cell: {'status': 'waiting'} for cell in cells}}

  def write(cell, **values):
    record['cells'][cell] = values
    write_json(path, record)

  waiting = [
      cell for cell in cells if record['cells'][cell]['status'] == 'waiting']
  seconds = 0.0
  for cell in waiting:
    left = deadline - time.monotonic()
    if left < seconds:
      write(cell, status='skipped', reason=(
          f'{left:.0f} s are left, and the cell before took {seconds:.0f} s'))
      continue
    # A compilation that hangs must leave time for the other cells.
    faulthandler.dump_traceback_later(
        left if cell == waiting[-1] else left / 2, exit=True)
    write(cell, status='running')
    start = time.monotonic()
    try:
      values = {'status': 'measured', **cells[cell]()}
    except Skipped as reason:
      values = {'status': 'skipped', 'reason': str(reason)}
    except Exception as error:  # Recorded and raised: the process ends.
      write(cell, status='failed', reason=(
          f'{type(error).__name__}: {str(error)[:500]}'))
      raise
    faulthandler.cancel_dump_traceback_later()
    seconds = time.monotonic() - start
    write(cell, **values, **describe_memory(), cell_seconds=round(seconds, 1))


# The parent process, which never touches the accelerator.


def run_part(
    part: str, seconds: float, options: dict[str, str],
    save: Callable[[Record], None]) -> Record:
  """Runs a part in one child after another; saves its record as it grows."""
  start = time.monotonic()

  def left():
    return start + seconds - time.monotonic()

  with tempfile.TemporaryDirectory() as folder:
    path, num_waiting = pathlib.Path(folder, 'record.json'), None

    def read():
      return json.loads(path.read_text()) if path.exists() else {'cells': {}}

    while True:
      arguments = options | {
          'record': str(path), 'seconds': left(),
          'folder': tempfile.mkdtemp(dir=folder)}
      reason = _run_child(part, arguments, left, lambda: save(read()))
      record = read()
      for cell in record['cells'].values():
        if cell['status'] == 'running':
          cell |= {'status': 'failed', 'reason': reason}
      write_json(path, record)
      waiting = [
          x for x in record['cells'].values() if x['status'] == 'waiting']
      if not waiting or left() <= 0 or num_waiting == len(waiting):
        break
      num_waiting = len(waiting)
  for cell in waiting:
    cell |= {'status': 'skipped', 'reason': (
        'the time of the part was over' if left() <= 0 else reason)}
  statuses = {cell['status'] for cell in record['cells'].values()} or {'failed'}
  record |= {
      'status': next(
          x for x in ('failed', 'measured', 'skipped') if x in statuses),
      'reason': reason if 'failed' in statuses else None,
      'seconds': round(time.monotonic() - start, 1),
      'limit_seconds': round(seconds, 1)}
  save(record)
  return record


def _run_child(
    part: str, arguments: Record, left: Callable[[], float],
    poll: Callable[[], None]) -> str | None:
  """Runs a child until its time is over; returns why it failed, or None."""
  with tempfile.TemporaryFile('w+', errors='replace') as log:
    child = subprocess.Popen(
        [sys.executable, '-m', CHILD, part, json.dumps(arguments)], cwd=ROOT,
        stdout=log, stderr=log, env=_ENVIRONMENT | os.environ,
        start_new_session=True)
    try:
      while child.poll() is None and left() > 0:
        time.sleep(_POLL_SECONDS)
        poll()
      status = child.poll()
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # With the workers of a run.
      child.wait()
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()] or ['nothing']
  if status == 0:
    return None
  if status is None:
    return f'no result in time; the last output was: {lines[-1]}'
  for line, frame in zip(lines, lines[1:]):
    if line.endswith('(most recent call first):'):  # From faulthandler.
      return f'no result in time; it hung in {frame}'
  return f'exit status {status}; the last output was: {lines[-1]}'


def write_json(path: pathlib.Path, value: Any) -> None:
  """Replaces a file, so that a reader never finds half of it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_suffix('.tmp')
  temporary.write_text(json.dumps(value, indent=1) + '\n')
  os.replace(temporary, path)


def table(results: Sequence[Record]) -> str:
  """The anchors and all results, in Markdown."""
  rows = [
      ('device', 'work', 'result', 'share of the peak', 'source'),
      ('---',) * 5, *ANCHORS]
  for result in results:
    machine = result['machine']
    device = f'{machine["num_devices"]} x {machine["device"]}'
    if machine['sizes'] == 'tiny':
      counts = collections.Counter(
          record['status'] for record in result['parts'].values())
      text = ', '.join(f'{num} {status}' for status, num in counts.items())
      rows.append((
          device, 'all parts, with tiny models', text, '', _source(machine)))
      continue
    for part, record in result['parts'].items():
      source = _source(record.get('machine', machine))
      if not record['cells']:
        rows.append((device, part, f'failed: {record["reason"]}', '', source))
      for name, cell in record['cells'].items():
        if part != 'device':
          rows.append((
              device, f'{part.replace("_", " ")}, {name}', *_describe(cell),
              source))
  return '\n'.join(
      f'| {" | ".join(x.replace("|", "/") for x in row)} |' for row in rows)


def _source(machine: Record) -> str:
  return f'jax {machine["jax"]}, {machine["date"][:10]}'


def _describe(cell: Record) -> tuple[str, str]:
  """The result of a cell, and its share of the peak."""
  if cell['status'] != 'measured':
    return f'{cell["status"]}: {cell["reason"]}', ''
  share = ', '.join(
      f'{100 * value:.0f} % of {key.removesuffix(" share")}'
      for key, value in cell.items() if key.endswith(' share') and value)
  for unit in ('tokens/s/device', 'tokens/s'):
    if unit in cell:
      text = f'{cell[unit]:,.0f} {unit}'
      if whole := cell.get('tokens/s with prefill'):
        text += f', {whole:,.0f} with prefill'
      return text, share
  if 'seconds' in cell:
    changes = ', '.join(
        f'{name} {cell[f"{name} before"]:.2f} -> {cell[f"{name} after"]:.2f}'
        for name in ('success', 'return'))
    return f'{changes} in {cell["seconds"]:.0f} s', ''
  return ', '.join(
      f'{key} {value:.1e}' if isinstance(value, float) else f'{value}'
      for key, value in cell.items()
      if key == 'kernel' or key.endswith('error')), ''


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.accelerator', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--minutes', type=float, default=8.0)
  parser.add_argument(
      '--parts', default=','.join(WEIGHTS), help='default: %(default)s')
  parser.add_argument(
      '--out', type=pathlib.Path, metavar='FILE',
      help='default: benchmarks/results/accelerator_DEVICE.json')
  parser.add_argument(
      '--smollm2', default=str(ROOT / '.cache/smollm2'), metavar='FOLDER',
      help='the model that `python -m models.smollm2` writes')
  parser.add_argument(
      '--sandbox', default='auto', metavar='LEVEL',
      help='isolation of the programs that models write (sandbox.level)')
  args = parser.parse_args(argv)
  args.parts = args.parts.split(',')
  if unknown := sorted(set(args.parts) - set(WEIGHTS)):
    parser.error(f'--parts={",".join(unknown)}: expected some of '
                 f'{",".join(WEIGHTS)}.')
  if not args.minutes > 0:
    parser.error(f'--minutes={args.minutes}: expected a number above 0.')
  return args


def main(argv: Sequence[str]) -> int:
  """Runs the parts and prints the table; 1 if a part failed."""
  args = parse(argv)
  # Otherwise SIGTERM would leave a child that holds the accelerator.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  deadline = time.monotonic() + 60 * args.minutes
  options = {
      'smollm2': os.path.relpath(args.smollm2, ROOT), 'sandbox': args.sandbox}
  result, path = {'parts': {}}, args.out
  parts = [x for x in WEIGHTS if x in args.parts or x == 'device']
  for index, part in enumerate(parts):
    weights = [WEIGHTS[x] for x in parts[index:]]
    seconds = max(0.0, deadline - time.monotonic()) * weights[0] / sum(weights)

    def save(record, part=part):
      result['parts'][part] = record
      if 'machine' in result:
        write_json(path, result)

    record = run_part(part, seconds, options, save)
    print(
        f'{part}: {record["status"]} in {record["seconds"]:.0f} s', flush=True)
    if part == 'device':
      if record['status'] != 'measured':
        print(f'error: {record["reason"]}', file=sys.stderr)
        return 1
      result['machine'] = record['machine']
      path = path or RESULTS / (
          f'accelerator_{_slug(record["machine"]["device"])}.json')
      if path.exists():
        result['parts'] = (
            json.loads(path.read_text())['parts'] | result['parts'])
  print(table([result]))
  print(f'written to {path}')
  return int(any(result['parts'][x]['status'] == 'failed' for x in parts))


def _slug(text: str) -> str:
  return re.sub(r'\W+', '_', text).strip('_').lower()


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
