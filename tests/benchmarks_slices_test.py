"""benchmarks/slices.py: which cells are checked, and the table of them."""

import json
import subprocess

from benchmarks import slices


def _cell(key, **changes):
  size, policies, name = key.split(',')
  return {
      'size': size, 'policies': policies, 'slice': name, 'fits': True,
      'spare_gib': 1.5, 'versions': {'jax': '1'}} | changes


def test_what_was_checked_is_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(slices, 'versions', lambda: {'jax': '1'})
  monkeypatch.setattr(slices, 'SIZES', ('1.7b',))
  monkeypatch.setattr(slices, 'SLICES', ('v5litepod-8', 'v5p-16'))
  asked = []

  def run(command, **kwargs):
    asked.append(command[-1].removeprefix('--cell='))
    cell = _cell(asked[-1], fits=len(asked) != 2)
    return subprocess.CompletedProcess(
        command, 0, stdout=f'a warning\n{json.dumps(cell)}\n')

  monkeypatch.setattr(subprocess, 'run', run)
  out = tmp_path / 'slices.json'
  kept = '1.7b,shared,v5litepod-8'
  old = '1.7b,shared,v5p-16'
  out.write_text(json.dumps({
      kept: _cell(kept, spare_gib=7.25),
      old: _cell(old, versions={'jax': '0'})}))
  cells = slices.complete(out)
  assert asked == [
      old, *(f'1.7b,{policies},{name}'
             for policies in ('lora_per_role', 'per_role')
             for name in slices.SLICES)]
  assert json.loads(out.read_text()) == cells
  assert cells.keys() == {kept, *asked}
  assert slices.table(cells.values()).splitlines() == [
      '| Qwen3 | policies | v5litepod-8 | v5p-16 |',
      '| --- | --- | --- | --- |',
      '| 1.7B | shared | 7.25 | 1.50 |',
      '| 1.7B | lora_per_role | does not fit | 1.50 |',
      '| 1.7B | per_role | 1.50 | 1.50 |']
