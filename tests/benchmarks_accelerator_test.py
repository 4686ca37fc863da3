"""benchmarks/accelerator.py on a CPU, with tiny models."""

import json

import jax.numpy as jnp
import pytest

from atgrpo_jax.distributed import fit
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from benchmarks import accelerator
from benchmarks import cases
from benchmarks import run

# Stands in for `benchmarks.run`.
_CHILD = '''
import json, pathlib, sys, time
part, out = sys.argv[1], pathlib.Path(sys.argv[-1])
if part == 'compute_0.6b': raise ImportError('no jax')
missed = {'name': '1', 'error': 'not reached'}
(out / f'{part}.json').write_text(json.dumps({
    'benchmark': part, 'cases': [
        {'name': '0', 'values': {'tokens': 1234.0, '% of flops': 50.0}},
        *([] if part == 'quickstart' else [missed, missed])]}))
if part == 'errors': raise ValueError('bad shape')
if part == 'decode_0.6b': time.sleep(60)
'''


def _cases(out, part) -> list[dict]:
  return json.loads((out / f'{part}.json').read_text())['cases']


def test_other_parts_survive_a_failure(tmp_path, monkeypatch, capsys):
  (tmp_path / 'fake_child.py').write_text(_CHILD)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(accelerator, 'CHILD', 'fake_child')
  out = tmp_path / 'out'
  parts = ['errors', 'compute_0.6b', 'decode_0.6b', 'quickstart']
  assert accelerator.main([
      '--minutes', '0.2', '--out', str(out), '--parts', *parts]) == 1
  aborted, unread, slow, whole = (
      [case.get('error', '') for case in _cases(out, part)] for part in parts)
  ended = 'exit status 1, after the output: '
  assert aborted == ['', f'{ended}ValueError: bad shape', run.NOT_REACHED]
  assert unread == [f'{ended}ImportError: no jax']
  assert slow[1].startswith('the part was not finished after ')
  assert whole == ['']
  assert '| 0 | 1,234 tokens, 50 % of flops |' in capsys.readouterr().out
  # Other parts keep their results.
  assert accelerator.main(['--out', str(out), '--parts', 'quickstart']) == 0
  assert len(_cases(out, 'errors')) == 3


def test_wrong_kernel_has_a_large_error(monkeypatch):
  def wrong(q, k, v, *prefix):
    mask = jnp.tril(jnp.ones((q.shape[3], q.shape[3]), bool))
    return 1.1 * attention.attend(q, k, v, mask, *prefix)

  monkeypatch.setattr(kernels, 'find', lambda q, prefix_length: wrong)
  assert cases.kernel_errors(16, 'float32') == pytest.approx({
      'plain forward error': 0, 'plain gradient error': 0,
      'kernel forward error': 0.1, 'kernel gradient error': 0.21}, abs=1e-5)
  monkeypatch.undo()
  found = cases.kernel_errors(0, 'bfloat16')
  assert 0 < found['plain forward error'] < 0.02


def test_rates_are_relative_to_the_chip(monkeypatch):
  chip = fit.GPUS['h100']
  monkeypatch.setattr(fit, 'published_chip', lambda device: chip)
  _, decoding, *_ = cases.BENCHMARKS['decode_1.7b']()
  prefill, *_ = cases.BENCHMARKS['compute_0.6b']()
  counts = decoding.counts
  assert counts['% of bandwidth'] == pytest.approx(counts['GB'] / 33.5)
  assert prefill.counts['% of flops'] == pytest.approx(
      prefill.counts['GFLOP'] / 9890)
  # 8 tokens of a tiny model read its 176,128 weights once, in two bytes each.
  assert counts['GB'] / counts['tokens'] == pytest.approx(
      2 * 176_128 / 8e9, rel=0.1)


@pytest.mark.long
def test_whole_command_on_a_cpu(tmp_path, monkeypatch):
  # Compiling would take all of the time.
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
  assert not accelerator.main(['--minutes', '15', '--out', str(tmp_path)])
  for case in _cases(tmp_path, 'errors'):
    for name, error in case['values'].items():
      assert 0 <= error < 0.02, (case['name'], name)
