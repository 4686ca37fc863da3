"""benchmarks/slices.py: the cells that are checked, and their table."""

import importlib.util
import json
import subprocess
import sys

import pytest

from benchmarks import slices
from tests import checkout

CELLS = json.loads(
    (checkout.ROOT / 'benchmarks/results/slices.json').read_text())


def test_docs_show_the_stored_cells():
  assert slices.table(CELLS) in (
      checkout.ROOT / 'docs/hardware.md').read_text()


def test_smallest_cell_is_reproduced():
  if not importlib.util.find_spec('libtpu'):
    pytest.skip('libtpu is not installed: install the extra `compile`')
  key = slices.pod('0.6b', 'lora_per_role', 'v5litepod-8')
  found = subprocess.run(
      [sys.executable, '-m', 'benchmarks.slices', key],
      cwd=checkout.ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
  cell, stored = json.loads(found.splitlines()[-1]), CELLS[key]
  for name in ('fits', 'mesh', 'groups', 'largest'):
    assert cell[name] == stored[name]
  assert cell['spare_gib'] == pytest.approx(stored['spare_gib'], abs=0.3)
