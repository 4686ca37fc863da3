"""benchmarks/accelerator.py on a CPU, with tiny models."""

import json

import pytest

from benchmarks import accelerator
from benchmarks import accelerator_parts
from tests import checkout

# Replaces the measurements: the second cell of each part goes wrong.
_CHILD = '''
import os, sys, time
from benchmarks import accelerator
def works(): return {'tokens/s': 1234.0, 'flops share': 0.5}
def skips(): raise accelerator.Skipped('too large')
def raises(): raise ValueError('bad shape')
def part(function):
  return lambda options: [
      ('first', works), ('second', function), ('third', works)]
accelerator.run_cells({
    'device': part(works), 'kernels': part(skips), 'logprobs': part(raises),
    'decode_0.6b': part(os.abort), 'step': part(lambda: time.sleep(60)),
    'smollm2': part(works)}, sys.argv[1:], lambda: {
        'device': 'Chip', 'num_devices': 1, 'sizes': 'full', 'jax': '1.2',
        'date': '2026-11-27T'}, dict)
'''


def _run(out, *arguments) -> tuple[int, dict]:
  """The exit status and the parts in the file."""
  status = accelerator.main([*arguments, '--out', str(out)])
  return status, json.loads(out.read_text())['parts']


def test_other_cells_and_parts_survive_a_failure(tmp_path, monkeypatch, capsys):
  (tmp_path / 'fake_child.py').write_text(_CHILD)
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{checkout.ROOT}')
  monkeypatch.setattr(accelerator, 'CHILD', 'fake_child')
  monkeypatch.setitem(accelerator.WEIGHTS, 'step', 0.1)
  out = tmp_path / 'folder/out.json'
  status, parts = _run(
      out, '--parts', 'kernels,logprobs,decode_0.6b,step,smollm2')
  found = {
      name: [cell['status'] for cell in part['cells'].values()]
      for name, part in parts.items()}
  measured = ['measured'] * 3
  failed = ['measured', 'failed', 'measured']
  assert status == 1 and found == {
      'device': measured, 'kernels': ['measured', 'skipped', 'measured'],
      'logprobs': failed, 'decode_0.6b': failed, 'step': failed,
      'smollm2': measured}
  reasons = [
      parts[name]['cells']['second']['reason']
      for name in ('kernels', 'logprobs', 'decode_0.6b', 'step')]
  for reason, text in zip(reasons, (
      'too large', 'ValueError: bad shape', 'status -6', 'in time; it hung')):
    assert text in reason
  assert {x['status'] for x in parts.values()} == {'measured', 'failed'}
  row = ('| 1 x Chip | smollm2, first | 1,234 tokens/s | 50 % of flops | '
         'jax 1.2, 2026-11-27 |')
  assert row in capsys.readouterr().out
  # Other parts keep their results.
  status, later = _run(out, '--parts', 'device')
  assert status == 0 and later.keys() == parts.keys()


def test_unknown_part_is_refused(capsys):
  with pytest.raises(SystemExit):
    accelerator.parse(['--parts', 'device,speed'])
  assert '--parts=speed: expected some of device,' in capsys.readouterr().err


@pytest.mark.parametrize('part', [
    'kernels', 'logprobs', 'decode_0.6b', 'compute_0.6b'])
def test_part_is_measured(part, tmp_path):
  path = tmp_path / 'record.json'
  options = {'record': str(path), 'seconds': 300, 'folder': str(tmp_path),
             'smollm2': str(tmp_path / 'none'), 'sandbox': 'unsafe_rlimit'}
  accelerator.run_cells(
      accelerator_parts.PARTS, [part, json.dumps(options)], dict, dict)
  cells = json.loads(path.read_text())['cells'].values()
  assert {cell['status'] for cell in cells} == {'measured'}
  for cell in cells:
    for name, value in cell.items():
      # Random bfloat16 logits differ by 0.002.
      assert not name.endswith('error') or 0 <= value < 0.02, name


@pytest.mark.long
def test_whole_command_on_a_cpu(tmp_path):
  status, parts = _run(
      tmp_path / 'out.json', '--minutes', '15', '--sandbox', 'unsafe_rlimit',
      '--smollm2', str(tmp_path / 'none'))
  assert status == 0
  assert {name: x['status'] for name, x in parts.items()} == {
      **dict.fromkeys(accelerator.WEIGHTS, 'measured'), 'smollm2': 'skipped'}
  cell, = parts['smollm2']['cells'].values()
  assert 'does not exist' in cell['reason']


def test_docs_show_the_stored_results():
  results = [
      json.loads(path.read_text()) for path in sorted(
          accelerator.RESULTS.glob('accelerator_*.json'))]
  assert accelerator.table(results) in (
      checkout.ROOT / 'docs/hardware.md').read_text()
