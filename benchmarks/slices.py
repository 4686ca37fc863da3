"""Which runs of Qwen3 fit which TPU slices: a table of compile checks.

  python -m benchmarks.slices --out benchmarks/results/slices.json

A cell is what `--mode compile_check --config configs/pod.py:...` says of a
size, the policies and a slice. It takes one to four minutes of two cores, in a
process of its own. Cells that the file has from the same versions are kept, so
that the command may be stopped and given again. Needs the extra `compile`.
"""

from __future__ import annotations

from collections.abc import Iterable
import datetime
import importlib.metadata
import itertools
import json
import pathlib
import subprocess
import sys
from typing import Any

from absl import app
from absl import flags

from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report as report_lib
from configs import common
from configs import pod

SLICES = ('v5litepod-8', 'v5litepod-16', 'v6e-8', 'v6e-16', 'v5p-16')
POLICIES = ('shared', 'lora_per_role', 'per_role')
SIZES = common.SIZES[1:]  # Those of Qwen3.

_OUT = flags.DEFINE_string(
    'out', 'benchmarks/results/slices.json', 'File of the cells.')
_CELL = flags.DEFINE_string(
    'cell', '', 'Check only this one, such as 1.7b,shared,v5litepod-16, and '
    'print it.')

Cell = dict[str, Any]


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'No arguments are known, but there are {argv[1:]}.')
  if _CELL.value:
    names = _CELL.value.split(',')
    if len(names) != 3:
      raise app.UsageError(
          f'--cell={_CELL.value}: give size, policies and slice, such as '
          '1.7b,shared,v5litepod-16.')
    print(json.dumps(check(*names)))
    return
  print(table(complete(pathlib.Path(_OUT.value)).values()))


def complete(out: pathlib.Path) -> dict[str, Cell]:
  """Checks the cells that `out` lacks, and writes each of them to it."""
  cells = json.loads(out.read_text()) if out.exists() else {}
  for names in itertools.product(SIZES, POLICIES, SLICES):
    key = ','.join(names)
    if cells.get(key, {}).get('versions') == versions():
      continue
    print(f'{key} ...', flush=True)
    found = subprocess.run(
        [sys.executable, '-m', 'benchmarks.slices', f'--cell={key}'],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    cells[key] = json.loads(found.splitlines()[-1])
    out.write_text(json.dumps(cells, indent=1) + '\n')
  return cells


def versions() -> dict[str, str]:
  """Of what compiles."""
  return {
      name: importlib.metadata.version(name)
      for name in ('jax', 'jaxlib', 'libtpu')}


def check(size: str, policies: str, slice_name: str) -> Cell:
  """One cell."""
  config = pod.get_config(
      f'size={size},policies={policies},topology={slice_name}')
  devices, chip = report_lib.slice_of(config)
  config = lower.fit_to_devices(config, devices, chip)
  reports = report_lib.check(config, devices)
  worst = max(
      (report.largest for report in reports),
      key=lambda program: program.order)
  return {
      'size': size, 'policies': policies, 'slice': slice_name,
      'fits': all(report.fits(chip) for report in reports),
      'spare_gib': round((chip.memory - worst.total) / 2**30, 2),
      'largest': worst.name, 'refusal': worst.refusal,
      'mesh': {'fsdp': config.mesh.fsdp, 'tensor': config.mesh.tensor},
      'versions': versions(),
      'date': datetime.datetime.now(datetime.UTC).date().isoformat()}


def table(cells: Iterable[Cell]) -> str:
  """GiB left on each chip, in Markdown."""
  left = {
      (cell['size'], cell['policies'], cell['slice']): (
          f'{cell["spare_gib"]:.2f}' if cell['fits'] else 'does not fit')
      for cell in cells}
  lines = [
      ['Qwen3', 'policies', *SLICES], ['---'] * (2 + len(SLICES)), *(
          [size.upper(), policies, *(
              left.get((size, policies, name), '') for name in SLICES)]
          for size, policies in itertools.product(SIZES, POLICIES))]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
  app.run(main)
