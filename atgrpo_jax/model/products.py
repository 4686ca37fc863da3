"""Matrix products: operands in one dtype, sums in float32.

Sampler and learner multiply with the same function, so they round alike.

On TPUs and GPUs activations have the dtype of the products. On CPUs they stay
float32, and the operands of products with parameters are rounded to bfloat16:
XLA's CPU backend multiplies bfloat16 into float32 twice as fast as float32, but
bfloat16 into bfloat16 no faster. The backward pass rounds the cotangent, too.

Attention multiplies activations. Rounding queries and keys would cause most of
the error of bfloat16: Qwen2.5 adds large biases to its keys.

If a last bit of the attention or of a norm differs between sampler and learner,
it flips roundings, and such flips spread through the layers. Therefore both add
the same terms in the same order (`rounds`, `ones`).
"""

import functools
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp

from atgrpo_jax.distributed import mesh as mesh_lib

# Flags of /proc/cpuinfo that stand for instructions on bfloat16.
_CPU_FLAGS = {'avx512_bf16', 'amx_bf16'}

# XLA's CPU backend adds the terms of a float32 product in their order if the
# number of columns is a multiple of COLUMNS and the right operand has at most
# MAX_SIZE numbers. Otherwise the order may depend on the shapes.
COLUMNS, MAX_SIZE = 64, 2**15
# With fewer columns, bfloat16 products of 3072 terms have another order than
# with more (measured with AVX512-BF16).
MIN_COLUMNS = 32


def fastest_dtype(platform: str) -> str:
  """The faster of 'float32' and 'bfloat16' on this host's devices."""
  if platform != 'cpu':
    return 'bfloat16'
  try:
    info = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:  # Not Linux.
    return 'float32'
  return 'bfloat16' if _CPU_FLAGS & {*info.split()} else 'float32'


def activation_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """The dtype of activations between products in `dtype`."""
  return jnp.dtype(jnp.float32 if mesh_lib.platform() == 'cpu' else dtype)


def rounds(dtype: jnp.dtype) -> bool:
  """Whether products in `dtype` round float32 operands, as on CPUs.

  Sums of such operands must be in the same order everywhere.
  """
  return activation_dtype(dtype) != dtype


def ones(num_terms: int) -> jax.Array:
  """[num_terms, COLUMNS]; a product with them adds terms in their order."""
  # The barrier keeps XLA from replacing the product by a sum.
  return jax.lax.optimization_barrier(jnp.ones((num_terms, COLUMNS)))


def rounded(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """x in `dtype`; XLA may skip a cast that is followed by its opposite."""
  if x.dtype != dtype and rounds(dtype):
    bits = jnp.finfo(dtype)
    x = jax.lax.reduce_precision(x, bits.nexp, bits.nmant)
  return x.astype(dtype)


def as_bits(params: Any) -> Any:
  """bfloat16 arrays as integers on CPUs.

  A loop that slices bfloat16 arrays would convert all of them to float32, and
  each slice back. Such parameters are frozen: a gradient through integers would
  be zero, so it is refused.
  """
  if mesh_lib.platform() != 'cpu':
    return params
  return jax.tree.map(
      lambda x: _as_bits(x) if x.dtype == jnp.bfloat16 else x, params)


def from_bits(params: Any) -> Any:
  """The inverse of `as_bits`."""
  return jax.tree.map(
      lambda x: jax.lax.bitcast_convert_type(x, jnp.bfloat16)
      if x.dtype == jnp.uint16 else x, params)


@jax.custom_jvp
def _as_bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.uint16)


@_as_bits.defjvp
def _refuse_gradient(*_):
  raise NotImplementedError('bfloat16 parameters are frozen on CPUs')


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
  """Keeps TPUs and GPUs from rounding float32 operands."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def einsum(
    equation: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """The product of activations, cast to `dtype`, as a float32 array."""
  return jnp.einsum(
      equation, x.astype(dtype), y.astype(dtype), precision=precision(dtype),
      preferred_element_type=jnp.float32)


def multiply(
    equation: str, x: jax.Array, kernel: jax.Array, dtype: jnp.dtype,
    result: jnp.dtype = jnp.float32) -> jax.Array:
  """The product of x and parameters, rounded to `dtype`, as `result`.

  The devices of a mesh add their gradients of the parameters in float32. Each
  letter of `equation` stands in two of its three terms.
  """
  dtype = jnp.dtype(dtype)
  if dtype == jnp.float32:
    return einsum(equation, x, kernel, dtype).astype(result)
  return _multiply(equation, dtype, jnp.dtype(result), x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _multiply(equation, dtype, result, x, y):
  return jnp.einsum(
      equation, rounded(x, dtype), rounded(y, dtype),
      preferred_element_type=result)


def _forward(equation, dtype, result, x, y):
  # Empty arrays carry the dtypes of the gradients.
  empty = jnp.empty(0, x.dtype), jnp.empty(0, y.dtype)
  x, y = rounded(x, dtype), rounded(y, dtype)
  return _multiply(equation, dtype, result, x, y), (x, y, *empty)


def _backward(equation, dtype, result, residuals, cotangent):
  x, y, x_empty, y_empty = residuals
  of_x, of_y, of_result = re.split(',|->', equation)
  x_grad = _multiply(
      f'{of_result},{of_y}->{of_x}', dtype, result, cotangent, y)
  y_grad = _multiply(
      f'{of_x},{of_result}->{of_y}', dtype, jnp.dtype(jnp.float32), x,
      cotangent)
  return x_grad.astype(x_empty.dtype), y_grad.astype(y_empty.dtype)


_multiply.defvjp(_forward, _backward)
