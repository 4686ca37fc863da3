"""Models of real sizes train on two cores within the documented memory."""

import os
import shutil
import subprocess

import jax
import jax.numpy as jnp
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from configs import pod
from models import wheels
from models.smollm2 import __main__ as smollm2
from tests import checkout
from tests import commands

_NANO = checkout.ROOT / 'models' / 'nano'
# Qwen3-0.6B on a laptop: docs/hardware.md has the time and memory.
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

  workdir = tmp_path / 'run'
  assert _train('configs/plan_path.py:size=0.6b', workdir, {
      'model.folder': folder, **_OVERRIDES}) < 12
  assert 'tool/grad_norm' in (workdir / 'metrics.jsonl').read_text()


@pytest.mark.long
def test_smollm2_trains_two_steps_within_6_gib(tmp_path):
  folder = checkout.ROOT / smollm2.MODEL.folder
  wheels.make(smollm2.MODEL, folder)
  assert _train(
      'configs/writing.py:kind=factbook,size=135m,system=magrpo_cross',
      tmp_path, {
          'model.folder': folder, 'train.num_steps': 2,
          'evaluation.test': 'test[:2]',
          'evaluation.validation': 'validation[:2]'}) < 6
  assert 'detailed/grad_norm' in (tmp_path / 'metrics.jsonl').read_text()


def _train(config, workdir, overrides):
  """Trains in a new process and returns its peak memory in GiB."""
  # Tests compile with fewer optimisations, which needs more memory.
  env = {
      key: value for key, value in os.environ.items()
      if key not in ('JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')}
  process = subprocess.Popen(
      commands.train(config, workdir, overrides),
      env=env | {'JAX_NUM_CPU_DEVICES': '1'}, cwd=checkout.ROOT)
  _, status, usage = os.wait4(process.pid, 0)
  assert status == 0
  return usage.ru_maxrss / 2**20
