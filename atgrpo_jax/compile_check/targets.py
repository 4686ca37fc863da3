"""The devices that a run is compiled for: a TPU slice, or the GPUs of a node.

They need not exist: the extras `compile` and `gpu` install their compilers.
TPU programs are compiled with the lowest effort, which takes a fifth of the
time; the memory of Qwen3-8B's gradient is then 4 % below the default's.
"""

from collections.abc import Sequence
import os

import jax
from jax.experimental import topologies

from atgrpo_jax import errors
from atgrpo_jax.distributed import fit

# Lets several processes load libtpu, and gives it the values that it would ask
# a TPU host for; any value will do.
_WITHOUT_TPU = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_ACCELERATOR_TYPE': 'v5e-16'}
_MAX_GPUS = 8  # GPUs of a node.

# SXM cards: name, bytes/s and bytes of memory, as the driver reports them.
_GPUS = {
    'h100': ('NVIDIA H100 80GB HBM3', 3352 * 10**9, 84929347584),
    'h200': ('NVIDIA H200', 4800 * 10**9, 150109880320)}
_GPU_TARGET = """
  platform_name: "CUDA"
  device_description_str: "{name}"
  runtime_version {{ major: 13 }}
  dnn_version_info {{ major: 9 minor: 10 }}
  gpu_device_info {{
    cuda_compute_capability {{ major: 9 }}
    core_count: 132
    fpus_per_core: 128
    clock_rate_ghz: 1.98
    memory_bandwidth: {bandwidth}
    device_memory_size: {memory}
    l2_cache_size: 52428800
    shared_memory_per_core: 233472
    shared_memory_per_block: 49152
    shared_memory_per_block_optin: 232448
    threads_per_block_limit: 1024
    threads_per_core_limit: 2048
    threads_per_warp: 32
    registers_per_core_limit: 65536
    registers_per_block_limit: 65536
    block_dim_limit_x: 2147483647
    block_dim_limit_y: 65535
    block_dim_limit_z: 65535
  }}"""


def devices_of(topology: str) -> tuple[Sequence[jax.Device], fit.Chip]:
  """The devices of a topology, such as 'v5e:4x4' or 'h100:8', and their chip.

  Raises UserError if it is unknown, or its compiler is not installed.
  """
  generation, _, layout = topology.partition(':')
  if generation not in fit.TPUS | _GPUS:
    raise errors.UserError(
        f'compile_check.topology={topology!r} is unknown; give a slice of '
        f'{", ".join(fit.TPUS)}, such as v5e:4x4, or a node of '
        f'{", ".join(_GPUS)}, such as h100:8.')
  # Keeps jax from looking for devices and asking NVIDIA's driver.
  jax.config.update('jax_platforms', 'cpu')
  make_arguments, extra = (
      (_gpu_arguments, 'gpu') if generation in _GPUS
      else (_tpu_arguments, 'compile'))
  arguments = make_arguments(topology, generation, layout)
  try:
    devices = topologies.get_topology_desc(**arguments).devices
  except (RuntimeError, ValueError) as error:
    raise errors.UserError(
        f'compile_check.topology={topology!r} cannot be compiled for: '
        f'{str(error).splitlines()[0].rstrip(".")}. Install the extra '
        f'`{extra}` in a separate environment, and check the name.'
    ) from error
  return devices, (fit.TPUS | fit.GPUS)[generation]


def _tpu_arguments(topology, generation, layout):
  os.environ.update(_WITHOUT_TPU)
  jax.config.update('jax_optimization_level', 'O0')
  jax.config.update('jax_memory_fitting_level', 'O0')
  options, sides = {}, layout.split('x')
  num_axes = 2 if generation in ('v5e', 'v6e') else 3
  if len(sides) != num_axes and set(sides) != {'1'}:
    raise errors.UserError(
        f'compile_check.topology={topology!r}: a slice of {generation} has '
        f'{num_axes} sides; give {generation}:{"x".join("2" * num_axes)}.')
  if set(sides) == {'1'}:  # The default host has at least four chips.
    options['chips_per_host_bounds'] = (1, 1, 1)
  elif sides == ['2', '4']:  # A TPU VM with 8 chips.
    options['chips_per_host_bounds'] = (2, 4, 1)
  if generation == 'v4':  # A chip's two cores are one device.
    options['chip_config_name'] = 'megacore'
  return {'platform': 'tpu', 'topology_name': topology, **options}


def _gpu_arguments(topology, generation, layout):
  if not layout.isdecimal() or not 1 <= int(layout) <= _MAX_GPUS:
    raise errors.UserError(
        f'compile_check.topology={topology!r}: a node has 1 to {_MAX_GPUS} '
        f'GPUs; give {generation}:{_MAX_GPUS}.')
  name, bandwidth, memory = _GPUS[generation]
  return {
      'platform': 'cuda', 'topology': f'1x1x{layout}',
      'target_config': _GPU_TARGET.format(
          name=name, bandwidth=bandwidth, memory=memory)}
