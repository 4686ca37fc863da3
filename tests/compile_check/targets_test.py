"""targets.py: slices of TPUs and nodes of GPUs that are not there."""

import importlib.util
import subprocess
import sys

import pytest

from atgrpo_jax import errors
from atgrpo_jax.compile_check import targets
from configs import pod
from tests import checkout


@pytest.mark.parametrize('topology, words', [
    ('v1:2x2', "'v1:2x2' is not known.*v5e:4x4.*h100:8"),
    ('v5e:4x4x4', 'slice of v5e has 2 sides'),
    ('v5p:4x4', 'slice of v5p has 3 sides'),
    ('h100:16', '1 to 8 GPUs, as in h100:8'),
    ('h100:2x4', '1 to 8 GPUs'),
    ('a100:0', '1 to 8 GPUs')])
def test_what_is_not_built_is_refused(topology, words):
  config = pod.get_config(f'topology={topology}')
  with pytest.raises(errors.UserError, match=words):
    targets.devices_of(config)


@pytest.mark.skipif(
    not importlib.util.find_spec('jax_cuda13_plugin'),
    reason='the extra `gpu` is not installed')
@pytest.mark.parametrize('mesh', [(1, 1), (2, 2)])
def test_a_run_is_compiled_for_gpus_that_are_not_there(mesh):
  """Also: cuDNN's attention within the learner, whatever the mesh."""
  run = subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--mode', 'compile_check',
       '--config', 'configs/pod.py:size=0.6b,topology=h100:4',
       '--config.compile_check.dimensions.num_layers=2',
       *(f'--config.mesh.{axis}={size}'
         for axis, size in zip(('fsdp', 'tensor'), mesh))],
      cwd=checkout.ROOT, capture_output=True, text=True)
  assert run.returncode == 0, run.stderr
  assert 'FITS' in run.stdout and '% of the peak' in run.stdout
