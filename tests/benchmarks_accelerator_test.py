"""benchmarks/accelerator.py on a CPU, with tiny models."""

import json

import jax.numpy as jnp
import pytest

from atgrpo_jax.distributed import fit
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from benchmarks import accelerator
from benchmarks import accelerator_parts
from tests import checkout

# Replaces the measurements.
_CHILD = '''
import sys, time
from atgrpo_jax import errors
from benchmarks import accelerator
def works(): return {'tokens/s': 1234.0, '% of flops': 50.0}
def skips(): raise errors.UserError('no folder')
def fills(): raise RuntimeError('RESOURCE_EXHAUSTED: no memory')
def raises(): raise RuntimeError('bad kernel')
def bug(): raise ValueError('bad shape')
def part(*functions):
  return {str(i): x for i, x in enumerate((works, *functions, works))}
accelerator.run_child(lambda: {
    'device': 'Chip', 'num_devices': 1, 'sizes': 'full', 'jax': '1.2',
    'date': '2026-11-27T'}, lambda sandbox: {
        'kernels': part(skips, fills, raises), 'logprobs': part(bug),
        'step': part(lambda: time.sleep(60)), 'smollm2': part()}, sys.argv[1:])
'''


def _run(out, *arguments) -> tuple[int, dict]:
  """The exit status and the parts in the file."""
  status = accelerator.main([*arguments, '--out', str(out)])
  return status, json.loads(out.read_text())['parts']


def test_other_cells_and_parts_survive_a_failure(tmp_path, monkeypatch, capsys):
  (tmp_path / 'fake_child.py').write_text(_CHILD)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(accelerator, 'CHILD', 'fake_child')
  monkeypatch.setitem(accelerator.WEIGHTS, 'step', 0.065)
  out = tmp_path / 'folder/out.json'
  status, parts = _run(
      out, '--parts', 'kernels', 'logprobs', 'step', 'smollm2')
  found = {
      part: [(cell['status'], cell.get('reason', '')) for cell in (
          record['cells'].values())] for part, record in parts.items()}
  measured, missed = ('measured', ''), ('skipped', 'not reached')
  assert status == 1 and found == {
      'kernels': [
          measured, ('skipped', 'no folder'),
          ('skipped', 'RuntimeError: RESOURCE_EXHAUSTED: no memory'),
          ('failed', 'RuntimeError: bad kernel'), measured],
      'logprobs': [measured, (
          'failed', 'exit status 1, after the output: ValueError: bad shape'),
          missed],
      'step': [measured, (
          'skipped', 'the part was not finished after 6 s'), missed],
      'smollm2': [measured, measured]}
  row = ('| 1 x Chip | smollm2, 0 | 1,234 tokens/s, 50 % of flops | '
         'jax 1.2, 2026-11-27 |')
  assert row in capsys.readouterr().out
  # Other parts keep their results.
  status, later = _run(out, '--parts', 'smollm2')
  assert status == 0 and later == parts


def test_every_part_has_a_share_of_the_time():
  assert accelerator_parts.make_parts('auto').keys() == (
      accelerator.WEIGHTS.keys())


def test_wrong_kernel_has_a_large_error(monkeypatch):
  def wrong(q, k, v, *prefix):
    mask = jnp.tril(jnp.ones((q.shape[3], q.shape[3]), bool))
    return 1.1 * attention.attend(q, k, v, mask, *prefix)

  monkeypatch.setattr(kernels, 'find', lambda q, prefix_length: wrong)
  found = accelerator_parts.make_parts('auto')['kernels']['learner, float32']()
  assert found == pytest.approx({
      'plain forward error': 0, 'plain gradient error': 0,
      'kernel forward error': 0.1, 'kernel gradient error': 0.21}, abs=1e-5)


def test_bfloat16_has_a_small_error():
  part = accelerator_parts.make_parts('auto')['kernels']
  found = part['decoding, bfloat16']()
  assert 0 < found['plain forward error'] < 0.02


def test_rates_are_relative_to_the_chip(monkeypatch):
  chip = fit.GPUS['h100']
  monkeypatch.setattr(fit, 'published_chip', lambda device: chip)
  parts = accelerator_parts.make_parts('auto')
  decoding = parts['decode_1.7b']['batch 8, prompt 16']()
  assert decoding['% of bandwidth'] == pytest.approx(
      decoding['GB/s'] / 33.5)
  # 8 tokens of a tiny model read its 176,128 weights once, in two bytes each.
  assert decoding['GB/s'] / decoding['tokens/s'] == pytest.approx(
      2 * 176_128 / 8e9, rel=0.1)
  prefill = parts['compute_0.6b']['prefill']()
  assert prefill['% of flops'] == pytest.approx(prefill['GFLOP/s'] / 9890)


@pytest.mark.long
def test_whole_command_on_a_cpu(tmp_path):
  status, parts = _run(tmp_path / 'out.json', '--minutes', '15')
  cells = {
      part: {cell['status'] for cell in record['cells'].values()}
      for part, record in parts.items()}
  assert status == 0
  assert cells.pop('smollm2') <= {'measured', 'skipped'}  # Without its folder.
  assert set().union(*cells.values()) == {'measured'}
  for cell in parts['logprobs']['cells'].values():
    assert 0 < cell['values']['largest error'] < 0.02


def test_docs_show_the_stored_results():
  results = [
      json.loads(path.read_text()) for path in sorted(
          accelerator.RESULTS.glob('accelerator_*.json'))]
  assert accelerator.table(results) in (
      checkout.ROOT / 'docs/hardware.md').read_text()
