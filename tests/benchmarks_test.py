"""Counts, comparisons and results of the benchmarks, in tiny sizes."""

import json
import sys

import jax.numpy as jnp
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import fit
from atgrpo_jax.model import attention
from atgrpo_jax.model import kernels
from benchmarks import accelerator
from benchmarks import cases
from benchmarks import run
from benchmarks import sandbox
from benchmarks import workload
from tests.rl import tiny

_LOAD = workload.Load(2, 2, 5, 3)
_LONG = workload.Load(2, 2, 5, 18)  # More than a chunk.
_SIZES = cases.Sizes(
    config=tiny.CONFIG, sampling=(_LONG,), step=_LOAD, agent=_LOAD,
    scaling=(_LOAD,), agents=(1, 2), real_size=(('tiny', tiny.CONFIG, _LOAD),))

_FAKE_PEER = '''
import sys
for line in sys.stdin:
  with open(__file__ + '.calls', 'a') as calls:
    calls.write(line)
  print('chatter')
  print('{"seconds": 2.5}', flush=True)
'''

# Stands in for `benchmarks.run`.
_FAKE_CHILD = '''
import pathlib, sys, time
part, out = sys.argv[1], pathlib.Path(sys.argv[-1])
(out / part).touch()
if part == 'errors': raise ValueError('bad shape')
if part == 'decode_0.6b': time.sleep(60)
'''


@pytest.fixture(autouse=True)
def tiny_sizes(monkeypatch):
  monkeypatch.setattr(cases, 'SIZES', _SIZES)
  monkeypatch.setattr(kernels, 'RAGGED_BLOCKS', kernels.RAGGED_BLOCKS)


def test_lower_bounds_by_hand():
  config = model.ModelConfig(
      vocab_size=5, hidden_size=2, intermediate_size=3, num_layers=1,
      num_heads=1, num_kv_heads=1, head_dim=2, rope_theta=1e4, norm_eps=1e-6,
      tied_head=True, max_positions=8, init_std=0.02)
  load = workload.Load(num_prompts=1, group_size=2, prompt_length=3,
                       new_tokens=2)
  # Kernels: q, k, v, o 2 x 2 each, three of 2 x 3 in the MLP: 34 weights. The
  # head has 10. A prompt has 2 positions, its completions 2 x 2 inputs. They
  # see 1 and 2, and 3 and 4 positions: 3 + 2 x 7 = 17. Scores and weighted
  # values cost 2 x 2 x 2 per visible position.
  flops = 2 * 34 * 6 + 8 * 17 + 2 * 10 * 4
  assert workload.forward_flops(config, load) == flops == 624
  # Two reads of all weights, two of the prompt's 2 positions, and 1, then 2
  # positions of each candidate. A position has a key and a value of 2 numbers.
  for found, flops, num_bytes in (
      (workload.sampling_work(config, load), 624,
       4 * (2 * 44 + 4 * (4 + 2 * 3))),
      # After the first token: 2 inputs that see 4 positions each.
      (workload.sampling_work(config, load, 1),
       2 * 34 * 2 + 8 * 8 + 2 * 10 * 2, 4 * (44 + 4 * (2 + 2 * 2))),
      (workload.update_work(config, load), 3 * 624, 4 * 6 * 44)):
    assert found == pytest.approx({'GFLOP': flops / 1e9, 'GB': num_bytes / 1e9})


@pytest.mark.parametrize('name', [
    *(name for name in cases.BENCHMARKS if name not in cases.ACCELERATOR),
    'compute_0.6b', 'decode_8b', 'compute_8b'])
def test_every_benchmark_writes_a_result(name, tmp_path, capsys):
  assert run.main([name, '--repeats', '2', '--out', str(tmp_path)]) == 0
  result = json.loads((tmp_path / f'{name}.json').read_text())
  assert result['benchmark'] == name and result['repeats'] == 2
  printed = capsys.readouterr().out
  for case in result['cases']:
    assert case['name'] in printed
    row = case['contestants']['ours']
    assert len(row['seconds']) == 2 and min(row['seconds']) == row['best']
  if name == 'sampling':
    assert row['per_second'].keys() == {'tokens', 'GFLOP', 'GB'}


def test_other_cases_survive_a_failure(tmp_path, monkeypatch):
  def refuse():
    raise errors.UserError('no folder')

  def fill():
    raise RuntimeError('RESOURCE_EXHAUSTED: no memory')

  functions = lambda: {'tokens': 2.0}, refuse, fill, lambda: {'tokens': 2.0}
  monkeypatch.setitem(cases.BENCHMARKS, 'step', lambda: [
      cases.Check(str(i), function) for i, function in enumerate(functions)])
  assert run.main(['step', '--out', str(tmp_path)]) == 1
  result = json.loads((tmp_path / 'step.json').read_text())
  assert [case.get('error', '') for case in result['cases']] == [
      '', 'UserError: no folder',
      'RuntimeError: RESOURCE_EXHAUSTED: no memory', '']
  assert result['cases'][3]['values'] == {'tokens': 2.0}


def test_peer_receives_the_request(tmp_path, monkeypatch):
  script = tmp_path / 'comlrl_peer.py'
  script.write_text(_FAKE_PEER)
  monkeypatch.setattr(run, '_PEERS', tmp_path)
  monkeypatch.setitem(run.PEERS, 'comlrl', (('magrpo_step',), ('numpy',)))
  assert run.main([
      'magrpo_step', '--comlrl', sys.executable, '--repeats', '2', '--out',
      str(tmp_path)]) == 0
  calls = tmp_path / 'comlrl_peer.py.calls'
  request = json.loads(calls.read_text().splitlines()[0])
  agent = dict(num_prompts=2, group_size=2, prompt_length=5, new_tokens=3)
  assert request['work'] == 'step' and request['loads'] == [agent, agent]
  assert request['model']['hidden_size'] == tiny.CONFIG.hidden_size
  text = (tmp_path / 'magrpo_step.json').read_text()
  assert sys.executable not in text
  result = json.loads(text)
  assert result['peers']['comlrl'].keys() == {'numpy'}
  case, = result['cases']
  assert case['contestants']['comlrl']['best'] == 2.5


def test_sandbox_benchmark(tmp_path):
  out = tmp_path / 'sandbox.json'
  sandbox.main([
      '--level', 'unsafe_rlimit', '--programs', '3', '--rounds', '1',
      '--out', str(out)])
  record = json.loads(out.read_text())['unsafe_rlimit']
  assert record['rates'].keys() == {'plain', 'packages'}


# benchmarks/accelerator.py on a CPU.


def test_other_parts_survive_a_failure(tmp_path, monkeypatch, capsys):
  (tmp_path / 'fake_child.py').write_text(_FAKE_CHILD)
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
