"""Training on several CPU devices cannot deadlock.

A device that waits in a collective occupies a thread. Two devices that start
two collectives in different orders wait for each other, and so does a device
whose programs are dispatched faster than they finish. The test checks the
compiled programs of a run on four devices.
"""

import json
import os
import re
import subprocess

from atgrpo_jax.compile_check import costs
from configs import common
from tests import checkout
from tests import commands

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
      commands.train(
          'tests/echo.py', tmp_path / 'run',
          {'model.folder': echo_folder} | CHANGES),
      cwd=checkout.ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600,
      env=commands.with_cpu_devices(4) | {
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
    collectives = costs.find_collectives(path.read_text(), while_length=1)
    found[name] = max(found.get(name, 0), len(collectives))
  assert found.keys() >= {
      'fill', 'decode', 'accumulate', 'zero_sums', 'values'}
  # Only the final sums over shards need one.
  assert {name: number for name, number in found.items() if number} == {
      name: 1 for name in ('apply_update', 'add_up') if name in found}
