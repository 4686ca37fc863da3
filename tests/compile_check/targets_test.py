"""Absent TPU slices and GPU nodes."""

import importlib.util
import subprocess
import sys

import pytest

from atgrpo_jax import errors
from atgrpo_jax.compile_check import targets
from tests import checkout


@pytest.mark.parametrize('topology, words', [
    ('v1:2x2', "'v1:2x2'"), ('v5e:4x4x4', 'v5e has 2 sides'),
    ('h100:16', '1 to 8 GPUs')])
def test_unknown_topologies_are_refused(topology, words):
  with pytest.raises(errors.UserError, match=words):
    targets.devices_of(topology)


@pytest.mark.parametrize('package, arguments, mesh', [
    ('libtpu', 'size=0.6b,topology=v5e:2x2', (1, 1)),
    # Without a barrier behind the adapter, this aborts the compiler.
    ('libtpu', 'size=8b,topology=v5e:4x4,policies=lora_per_role', (4, 4)),
    # Also compiles cuDNN's attention inside `shard_map`.
    ('jax_cuda13_plugin', 'size=0.6b,topology=h100:4', (2, 2))])
def test_compiles_for_absent_devices(package, arguments, mesh):
  if not importlib.util.find_spec(package):
    pytest.skip(f'{package} is not installed: see the extras of setup.py')
  fsdp, tensor = mesh
  run = subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--mode', 'compile_check',
       f'--config=configs/pod.py:{arguments}',
       '--config.compile_check.dimensions.num_layers=2',
       f'--config.mesh.fsdp={fsdp}', f'--config.mesh.tensor={tensor}',
       '--config.buckets.groups=(4,)'],
      cwd=checkout.ROOT, capture_output=True, text=True)
  assert run.returncode == 0, run.stderr
  assert 'FITS' in run.stdout and 'A step takes at least' in run.stdout
