"""benchmarks/accelerator.py on a CPU, with tiny models."""

import json

import jax.numpy as jnp
import pytest

from atgrpo_jax.distributed import fit
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from benchmarks import accelerator
from benchmarks import cases

# Stands in for `benchmarks.run`.
_CHILD = '''
import pathlib, sys, time
part, out = sys.argv[1], pathlib.Path(sys.argv[-1])
(out / part).touch()
if part == 'errors': raise ValueError('bad shape')
if part == 'decode_0.6b': time.sleep(60)
'''


def test_other_parts_survive_a_failure(tmp_path, monkeypatch, capsys):
  (tmp_path / 'fake_child.py').write_text(_CHILD)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(accelerator, 'CHILD', 'fake_child')
  parts = ['errors', 'decode_0.6b', 'quickstart']
  options = ['--minutes', '0.1', '--out', str(tmp_path), '--parts']
  assert accelerator.main([*options, *parts]) == 1
  assert all((tmp_path / part).exists() for part in parts)
  assert 'decode_0.6b was not finished after 3 s' in capsys.readouterr().out
  assert accelerator.main([*options, 'quickstart']) == 0


def test_wrong_kernel_has_a_large_error(monkeypatch):
  def wrong(q, k, v, *prefix):
    mask = jnp.tril(jnp.ones((q.shape[3], q.shape[3]), bool))
    return 1.1 * attention.attend(q, k, v, mask, *prefix)

  monkeypatch.setattr(kernels, 'find', lambda q, prefix_length: wrong)
  assert cases.kernel_errors(16, 16, 'float32') == pytest.approx({
      'plain forward error': 0, 'plain gradient error': 0,
      'kernel forward error': 0.1, 'kernel gradient error': 0.21}, abs=1e-5)
  monkeypatch.undo()
  found = cases.kernel_errors(16, 0, 'bfloat16')
  assert 0 < found['plain forward error'] < 0.02


def test_rates_are_relative_to_the_chip(monkeypatch):
  chip = fit.GPUS['h100']
  monkeypatch.setattr(fit, 'published_chip', lambda device: chip)
  _, decoding, *_ = cases.BENCHMARKS['decode_0.6b']()
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
  result = json.loads((tmp_path / 'errors.json').read_text())
  for case in result['cases']:
    for name, error in case['values'].items():
      assert 0 <= error < 0.02, (case['name'], name)
