"""Training on several CPU devices cannot deadlock.

A device that waits in a collective occupies a thread. Two devices that start
two collectives in different orders wait for each other, and so does a device
whose programs are dispatched faster than they finish. The test checks the
compiled programs of a run on four devices.
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

from configs import common

ROOT = pathlib.Path(__file__).resolve().parents[1]
_KINDS = (
    'all-reduce', 'all-gather', 'all-to-all', 'collective-permute',
    'reduce-scatter', 'collective-broadcast')
_CALLS = ('while', 'conditional', 'call')


def _parse(text):
  """Computation of an HLO module -> instruction -> (opcode, operands)."""
  computations, current = {}, None
  for line in text.splitlines():
    if header := re.match(r'(?:ENTRY )?%?([\w.\-]+) .*\{$', line):
      current = computations[header[1]] = {}
    elif current is not None and (
        found := re.match(r'\s+(?:ROOT )?%?([\w.\-]+) = (.*)$', line)):
      opcode = re.search(r'(?:^|[\s)\]}])([a-z][a-z\-]*)\(', found[2])[1]
      # Called computations are among the operands.
      current[found[1]] = opcode, set(re.findall(r'%([\w.\-]+)', found[2]))
  return computations


def _collectives(computations):
  return [
      name for computation in computations.values()
      for name, (opcode, _) in computation.items() if opcode.startswith(_KINDS)]


def _unordered(computations):
  """Pairs of instructions with collectives that do not depend on each other."""
  def has_collective(opcode, names):
    return opcode.startswith(_KINDS) or opcode in _CALLS and any(
        has_collective(*inner) for name in names & computations.keys()
        for inner in computations[name].values())

  pairs = []
  for computation in computations.values():
    before = {}
    for name, (_, names) in computation.items():  # Operands come first.
      known = names & before.keys()
      before[name] = known.union(*(before[other] for other in known))
    collectives = [
        name for name, instruction in computation.items()
        if has_collective(*instruction)]
    pairs += [
        (first, second)
        for first, second in itertools.combinations(collectives, 2)
        if first not in before[second]]
  return pairs


# Two pools of two devices: an adapter and a whole model, each with a critic and
# more microbatches than the 32 programs that XLA's CPU client queues.
CHANGES = common.MAGRPO | common.IAC | {
    'train.num_steps': 1, 'train.diagnose_every': 1, 'rollout.num_tasks': 48,
    'rollout.group_size': 2,
    'per_policy': (('first', 'model.trained', 'lora'),),
    'mesh.pools': (('first', 0, 2), ('second', 2, 4)),
    'loss.kl_estimator': 'k3',
    'loss.kl_coefficient': 0.1, 'buckets.microbatch_tokens': 1}


def test_programs_have_at_most_one_collective(echo_folder, tmp_path):
  # Bite: summing gradients over devices in every microbatch.
  subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
       f'--config.model.folder={echo_folder}', f'--workdir={tmp_path}/run', *(
           f'--config.{name}={value}' for name, value in CHANGES.items())],
      cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600,
      env=os.environ | {
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '4',
          'JAX_ENABLE_COMPILATION_CACHE': 'false',
          'XLA_FLAGS': (
              os.environ.get('XLA_FLAGS', '')
              + f' --xla_dump_to={tmp_path}/hlo --xla_dump_hlo_as_text '
              '--xla_dump_hlo_module_re=jit_.*')})
  metrics = json.loads((tmp_path / 'run/metrics.jsonl').read_text())
  assert metrics['second/groups'] > 2 * 40  # Two groups per microbatch.
  assert metrics['second/num_updates'] == 1
  found = {}
  for path in (tmp_path / 'hlo').glob('*cpu_after_optimizations.txt'):
    name = re.search(r'\.jit_?(\w*)\.', path.name)[1]
    computations = _parse(path.read_text())
    assert not _unordered(computations), name
    found[name] = max(found.get(name, 0), len(_collectives(computations)))
  assert found.keys() >= {
      'fill', 'decode', 'accumulate', 'zero_sums', 'values'}
  # Only the final sums over shards need one.
  assert {name: number for name, number in found.items() if number} == {
      name: 1 for name in ('apply_update', 'add_up') if name in found}
