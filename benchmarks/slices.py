"""Which runs of Qwen3 fit which TPU slices and GPUs: a table of compile checks.

  python -m benchmarks.slices [CONFIG]

A cell is the result of `--mode compile_check` for one config: `configs/pod.py`
with each size, policies and slice, and the configs that help texts and docs
name. Each cell runs in a new process and takes two to six minutes of a core.
Existing cells are kept, so the command resumes. With CONFIG, such as
configs/pod.py:size=1.7b,topology=v5litepod-16, it checks and prints only this
cell. It needs the extras `compile` and `gpu`, in separate environments.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
import datetime
import importlib
from importlib import metadata
import itertools
import json
import pathlib
import subprocess
import sys
from typing import Any

from atgrpo_jax.compile_check import report

SLICES = ('v5litepod-8', 'v5litepod-16', 'v6e-16', 'v5p-16', 'h100:8')
POLICIES = ('shared', 'lora_per_role', 'per_role')
SIZES = ('0.6b', '1.7b', '4b', '8b')  # Sizes of Qwen3.
# Configs that help texts and docs name.
EXAMPLES = (
    'configs/pod.py:size=8b,policies=shared,topology=v5litepod-64',
    'configs/contests.py:size=1.7b,topology=v6e:4x4',
    'configs/maths.py:size=1.7b,topology=v6e:4x4',
    'configs/writing.py:kind=tldr,size=1.7b,topology=v5e:2x4',
    'configs/functions.py:size=1.7b,topology=v5e:2x4')

_OUT = pathlib.Path('benchmarks/results/slices.json')

Cell = dict[str, Any]


def pod(size: str, policies: str, slice_name: str) -> str:
  """The config of a cell of the table."""
  return (
      f'configs/pod.py:size={size},policies={policies},topology={slice_name}')


def complete() -> dict[str, Cell]:
  """Checks the configs that the file lacks and adds each to it."""
  cells = json.loads(_OUT.read_text())
  configs = [
      pod(size, policies, name)
      for policies, size, name in itertools.product(POLICIES, SIZES, SLICES)]
  for key in (*EXAMPLES, *configs):
    if key not in cells:
      print(f'{key} ...', flush=True)
      output = subprocess.run(
          [sys.executable, '-m', 'benchmarks.slices', key], check=True,
          text=True, stdout=subprocess.PIPE).stdout
      cells[key] = json.loads(output.splitlines()[-1])
      _OUT.write_text(json.dumps(cells, indent=1) + '\n')
  return cells


def check(key: str) -> Cell:
  """One cell: the verdict, the mesh, spare memory and the predicted step."""
  path, _, arg = key.partition(':')
  config = importlib.import_module(
      path.removesuffix('.py').replace('/', '.')).get_config(arg)
  packages = ['jax', 'jaxlib', *(
      ['jax-cuda13-plugin', 'nvidia-cudnn-cu13']
      if config.compile_check.topology.startswith('h100') else ['libtpu'])]
  return {
      'versions': {name: metadata.version(name) for name in packages},
      'date': datetime.datetime.now(datetime.UTC).date().isoformat(),
      **report.compile_check(config)}


def table(cells: Mapping[str, Cell]) -> str:
  """Hours of a run and spare GiB per chip, in Markdown."""
  def entry(*names):
    cell = cells.get(pod(*names))
    if cell is None:
      return ''
    if not cell['fits']:
      return 'does not fit'
    hours = f'{cell["hours"]:.0f} h, ' if 'hours' in cell else ''
    return f'{hours}{cell["spare_gib"]:.1f} GiB'

  rows = [
      ['Qwen3', 'policies', *SLICES], ['---'] * (2 + len(SLICES)), *(
          [size.upper(), policies, *(
              entry(size, policies, name) for name in SLICES)]
          for policies, size in itertools.product(POLICIES, SIZES))]
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def main() -> None:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.slices', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('config', metavar='CONFIG', nargs='?')
  config = parser.parse_args().config
  print(json.dumps(check(config)) if config else table(complete()))


if __name__ == '__main__':
  main()
