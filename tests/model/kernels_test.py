"""The choice of kernels, and their parity with plain attention.

No TPU or GPU is needed: the TPU kernels are interpreted, and XLA replaces
cuDNN.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.model import attention
from atgrpo_jax.model import decoder
from atgrpo_jax.model import kernels
from atgrpo_jax.model import kv_cache
from atgrpo_jax.sampling import programs
from tests.model import attention_test
from tests.rl import tiny

GROUPS, HEADS, CANDIDATES, QUERIES, PER_HEAD, WIDTH = 2, 2, 2, 128, 2, 128
CUDNN = kernels.attend_with_cudnn
TPU, GPU = ('TPU v6 lite', 'tpu'), ('NVIDIA H100 80GB HBM3', 'gpu')


def _mesh(kind, platform, *sizes):
  device = jax.sharding.AbstractDevice(kind, None, platform)
  return jax.sharding.AbstractMesh(
      sizes, mesh_lib.AXES, (jax.sharding.AxisType.Auto,) * len(sizes),
      abstract_device=device)


@pytest.mark.parametrize('device, dtype, changes, expected', [
    # TPUs use splash if lengths and widths are multiples of 128.
    (TPU, 'float32', {'prefix': 256}, kernels.attend_with_splash),
    (TPU, 'bfloat16', {'prefix': 7}, None),
    (TPU, 'bfloat16', {'queries': 64}, None),
    # NVIDIA GPUs use cuDNN in half precision, unless the prefix is long.
    (GPU, 'float16', {'queries': 7, 'width': 64}, CUDNN),
    (GPU, 'float32', {}, None), (GPU, 'bfloat16', {'width': 256}, None),
    (GPU, 'bfloat16', {'prefix': 2 * QUERIES}, CUDNN),
    (GPU, 'bfloat16', {'prefix': 3 * QUERIES}, None),
    # The mesh must divide the heads.
    (GPU, 'bfloat16', {'tensor': HEADS}, CUDNN),
    (GPU, 'bfloat16', {'tensor': 2 * HEADS}, None),
    (('AMD Instinct MI300X', 'gpu'), 'bfloat16', {}, None),
    (None, 'bfloat16', {}, None)])
def test_kernel_of_each_device(device, dtype, changes, expected):
  q = jax.ShapeDtypeStruct((
      GROUPS, HEADS, CANDIDATES, changes.get('queries', QUERIES), PER_HEAD,
      changes.get('width', WIDTH)), dtype)
  mesh = device and _mesh(*device, 1, 1, changes.get('tensor', 1))
  with jax.sharding.use_abstract_mesh(
      mesh or jax.sharding.get_abstract_mesh()):
    found = kernels.find(q, changes.get('prefix', 0))
  assert (found and found.args[0]) == expected


@pytest.mark.parametrize('kernel, prefix_length', [
    (functools.partial(kernels.attend_with_cudnn, implementation='xla'), 0),
    (functools.partial(kernels.attend_with_cudnn, implementation='xla'), 100),
    (functools.partial(kernels.attend_with_splash, interpret=True), 0),
    (functools.partial(kernels.attend_with_splash, interpret=True), 256)])
def test_kernels_equal_plain_attention(kernel, prefix_length):
  (q, *keys), *masks = attention_test.make_inputs(
      prefix_length, 'float32', QUERIES, HEADS, WIDTH)
  assert attention_test.max_difference(
      lambda q, k, v, mask, prefix, prefix_mask: kernel(
          q, k, v, prefix, prefix_mask),
      ((q * WIDTH**-0.5, *keys), *masks)) < 1e-4


def _rows(rng, prefix_lengths, past_lengths):
  """Arguments of `attention.attend`: four rows of three groups of two."""
  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  def draw_cache(lengths, size):
    # Padding would dominate if it were read.
    mask = np.arange(size) < np.array(lengths)[:, None]
    keys = draw(len(lengths), HEADS, WIDTH, size)
    values = draw(len(lengths), HEADS, size, WIDTH)
    return (
        jnp.where(mask[:, None, None], keys, 100.0),
        jnp.where(mask[:, None, :, None], values, 100.0)), mask

  prefix, prefix_mask = draw_cache(prefix_lengths, 512)
  past, past_mask = draw_cache(past_lengths, 128)
  q = draw(4, HEADS, 1, 1, PER_HEAD, WIDTH) * WIDTH**-0.5
  # Candidates 1, 2 and 4 are finished; the last row is free.
  rows = kv_cache.Rows.of(jnp.array([[5, 0, 3, 1]]), 3, 2)
  return (
      q, draw(4, HEADS, WIDTH, 16), draw(4, HEADS, 16, WIDTH),
      jnp.arange(16)[None] <= 2, prefix, jnp.array(prefix_mask), past,
      jnp.array(past_mask), rows)


@pytest.mark.parametrize('kernel, block', [
    (kernels.ragged_on_tpu, 256), (kernels.ragged_on_gpu, 64)])
@pytest.mark.parametrize('prefix_lengths, past_lengths', [
    ((300, 512, 1), (128, 1, 77, 0)),
    # Empty prefixes and empty pasts.
    ((0, 0, 256), (0, 0, 3, 0))])
def test_ragged_attention_reads_occupied_blocks_only(
    kernel, block, prefix_lengths, past_lengths):
  *args, prefix, prefix_mask, past, past_mask, rows = _rows(
      np.random.default_rng(0), prefix_lengths, past_lengths)
  expected = attention.attend(
      *args, prefix, prefix_mask, past, past_mask, rows)

  def poison(kv, lengths):
    """NaN in blocks without keys: any sum over them would be NaN."""
    used = -(-np.array(lengths) // block) * block
    is_used = np.arange(kv[0].shape[-1]) < used[:, None]
    return (
        jnp.where(is_used[:, None, None], kv[0], jnp.nan),
        jnp.where(is_used[:, None, :, None], kv[1], jnp.nan))

  found = jax.jit(functools.partial(
      kernels.attend_with_ragged, functools.partial(kernel, interpret=True)))(
          *args, poison(prefix, prefix_lengths), prefix_mask,
          poison(past, past_lengths), past_mask, rows)
  assert found.shape == expected.shape and found.dtype == expected.dtype
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_gpu_program_attends_to_64_queries_of_many():
  rng = np.random.default_rng(0)
  q, k, v = (
      jnp.array(rng.normal(size=(1, 1, *shape)), jnp.float32)
      for shape in ((70, 16), (16, 32), (32, 16)))
  (mixed, _, total), = kernels.ragged_on_gpu(
      q, k, v, jnp.array([5]), interpret=True)
  weights = jax.nn.softmax(q @ k[..., :5])
  np.testing.assert_allclose(
      mixed / total, weights @ v[:, :, :5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('axis', [-1, -2])
def test_new_positions_are_appended_on_a_tpu_as_elsewhere(axis):
  rng = np.random.default_rng(0)
  old, new = (
      jnp.asarray(rng.normal(size=(5, HEADS, WIDTH, size)), jnp.bfloat16)
      for size in (256, 32))
  if axis == -2:
    old, new = old.swapaxes(2, 3), new.swapaxes(2, 3)
  starts = jnp.array([0, 96, 128, 224, 32])
  found = kernels.append_on_tpu(axis, old, new, starts, interpret=True)
  # Without a mesh, XLA appends.
  np.testing.assert_array_equal(
      found.astype('float32'),
      kernels.append(axis, old, new, starts).astype('float32'))


@pytest.mark.parametrize('device, prompt_length, num_kernels', [
    (TPU, 512, 2), (TPU, 200, 0), (GPU, 512, 2), (GPU, 200, 0)])
def test_decoding_on_four_devices_lowers_to_kernels(
    device, prompt_length, num_kernels):
  config = dataclasses.replace(tiny.CONFIG, head_dim=128)
  spec = programs.SamplerSpec(2, 1.0, (0,), 'bfloat16')
  static = {'config': config, 'spec': spec}
  platform, target = {
      TPU: ('tpu', 'tpu_custom_call'), GPU: ('cuda', '__gpu$xla.gpu.triton'),
  }[device]
  with jax.sharding.use_abstract_mesh(_mesh(*device, 2, 1, 2)):
    slots = jax.eval_shape(functools.partial(
        programs.empty_slots, num_slots=4, prompt_length=prompt_length,
        **static))
    past = jax.eval_shape(functools.partial(
        programs.empty_rows, num_rows=4, capacity=256, **static))
    lowered = programs.decode.trace(
        decoder.param_shapes(config), slots, past,
        jax.ShapeDtypeStruct((2, 2), jnp.int32), adapters=None, num_tokens=16,
        **static).lower(lowering_platforms=(platform,)).as_text()
  # Two kernels per layer, for prompts and completions. Each device has half of
  # the groups or rows and half of the heads.
  calls = [x for x in lowered.splitlines() if f'@{target}(' in x]
  appended = [x for x in calls if 'kernel_name = "append"' in x]
  assert len(appended) == (device == TPU) * 2 * config.num_layers
  calls = [x for x in calls if x not in appended]
  assert len(calls) == num_kernels * config.num_layers
  heads = config.num_kv_heads // 2
  for capacity in (512, 256) if num_kernels else ():
    shape = f'tensor<2x{heads}x128x{capacity}xbf16>'
    assert sum(shape in x for x in calls) == config.num_layers


def test_gradient_on_four_devices_lowers_to_splash_attention():
  config = dataclasses.replace(tiny.CONFIG, head_dim=128)

  def loss(params, tokens):
    hidden, _ = decoder.forward(params, config, tokens, dtype=jnp.bfloat16)
    return jnp.sum(hidden.astype(jnp.float32))

  with jax.sharding.use_abstract_mesh(_mesh(*TPU, 2, 1, 2)):
    lowered = jax.jit(jax.grad(loss)).trace(
        decoder.param_shapes(config), jax.ShapeDtypeStruct((4, 1, 256), 'int32')
    ).lower(lowering_platforms=('tpu',)).as_text()
  calls = [x for x in lowered.splitlines() if '@tpu_custom_call(' in x]
  # The forward pass, the gradient of queries, and that of keys and values. Each
  # device has two groups and one of two key heads, with two query heads.
  assert len(calls) == 3 and all('tensor<2x2x256x128xbf16>' in x for x in calls)
