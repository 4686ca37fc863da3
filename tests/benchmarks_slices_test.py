"""benchmarks/slices.py: which cells are checked, and the table of them."""

import json
import math
import re
import subprocess

import pytest

from atgrpo_jax.distributed import chips
from benchmarks import slices
from tests import checkout
from tests.learner import device_fit_test

CELLS = json.loads(
    (checkout.ROOT / 'benchmarks/results/slices.json').read_text())


def _cell(**changes):
  return {
      'fits': True, 'hours': 20.4, 'spare_gib': 1.5,
      'versions': {'jax': '1'}} | changes


def test_what_was_checked_is_kept(tmp_path, monkeypatch):
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
  """Configs with a slice that help and documents name."""
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


def test_what_help_and_documents_show_fits():
  cells = {_config(key): cell for key, cell in CELLS.items()}
  examples = {*_examples(), *slices.EXAMPLES}
  assert len(examples) > len(slices.EXAMPLES)
  for example in examples:
    assert cells[_config(example)]['fits'], example


def test_the_table_of_the_documents_is_that_of_the_cells():
  assert slices.table(CELLS) in (
      checkout.ROOT / 'docs/hardware.md').read_text()


@pytest.mark.parametrize('key', [key for key in CELLS if '/pod.py' in key])
def test_a_cell_is_of_the_mesh_that_a_run_takes(key):
  config = slices.config_of(key)
  generation, _, layout = config.compile_check.topology.partition(':')
  number = math.prod(map(int, layout.split('x')))
  found = device_fit_test.on_chips(
      config, number, (chips.TPUS | chips.GPUS)[generation])
  cell = CELLS[key]
  assert (found is not None) == cell['fits']
  if found is not None:
    assert (found.mesh.to_dict(), found.buckets.groups[-1]) == (
        cell['mesh'], cell['groups'])
