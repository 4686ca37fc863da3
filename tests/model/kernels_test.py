"""Which kernel is taken, and that cuDNN's is called as it must be.

No GPU is needed: jax computes the same call by XLA, and lowers it for CUDA.
"""

import functools

import jax
from jax._src.cudnn import fused_attention_stablehlo
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.model import attention
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import qwen3
from atgrpo_jax.model.kernels import cudnn
from atgrpo_jax.model.kernels import select
from atgrpo_jax.model.kernels import splash
from atgrpo_jax.runtime import sharding

GROUPS, HEADS, MEMBERS, QUERIES, PER_HEAD, WIDTH = 2, 2, 2, 128, 3, 128


def _inputs(dtype=jnp.float32, queries=QUERIES, width=WIDTH):
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.array(rng.normal(size=(GROUPS, HEADS, MEMBERS, *shape)), dtype)

  q = draw(queries, PER_HEAD, width) * width**-0.5
  return q, draw(width, queries), draw(queries, width)


def _mesh(device_kind, platform, *sizes):
  device = jax.sharding.AbstractDevice(device_kind, None, platform)
  return jax.sharding.AbstractMesh(
      sizes or (1, 1, 1), ('data', 'fsdp', 'tensor'), abstract_device=device)


def _found(
    device_kind, platform, *inputs_args, prefix_length=0, sizes=()):
  q, *_ = _inputs(*inputs_args)
  with jax.sharding.use_abstract_mesh(_mesh(device_kind, platform, *sizes)):
    found = select.find(q, prefix_length)
  return found and found.args[0]


@pytest.mark.parametrize('prefix_length', [0, 256])
def test_a_tpu_has_splash_where_lengths_fill_its_registers(prefix_length):
  def found(*inputs_args):
    return _found('TPU v6 lite', 'tpu', *inputs_args,
                  prefix_length=prefix_length)

  assert found(jnp.float32) is splash.attend
  assert found(jnp.bfloat16) is splash.attend
  assert found(jnp.bfloat16, 64) is None
  assert found(jnp.bfloat16, 128, 64) is None


def test_an_nvidia_gpu_has_cudnn_for_prompts_in_half_precision():
  def found(*inputs_args, **kwargs):
    return _found('NVIDIA H100 80GB HBM3', 'gpu', *inputs_args, **kwargs)

  assert found(jnp.bfloat16) is cudnn.attend
  assert found(jnp.float16, 7, 64) is cudnn.attend
  assert found(jnp.float32) is None
  assert found(jnp.bfloat16, 128, 12) is None  # Not a multiple of 8.
  assert found(jnp.bfloat16, 128, 256) is None
  assert found(jnp.bfloat16, prefix_length=128) is None
  assert found(jnp.bfloat16, sizes=(1, 1, HEADS)) is cudnn.attend
  assert found(jnp.bfloat16, sizes=(1, 1, 2 * HEADS)) is None
  assert _found('AMD Instinct MI300X', 'gpu', jnp.bfloat16) is None


def test_a_cpu_has_the_plain_one():
  q, *_ = _inputs(jnp.bfloat16)
  mesh, = sharding.make_meshes(
      ['p'], jax.devices()[:1], sharding.MeshSpec()).values()
  with jax.set_mesh(mesh):
    assert select.find(q, 0) is None
  assert select.find(q, 0) is None  # Without a mesh, too.


def _total(attend, args):
  mixed = attend(*args)
  weights = jnp.cos(jnp.arange(WIDTH))  # So that no gradient cancels.
  return jnp.sum(jnp.square(mixed.astype(jnp.float32)) * weights), mixed


def _run(attend, args):
  return jax.jit(
      jax.grad(lambda args: _total(attend, args), has_aux=True))(args)


def test_what_cudnn_is_asked_for_is_the_plain_attention():
  causal = jnp.tril(jnp.ones((QUERIES, QUERIES), bool))

  def plain(q, k, v):
    return attention.attend(q, k, v, causal, None, None)

  def asked(q, k, v):
    return cudnn.attend(q, k, v, None, None, implementation='xla')

  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
      _run(asked, _inputs()), _run(plain, _inputs()))


def test_a_learner_on_four_gpus_lowers_to_cudnn(monkeypatch):
  monkeypatch.setattr(
      fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000)
  config = config_lib.ModelConfig(
      vocab_size=128, hidden_size=64, intermediate_size=128, num_layers=2,
      num_heads=4, num_kv_heads=2, head_dim=16, rope_theta=1e4, norm_eps=1e-6,
      tied_head=True, max_positions=512, init_std=0.02)

  def total(params, prompts, lengths, completions):
    prefix = qwen3.prefill(
        params, config, prompts, lengths, dtype=jnp.bfloat16)
    hidden, _ = qwen3.forward(
        params, config, completions, prefix=prefix, dtype=jnp.bfloat16)
    return jnp.sum(hidden.astype(jnp.float32))

  integers = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  with jax.sharding.use_abstract_mesh(_mesh('NVIDIA H100', 'gpu', 2, 1, 2)):
    lowered = jax.jit(jax.grad(total)).trace(
        qwen3.param_shapes(config), integers((4, 32)), integers((4,)),
        integers((4, 2, 16))).lower(lowering_platforms=('cuda',)).as_text()
  # In the loop over layers, once each; each device has half of the groups and
  # half of the heads. Completions, over their prefix, have the plain one.
  forward, = _calls(lowered, 'fmhaSoftmax')
  backward, = _calls(lowered, 'fmhaSoftmaxBackward')
  query, key = 'tensor<2x32x2x16xbf16>', 'tensor<2x32x1x16xbf16>'
  assert f'({query}, {key}, {key})' in forward
  assert f'({query}, {key}, {key}, ' in backward


def _calls(lowered, name):
  return [
      line for line in lowered.splitlines() if f'@__cudnn${name}(' in line]
