"""benchmarks/slices.py: which cells are checked, and the table of them."""

import json
import subprocess

from benchmarks import slices


def _cell(**changes):
  return {
      'fits': True, 'hours': 20.4, 'spare_gib': 1.5,
      'versions': {'jax': '1'}} | changes


def test_what_was_checked_is_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(slices, 'versions', lambda: {'jax': '1'})
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
