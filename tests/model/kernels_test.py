"""kernels/: which kernel is taken, and that each computes plain attention.

No TPU or GPU is needed: splash is interpreted, jax computes what cuDNN is asked
for by XLA, and lowers the call itself for CUDA.
"""

import dataclasses
import functools

import jax
from jax._src.cudnn import fused_attention_stablehlo
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.model import attention
from atgrpo_jax.model import qwen3
from atgrpo_jax.model.kernels import cudnn
from atgrpo_jax.model.kernels import select
from atgrpo_jax.model.kernels import splash
from tests.rl import tiny

GROUPS, HEADS, CANDIDATES, QUERIES, PER_HEAD, WIDTH = 2, 2, 2, 128, 2, 128
TPU, GPU = ('TPU v6 lite', 'tpu'), ('NVIDIA H100 80GB HBM3', 'gpu')


def _mesh(kind, platform, *sizes):
  device = jax.sharding.AbstractDevice(kind, None, platform)
  return jax.sharding.AbstractMesh(
      sizes, ('data', 'fsdp', 'tensor'), abstract_device=device)


@pytest.mark.parametrize('device, dtype, changes, expected', [
    # A TPU has splash where lengths and widths fill its registers.
    (TPU, 'float32', {}, splash), (TPU, 'bfloat16', {'prefix': 256}, splash),
    (TPU, 'bfloat16', {'prefix': 7}, None),
    (TPU, 'bfloat16', {'queries': 64}, None),
    (TPU, 'bfloat16', {'width': 64}, None),
    # An NVIDIA GPU has cuDNN for prompts in half precision.
    (GPU, 'bfloat16', {}, cudnn),
    (GPU, 'float16', {'queries': 7, 'width': 64}, cudnn),
    (GPU, 'float32', {}, None), (GPU, 'bfloat16', {'width': 12}, None),
    (GPU, 'bfloat16', {'width': 256}, None),
    (GPU, 'bfloat16', {'prefix': 128}, None),
    # Heads must divide.
    (GPU, 'bfloat16', {'tensor': HEADS}, cudnn),
    (GPU, 'bfloat16', {'tensor': 2 * HEADS}, None),
    (('AMD Instinct MI300X', 'gpu'), 'bfloat16', {}, None),
    (('cpu', 'cpu'), 'bfloat16', {}, None), (None, 'bfloat16', {}, None)])
def test_each_device_has_its_kernel(device, dtype, changes, expected):
  q = jax.ShapeDtypeStruct((
      GROUPS, HEADS, CANDIDATES, changes.get('queries', QUERIES), PER_HEAD,
      changes.get('width', WIDTH)), dtype)
  mesh = device and _mesh(*device, 1, 1, changes.get('tensor', 1))
  with jax.sharding.use_abstract_mesh(
      mesh or jax.sharding.get_abstract_mesh()):
    found = select.find(q, changes.get('prefix', 0))
  assert (found and found.args[0]) == (expected and expected.attend)


@pytest.mark.parametrize('kernel, prefix_length', [
    (functools.partial(cudnn.attend, implementation='xla'), 0),
    (functools.partial(splash.attend, interpret=True), 0),
    (functools.partial(splash.attend, interpret=True), 128)])
def test_a_kernel_computes_plain_attention(kernel, prefix_length):
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.array(rng.normal(size=(GROUPS, HEADS, *shape)), jnp.float32)

  def plain(q, k, v, prefix, prefix_mask):
    causal = jnp.tril(jnp.ones((QUERIES, QUERIES), bool))
    return attention.attend(q, k, v, causal, prefix, prefix_mask)

  prefix = mask = None
  if prefix_length:
    prefix = draw(WIDTH, prefix_length), draw(prefix_length, WIDTH)
    lengths = np.array([[prefix_length], [57]])
    mask = jnp.array(np.arange(prefix_length) < lengths)
  inputs = (
      draw(CANDIDATES, QUERIES, PER_HEAD, WIDTH) * WIDTH**-0.5,
      draw(CANDIDATES, WIDTH, QUERIES), draw(CANDIDATES, QUERIES, WIDTH),
      prefix)
  weights = jnp.cos(jnp.arange(WIDTH))  # So that no gradient cancels.

  def run(attend):
    def total(inputs):
      mixed = attend(*inputs, mask)
      return jnp.sum(jnp.square(mixed) * weights), mixed
    return jax.jit(jax.grad(total, has_aux=True))(inputs)

  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
      run(kernel), run(plain))


def test_a_learner_on_four_gpus_lowers_to_cudnn(monkeypatch):
  monkeypatch.setattr(
      fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000)
  config = dataclasses.replace(tiny.CONFIG, head_dim=16)

  def total(params, prompts, lengths, completions):
    prefix = qwen3.prefill(
        params, config, prompts, lengths, dtype=jnp.bfloat16)
    hidden, _ = qwen3.forward(
        params, config, completions, prefix=prefix, dtype=jnp.bfloat16)
    return jnp.sum(hidden.astype(jnp.float32))

  integers = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  with jax.sharding.use_abstract_mesh(_mesh(*GPU, 2, 1, 2)):
    lowered = jax.jit(jax.grad(total)).trace(
        qwen3.param_shapes(config), integers((4, 32)), integers((4,)),
        integers((4, 2, 16))).lower(lowering_platforms=('cuda',)).as_text()
  # In the loop over layers, once each; each device has half of the groups and
  # half of the heads. Completions, over their prefix, have the plain one.
  query, key = 'tensor<2x32x2x16xbf16>', 'tensor<2x32x1x16xbf16>'
  for name in ('fmhaSoftmax', 'fmhaSoftmaxBackward'):
    call, = (x for x in lowered.splitlines() if f'@__cudnn${name}(' in x)
    assert f'({query}, {key}, {key}' in call
