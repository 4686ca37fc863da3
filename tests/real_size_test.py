"""Qwen3-0.6B trains on two cores within 12 GiB."""

import os
import resource
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from configs import pod
from tests import checkout

_NANO = checkout.ROOT / 'models' / 'nano'
# The setting of docs/hardware.md for Qwen3-0.6B on a laptop.
_OVERRIDES = {
    'policies': 'lora_per_role', 'sandbox.level': 'unsafe_rlimit',
    'environment.max_turns': 1, 'rollout.num_tasks': 1, 'rollout.group_size': 2,
    'rollout.max_new_tokens': 8, 'buckets.prompt': (1024,),
    'buckets.completion': (8,), 'buckets.groups': (1,),
    'buckets.microbatch_tokens': 1040, 'advantage.baseline': 'none',
    'advantage.scale': 'none', 'train.num_steps': 1,
    'evaluation.validate_every': 2, 'evaluation.test': 'test[:1]'}


@pytest.mark.long
def test_qwen3_06b_trains_within_12_gib(tmp_path):
  folder = tmp_path / 'model'
  with jax.default_device(jax.devices('cpu')[0]):
    config = model.ModelConfig(**pod.dimensions('0.6b'))
    params = jax.jit(model.init_params, static_argnums=1)(
        jax.random.key(0), config)
    safetensors_lib.save(folder, params, config, jnp.bfloat16)
    del params
  for path in _NANO.iterdir():  # A smaller tokenizer.
    if not (folder / path.name).exists():
      shutil.copy(path, folder)

  # Tests compile with fewer optimisations, which needs more memory.
  env = {
      key: value for key, value in os.environ.items()
      if key not in ('JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')}
  workdir = tmp_path / 'run'
  subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--config',
       'configs/plan_path.py:size=0.6b', f'--workdir={workdir}',
       f'--config.model.folder={folder}',
       *(f'--config.{key}={value}' for key, value in _OVERRIDES.items())],
      env=env | {'JAX_NUM_CPU_DEVICES': '1'}, cwd=checkout.ROOT, check=True)
  assert 'tool/grad_norm' in (workdir / 'metrics.jsonl').read_text()
  # The largest of all children of this process, in KiB.
  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
  assert peak < 12 * 2**30, f'{peak / 2**30:.1f} GiB'
