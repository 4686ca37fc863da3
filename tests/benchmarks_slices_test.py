"""benchmarks/slices.py: the cells that are checked, and their table."""

import contextlib
import importlib.util
import json
import math
import re
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


def _cell(**changes):
  return {
      'fits': True, 'hours': 20.4, 'spare_gib': 1.5,
      'versions': {'jax': '1'}} | changes


def test_checked_cells_are_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(slices, 'versions', lambda key: {'jax': '1'})
  monkeypatch.setattr(slices, 'SIZES', ('1.7b',))
  monkeypatch.setattr(slices, 'SLICES', ('v5litepod-8', 'v5p-16'))
  monkeypatch.setattr(slices, 'EXAMPLES', ('configs/maths.py:size=8b',))
  asked = []

  def run(command, **kwargs):
    asked.append(command[-1].removeprefix('--cell='))
    cell = _cell(fits=len(asked) != 3)
    return subprocess.CompletedProcess(
        command, 0, stdout=f'a warning\n{json.dumps(cell)}\n')

  monkeypatch.setattr(subprocess, 'run', run)
  out = tmp_path / 'slices.json'
  kept, old = (slices.pod('1.7b', 'shared', name) for name in slices.SLICES)
  out.write_text(json.dumps({
      kept: _cell(spare_gib=7.25), old: _cell(versions={'jax': '0'})}))
  cells = slices.complete(out)
  assert asked == [
      'configs/maths.py:size=8b', old, *(
          slices.pod('1.7b', policies, name)
          for policies in ('lora_per_role', 'per_role')
          for name in slices.SLICES)]
  assert json.loads(out.read_text()) == cells
  assert cells.keys() == {kept, *asked}
  assert slices.table(cells).splitlines() == [
      '| Qwen3 | policies | v5litepod-8 | v5p-16 |',
      '| --- | --- | --- | --- |',
      '| 1.7B | shared | 20 h, 7.2 GiB | 20 h, 1.5 GiB |',
      '| 1.7B | lora_per_role | does not fit | 20 h, 1.5 GiB |',
      '| 1.7B | per_role | 20 h, 1.5 GiB | 20 h, 1.5 GiB |']


def _config(key):
  return slices.config_of(key).to_json()


def _examples():
  """Configs with a slice that help texts and docs name."""
  paths = (
      path for folder in ('configs/*.py', 'docs/*.md', 'launch/*.sh', '*.md')
      for path in sorted(checkout.ROOT.glob(folder)))
  for path in paths:
    text = path.read_text().replace('\\\n', ' ')
    yield from re.findall(r'configs/\w+\.py:\S*topology=[\w:-]*\w', text)
    for line in text.splitlines():
      found = re.search(
          r'--accelerator-type (\S+) .*--config configs/\w+\.py:size=(\S+)',
          line)
      if found:
        yield slices.pod(found[2], 'shared', found[1])


def test_examples_of_help_and_docs_fit():
  cells = {_config(key): cell for key, cell in CELLS.items()}
  examples = {*_examples(), *slices.EXAMPLES}
  assert len(examples) > len(slices.EXAMPLES)
  for example in examples:
    assert cells[_config(example)]['fits'], example


def test_the_table_of_the_docs_is_up_to_date():
  assert slices.table(CELLS) in (
      checkout.ROOT / 'docs/hardware.md').read_text()


@pytest.mark.parametrize('key', CELLS)
def test_a_cell_has_the_mesh_that_a_run_chooses(key):
  config = slices.config_of(key)
  generation, _, layout = config.compile_check.topology.partition(':')
  environment = config_lib.make_environment(config, sandbox=None)
  names = policies_lib.policy_names(policies_lib.make_policy_map(
      config.policies, environment.roles))
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
