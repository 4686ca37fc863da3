"""What one accelerator can do, as its maker publishes it."""

from __future__ import annotations

import dataclasses

import jax

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device.

  Attributes:
    memory: bytes that programs may use.
    flops: peak of bfloat16 products, a second.
    bandwidth: bytes of its memory, a second.
    links: bytes that it sends to other chips, a second: half of what is
      published for both directions.
  """

  memory: int
  flops: float
  bandwidth: float
  links: float


# As docs.cloud.google.com/tpu/docs has them, with the memory that the compiler
# lets a program use.
TPUS = {
    'v4': Chip(int(30.75 * _GIB), 275e12, 1228e9, 300e9),
    'v5e': Chip(int(15.75 * _GIB), 197e12, 819e9, 200e9),
    'v5p': Chip(int(95.74 * _GIB), 459e12, 2765e9, 600e9),
    'v6e': Chip(int(31.25 * _GIB), 918e12, 1638e9, 400e9),
}
# SXM, as their data sheets have them; of the memory jax takes three quarters.
GPUS = {
    'a100': Chip(int(59.4 * _GIB), 312e12, 2039e9, 300e9),
    'h100': Chip(int(59.3 * _GIB), 989e12, 3350e9, 450e9),
    'h200': Chip(int(104.8 * _GIB), 989e12, 4800e9, 450e9),
}
# What jax calls them, by the beginning; the longer name comes first.
_KINDS = {
    'TPU v4': 'v4', 'TPU v5 lite': 'v5e', 'TPU v5e': 'v5e', 'TPU v5p': 'v5p',
    'TPU v5': 'v5p', 'TPU v6': 'v6e', 'NVIDIA A100': 'a100',
    'NVIDIA H100': 'h100', 'NVIDIA H200': 'h200'}


def chip_of(device: jax.Device) -> Chip | None:
  """What a device is, with the memory that it says it has.

  None for a CPU, and for what is not known and names no memory. What is not
  known and does is taken to be as fast as a v5e.
  """
  if device.platform == 'cpu':
    return None
  known = next((
      (TPUS | GPUS)[name] for kind, name in _KINDS.items()
      if device.device_kind.startswith(kind)), None)
  memory = (device.memory_stats() or {}).get('bytes_limit')
  if known is None:
    return memory and dataclasses.replace(TPUS['v5e'], memory=memory)
  return dataclasses.replace(known, memory=memory or known.memory)
