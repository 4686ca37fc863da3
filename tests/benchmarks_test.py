"""Counts, comparisons and results of the benchmarks, in tiny sizes."""

import json
import sys

import pytest

from atgrpo_jax import model
from benchmarks import cases
from benchmarks import peer
from benchmarks import run
from benchmarks import sandbox
from benchmarks import timing
from benchmarks import workload
from tests.rl import tiny

_LOAD = workload.Load(2, 2, 5, 3)
_LONG = workload.Load(2, 2, 5, 18)  # More than a chunk.
_UNEVEN = workload.Load(4, 2, 5, 6)
_SIZES = cases.Sizes(
    config=tiny.CONFIG, sampling=(_LONG,), step=_LOAD, agent=_LOAD,
    scaling=(_LOAD,), budgets=(3, 6), turns=(1, 2), agents=(1, 2),
    uneven=_UNEVEN, mean_length=4, shortest=2, uneven_slots=(2,), programs=3,
    products=((512, 512, 512),), copy_bytes=1 << 12)

_FAKE_PEER = '''
import sys
for line in sys.stdin:
  with open(__file__ + '.calls', 'a') as calls:
    calls.write('theirs ' + line)
  print('chatter')
  print('{"seconds": 2.5}', flush=True)
'''


@pytest.fixture
def fake(tmp_path):
  """A peer that logs its requests."""
  script = tmp_path / 'fake.py'
  script.write_text(_FAKE_PEER)
  return peer.Peer(script, ('numpy',), 'numpy')


def _calls(fake):
  return fake.script.with_name('fake.py.calls').read_text().splitlines()


@pytest.mark.parametrize('min_work', [
    # 100 / 200 = 0.5 s of arithmetic and 30 / 20 = 1.5 s of memory, or vice
    # versa, of 2 s.
    timing.Amounts(flops=100.0, bytes=30.0),
    timing.Amounts(flops=300.0, bytes=10.0)])
def test_machine_utilisation_is_that_of_the_tighter_limit(min_work):
  summary = timing.summarise(
      timing.Case('work', {}, min_work=min_work), {'ours': [2.0, 5.0]},
      timing.Amounts(flops=200.0, bytes=20.0))
  assert summary['share_of_machine'] == 0.75


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
  sampling = workload.sampling_needs(config, load)
  assert sampling == timing.Amounts(624, 4 * (2 * 44 + 4 * (4 + 2 * 3)))
  # After the first token: 2 inputs that see 4 positions each.
  assert workload.decoding_needs(config, load, 1) == timing.Amounts(
      2 * 34 * 2 + 8 * 8 + 2 * 10 * 2, 4 * (44 + 4 * (2 + 2 * 2)))
  assert workload.update_needs(config, load) == timing.Amounts(
      3 * 624, 4 * 6 * 44)


@pytest.mark.parametrize('name', cases.BENCHMARKS)
def test_every_benchmark_in_tiny(name, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(cases, 'Sizes', lambda: _SIZES)
  assert run.main([name, '--repeats', '2', '--out', str(tmp_path)]) == 0
  result = json.loads((tmp_path / f'{name}.json').read_text())
  assert result['benchmark'] == name and result['repeats'] == 2
  printed = capsys.readouterr().out
  for case in result['cases']:
    assert case['name'] in printed
    row = case['contestants']['ours']
    assert len(row['seconds']) == 2 and min(row['seconds']) == row['best']
  first = result['cases'][0]
  if name in ('sampling', 'update'):
    assert first['share_of_machine'] == pytest.approx(
        max(first['least_seconds'].values())
        / first['contestants']['ours']['best'])
  if name == 'scaling':
    assert [case['name'] for case in result['cases']] == [
        str(_LOAD), '3 new tokens of a budget of 3',
        '3 new tokens of a budget of 6', f'turns: 1, {_LOAD}',
        f'turns: 2, {_LOAD}', f'GRPO step, agents: 1, {_LOAD}',
        f'GRPO step, agents: 2, {_LOAD}']


def test_peer_receives_the_request(fake, tmp_path, monkeypatch):
  monkeypatch.setattr(cases, 'Sizes', lambda: _SIZES)
  monkeypatch.setitem(peer.PEERS, 'comlrl', fake)
  assert run.main([
      'magrpo_step', '--against', 'comlrl', '--repeats', '2', '--peer_python',
      f'comlrl={sys.executable}', '--out', str(tmp_path)]) == 0
  request = json.loads(_calls(fake)[0].removeprefix('theirs '))
  agent = dict(num_prompts=2, group_size=2, prompt_length=5, new_tokens=3)
  assert request['work'] == 'step' and request['loads'] == [agent, agent]
  assert request['model']['hidden_size'] == tiny.CONFIG.hidden_size
  text = (tmp_path / 'magrpo_step.json').read_text()
  assert sys.executable not in text
  result = json.loads(text)
  assert result['peers']['comlrl'].keys() == {'numpy'}
  case, = result['cases']
  assert case['contestants']['comlrl']['median'] == 2.5


def test_sandbox_benchmark(capsys):
  assert not sandbox.main([
      '--level', 'unsafe_rlimit', '--programs', '3', '--rounds', '1', '--soak',
      '30'])
  printed = capsys.readouterr().out
  for words in ('plain ', 'packages ', 'soak: 30 programs',
                '0 with a wrong status'):
    assert words in printed, printed
