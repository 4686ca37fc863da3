"""Training on several CPU devices never waits for ever.

A device that waits in a collective holds a thread, so two devices that take two
collectives in different orders wait for each other, as does a device whose
programs are dispatched faster than they end. Runs on two and eight devices show
that neither happens.
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from configs import common

ROOT = pathlib.Path(__file__).resolve().parents[1]
_KINDS = (
    'all-reduce', 'all-gather', 'all-to-all', 'collective-permute',
    'reduce-scatter', 'collective-broadcast')
_CALLS = ('while', 'conditional', 'call')

MODULE = '''
%body (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  ROOT %inner = f32[2] all-reduce(%x), to_apply=%add
}

ENTRY %main (a: f32[2], b: f32[2]) -> (f32[2], f32[2]) {
  %a = f32[2] parameter(0)
  %b = f32[2] parameter(1)
  %first = f32[2] all-reduce(%a), to_apply=%add
  %loop = f32[2] while(%OPERAND), condition=%test, body=%body
  ROOT %out = (f32[2], f32[2]) tuple(%first, %loop)
}
'''


def _parse(text):
  """Computation of an HLO module -> instruction -> (opcode, names it reads)."""
  computations, current = {}, None
  for line in text.splitlines():
    if header := re.match(r'(?:ENTRY )?%?([\w.\-]+) .*\{$', line):
      current = computations[header[1]] = {}
    elif current is not None and (
        found := re.match(r'\s+(?:ROOT )?%?([\w.\-]+) = (.*)$', line)):
      opcode = re.search(r'(?:^|[\s)\]}])([a-z][a-z\-]*)\(', found[2])[1]
      # Computations that it calls are among the names.
      current[found[1]] = opcode, set(re.findall(r'%([\w.\-]+)', found[2]))
  return computations


def _collectives(computations):
  return [
      name for computation in computations.values()
      for name, (opcode, _) in computation.items() if opcode.startswith(_KINDS)]


def _unordered(computations):
  """Pairs of collectives, or of what holds some, that may run in any order.

  Of two that run one after the other, one waits for what the other made.
  """
  def is_or_holds_some(opcode, names):
    return opcode.startswith(_KINDS) or opcode in _CALLS and any(
        is_or_holds_some(*inner) for name in names & computations.keys()
        for inner in computations[name].values())

  pairs = []
  for computation in computations.values():
    before = {}
    for name, (_, names) in computation.items():  # Operands come first.
      known = names & before.keys()
      before[name] = known.union(*(before[other] for other in known))
    some = [
        name for name, instruction in computation.items()
        if is_or_holds_some(*instruction)]
    pairs += [
        (one, other) for one, other in itertools.combinations(some, 2)
        if one not in before[other]]
  return pairs


def test_a_loop_beside_a_collective_has_no_order():
  apart = _parse(MODULE.replace('OPERAND', 'b'))
  assert _collectives(apart) == ['inner', 'first']
  assert _unordered(apart) == [('first', 'loop')]
  assert not _unordered(_parse(MODULE.replace('OPERAND', 'first')))


MANY = {
    'train.num_steps': 1, 'train.diagnose_every': 1,
    'rollout.mode': 'parallel', 'rollout.selection': 'all',
    'rollout.return_type': 'episode_return', 'advantage.group_key': 'env'}


@pytest.mark.parametrize('num_devices, changes', [
    # A microbatch has one group for each device, and the penalty needs all: so
    # more programs than XLA's CPU client holds.
    (2, {'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.1,
         'buckets.microbatch_tokens': 1}),
    (8, common.MAGRPO | common.IAC | {  # A critic on each pool.
        'rollout.group_size': 4, 'per_policy': 'first.model.trained=lora',
        'mesh.pools': 'first=0:4,second=4:8'})])
def test_programs_of_a_run(echo_folder, tmp_path, num_devices, changes):
  # Bite: gradients that every microbatch adds up over the devices.
  subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
       f'--config.model.folder={echo_folder}', f'--workdir={tmp_path}/run', *(
           f'--config.{name}={value}'
           for name, value in (MANY | changes).items())],
      cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600,
      env=os.environ | {
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(num_devices),
          'JAX_ENABLE_COMPILATION_CACHE': 'false',
          'XLA_FLAGS': (
              f'--xla_dump_to={tmp_path}/hlo --xla_dump_hlo_as_text '
              '--xla_dump_hlo_module_re=jit_.*')})
  if num_devices == 2:
    metrics = json.loads((tmp_path / 'run/metrics.jsonl').read_text())
    assert metrics['shared/groups'] > 2 * 100
    assert metrics['shared/num_updates'] == 1
  found = {}
  for path in (tmp_path / 'hlo').glob('*cpu_after_optimizations.txt'):
    name = re.search(r'\.jit_?(\w*)\.', path.name)[1]
    computations = _parse(path.read_text())
    assert not _unordered(computations), name
    found[name] = max(found.get(name, 0), len(_collectives(computations)))
  assert found.keys() >= {'fill', 'decode', 'accumulate', 'zero_sums'}
  # What the shards of the groups add up to is added in one piece.
  assert {name: number for name, number in found.items() if number} == {
      name: 1 for name in ('apply_update', 'add_up') if name in found}
