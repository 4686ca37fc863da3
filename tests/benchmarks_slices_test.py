"""benchmarks/slices.py: the cells that are checked, and their table."""

import contextlib
import importlib.util
import json
import math
import subprocess
import sys

import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax.distributed import fit
from atgrpo_jax.rollout import policies as policies_lib
from benchmarks import slices
from tests import checkout
from tests.distributed import fit_test

CELLS = json.loads(
    (checkout.ROOT / 'benchmarks/results/slices.json').read_text())


def test_the_table_of_the_docs_is_up_to_date():
  assert slices.table(CELLS) in (
      checkout.ROOT / 'docs/hardware.md').read_text()


@pytest.mark.parametrize('key', CELLS)
def test_a_cell_has_the_mesh_that_a_run_chooses(key):
  config = slices.config_of(key)
  generation, _, layout = config.compile_check.topology.partition(':')
  environment = config_lib.make_environment(config, sandbox=None)
  names = policies_lib.policy_names(policies_lib.make_policy_map(
      config.policies, environment.roles, config.policy_map))
  chosen = None
  with contextlib.suppress(fit.DoesNotFit):
    chosen = fit_test.choose_mesh(
        config, names, math.prod(map(int, layout.split('x'))),
        (fit.TPUS | fit.GPUS)[generation])
  cell = CELLS[key]
  assert (chosen is not None) == cell['fits']
  if chosen is not None:
    mesh = json.loads(json.dumps(chosen.mesh.to_dict()))
    assert (mesh, chosen.buckets.groups[-1]) == (cell['mesh'], cell['groups'])


def test_the_smallest_cell_is_checked_again():
  if not importlib.util.find_spec('libtpu'):
    pytest.skip('libtpu is not installed: install the extra `compile`')
  key = slices.pod('0.6b', 'lora_per_role', 'v5litepod-8')
  found = subprocess.run(
      [sys.executable, '-m', 'benchmarks.slices', f'--cell={key}'],
      cwd=checkout.ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
  cell, stored = json.loads(found.splitlines()[-1]), CELLS[key]
  for name in ('fits', 'mesh', 'groups', 'largest'):
    assert cell[name] == stored[name]
  assert cell['spare_gib'] == pytest.approx(stored['spare_gib'], abs=0.3)
