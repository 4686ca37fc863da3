"""No program of a run has collectives that XLA may start in any order.

On a CPU a device that waits in a collective holds a thread, so two devices that
take two collectives in different orders wait for ever.
"""

import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from atgrpo_jax.learner import diagnostics
from atgrpo_jax.learner import train_state
from atgrpo_jax.learner import train_step
from atgrpo_jax.runtime import sharding
from tests import collectives
from tests.learner import train_step_test
from tests.rl import tiny

ROOT = pathlib.Path(__file__).resolve().parents[1]

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


def test_a_loop_beside_a_collective_has_no_order():
  apart = MODULE.replace('OPERAND', 'b')
  assert collectives.count(apart) == 2
  assert collectives.unordered(apart) == [('first', 'loop')]
  assert not collectives.unordered(MODULE.replace('OPERAND', 'first'))


def _programs(echo_folder, folder, num_devices, *changes):
  """Name -> texts of all programs that a short run compiles."""
  subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
       f'--workdir={folder}/run', f'--config.model.folder={echo_folder}',
       '--config.train.num_steps=1', '--config.train.checkpoint_every=1',
       '--config.evaluation.validate_every=1', *changes],
      cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=os.environ | {
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(num_devices),
          'JAX_ENABLE_COMPILATION_CACHE': 'false',
          'XLA_FLAGS': f'--xla_dump_to={folder}/hlo --xla_dump_hlo_as_text'})
  programs = {}
  for path in (folder / 'hlo').glob('*cpu_after_optimizations.txt'):
    name = re.search(r'\.jit_?(\w*)\.', path.name)[1]
    programs.setdefault(name, []).append(path.read_text())
  return programs


@pytest.mark.parametrize('num_devices, changes', [
    (2, ['--config.train.updates_per_rollout=2',
         '--config.loss.kl_estimator=k3', '--config.loss.kl_coefficient=0.1']),
    (8, ['--config.train.diagnose_every=1', '--config.policies=per_role',
         '--config.per_policy=first.model.trained=lora',
         '--config.mesh.pools=first=0:4,second=4:8']),
])
def test_programs_of_a_run(echo_folder, tmp_path, num_devices, changes):
  # Bite: logits outside of `per_shard`, whose gradient all shards add up for
  # each chunk; or sums that are added leaf by leaf.
  programs = _programs(echo_folder, tmp_path, num_devices, *changes)
  assert programs.keys() >= {
      'fill', 'decode', 'accumulate', 'apply_update', 'zero_sums'}
  for name, texts in programs.items():
    for text in texts:
      assert not collectives.unordered(text), name
  found = {
      name: max(map(collectives.count, texts))
      for name, texts in programs.items()}
  # What the shards of the groups add up to is added in one piece.
  assert {name: number for name, number in found.items() if number} == {
      name: 1 for name in ('apply_update', 'add_up') if name in found}


_STRESS = '''
from tests import collectives_test
collectives_test.stress(200)
'''


def stress(times):
  """Gradients, updates and diagnoses, dispatched as fast as the host can."""
  jax.config.update('jax_num_cpu_devices', 2)
  mesh = sharding.make_meshes(
      ['p'], jax.devices(), sharding.MeshSpec())['p']
  spec = train_step_test.ON_POLICY
  static = {'config': tiny.CONFIG, 'spec': spec}
  params = tiny.make_params()
  state = train_state.create(
      jax.device_put(params, sharding.tree_shardings(
          params, mesh, sharding.param_rules(tiny.CONFIG.tied_head))),
      spec.optimizer)
  twice = jax.tree.map(
      lambda x: np.concatenate([x, x]), tiny.make_batch())
  batch = sharding.put_rows(twice, mesh)
  num_tokens = np.float32(twice.completion_lengths.sum())
  role = diagnostics.RoleBatches([batch, batch], 2 * num_tokens, 2 * num_tokens)
  with jax.set_mesh(mesh):
    for _ in range(times):
      sums = train_step.zero_sums(state.params, **static)
      for _ in range(4):
        sums = sharding.throttle_cpu_dispatch(
            train_step.accumulate(state.params, sums, batch, **static), mesh)
      state, metrics, _ = train_step.apply_update(
          state, sums, 4 * num_tokens, 4 * num_tokens, **static)
      values = diagnostics.diagnose(
          state.params, {'one': role, 'other': role},
          lambda batch: train_step.score(state.params, batch, **static),
          frozen_params=None, mesh=mesh, **static)
  assert np.isfinite(metrics['grad_norm']) and values['cosine/one+other'] > 0.99
  assert state.num_updates == times


def test_two_devices_never_wait_for_ever():
  # Bite: `throttle_cpu_dispatch` that never waits; counts that are added up
  # beside the gradients.
  subprocess.run(
      [sys.executable, '-c', _STRESS], cwd=ROOT, check=True, timeout=400,
      env=os.environ | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '2'})
