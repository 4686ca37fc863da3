"""Measures the machine: matrix products per second and memory bandwidth.

These cases are interleaved with the benchmark they are compared with, because
the speed of a shared machine changes within a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
import datetime
import os
import pathlib
import re

import jax
import jax.numpy as jnp

from benchmarks import timing

# (rows, inner, columns). The last two occur in the benchmarks' model: one token
# of 64 rows, and a whole batch.
PRODUCTS = (
    (1024, 1024, 1024), (2048, 2048, 2048), (64, 256, 768), (5120, 256, 768))
COPY_BYTES = 1 << 29  # Larger than any cache.
FLOPS, BYTES = 'GFLOP', 'GB'


def cases(
    products: Sequence[tuple[int, int, int]],
    num_bytes: int) -> list[timing.Case]:
  return [*(_product(*shape) for shape in products), _copy(num_bytes)]


def rates(
    found: Sequence[timing.Case],
    seconds: Sequence[dict[str, list[float]]]) -> timing.Amounts:
  """The best measured rates of the machine, per second."""
  return timing.Amounts(*(
      1e9 * timing.fastest(found, seconds, unit) for unit in (FLOPS, BYTES)))


def describe() -> dict:
  """The provenance that is stored with every result."""
  device = jax.devices()[0]
  kind = device.device_kind
  if device.platform == 'cpu':
    found = re.search(
        r'model name\s*:\s*(.+)', pathlib.Path('/proc/cpuinfo').read_text())
    kind = found[1] if found else kind
  return {
      'device': kind, 'num_devices': jax.device_count(),
      'cores': len(os.sched_getaffinity(0)), 'jax': jax.__version__,
      'date': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'),
  }


def _product(rows: int, inner: int, columns: int) -> timing.Case:
  flops = 2 * rows * inner * columns
  # A small product is shorter than the clock's resolution, so several run in a
  # row, with different operands so that the compiler cannot drop any.
  times = max(1, int(2e9 / flops))
  left = jax.random.normal(jax.random.key(0), (rows, inner))
  right = jax.random.normal(jax.random.key(1), (times, inner, columns))
  multiply = jax.jit(
      lambda left, right: jax.lax.scan(
          lambda total, matrix: (total + left @ matrix, None),
          jnp.zeros((rows, columns)), right)[0])
  return timing.Case(
      f'float32 product {rows} x {inner} x {columns}',
      {timing.OURS: timing.timed(
          lambda: jax.block_until_ready(multiply(left, right)))},
      counts={FLOPS: times * flops / 1e9})


def _copy(num_bytes: int) -> timing.Case:
  # In place, because the pages of a new array fault on the first write.
  add = jax.jit(lambda x: x + 1, donate_argnums=0)
  x = jnp.zeros(num_bytes // 4, jnp.float32)

  def copy():
    nonlocal x
    x = jax.block_until_ready(add(x))

  return timing.Case(
      f'read and write of {num_bytes >> 20} MiB',
      {timing.OURS: timing.timed(copy)}, counts={BYTES: 2 * x.nbytes / 1e9})
