"""What a run is compiled for: the chips of a TPU slice, or GPUs of one node.

None of them need be there: jax has their compilers in packages of its own, the
extras `compile` and `gpu`. Programs for a TPU are compiled with the least
effort, which takes a fifth of the time; for the gradient of Qwen3-8B the
account of memory was 4 % below that of the default.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os

import jax
from jax.experimental import topologies
import ml_collections

from atgrpo_jax import errors
from atgrpo_jax.distributed import chips

# Two processes may use the TPU's library at once; and what it would ask a TPU's
# host for, so that it does not complain (any value will do).
_WITHOUT_TPU = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_ACCELERATOR_TYPE': 'v5e-16'}
_MOST_GPUS = 8  # Of a node.


@dataclasses.dataclass(frozen=True)
class _Gpu:
  """What XLA asks about a GPU beside what it asks about all of them."""

  name: str
  major: int
  cores: int
  fpus_per_core: int
  clock_rate_ghz: float
  bandwidth: int
  memory: int
  l2_cache: int
  shared_memory: int  # Of a core; a block may have all but a KiB.


# SXM. Memory is what the driver says of cards of 80, 80 and 141 GB.
_GPUS = {
    'a100': _Gpu('NVIDIA A100-SXM4-80GB', 8, 108, 64, 1.41, 2039 * 10**9,
                 85094825984, 40 << 20, 164 << 10),
    'h100': _Gpu('NVIDIA H100 80GB HBM3', 9, 132, 128, 1.98, 3352 * 10**9,
                 84929347584, 50 << 20, 228 << 10),
    'h200': _Gpu('NVIDIA H200', 9, 132, 128, 1.98, 4800 * 10**9,
                 150109880320, 50 << 20, 228 << 10),
}


def devices_of(
    config: ml_collections.ConfigDict,
) -> tuple[Sequence[jax.Device], chips.Chip]:
  """The devices of `compile_check.topology`, and what they are.

  Raises:
    UserError: the topology is not known, or its compiler is not installed.
  """
  topology = config.compile_check.topology
  generation, _, layout = topology.partition(':')
  if generation not in chips.TPUS | chips.GPUS:
    raise errors.UserError(
        f'compile_check.topology={topology!r} is not known; name a slice '
        f'of {", ".join(chips.TPUS)}, such as v5e:4x4, or a node of '
        f'{", ".join(chips.GPUS)}, such as h100:8.')
  # Nothing runs. Else jax looks for the devices, and asks NVIDIA's driver.
  jax.config.update('jax_platforms', 'cpu')
  arguments_of, extra = (
      (_gpu_arguments, 'gpu') if is_gpu(config)
      else (_tpu_arguments, 'compile'))
  arguments = arguments_of(topology, generation, layout)
  try:
    devices = topologies.get_topology_desc(**arguments).devices
  except (RuntimeError, ValueError) as error:
    raise errors.UserError(
        f'There is no compiler for {topology!r}: '
        f'{str(error).splitlines()[0].rstrip(".")}. Install the extra '
        f'`{extra}`, in an environment of its own, and check the name.'
    ) from error
  return devices, (chips.TPUS | chips.GPUS)[generation]


def is_gpu(config: ml_collections.ConfigDict) -> bool:
  """Whether `compile_check.topology` is a node of GPUs."""
  return config.compile_check.topology.partition(':')[0] in chips.GPUS


def _tpu_arguments(topology, generation, layout):
  os.environ.update(_WITHOUT_TPU)
  jax.config.update('jax_exec_time_optimization_effort', -1.0)
  jax.config.update('jax_memory_fitting_effort', -1.0)
  how, sides = {}, layout.split('x')
  num_axes = 2 if generation in ('v5e', 'v6e') else 3
  if len(sides) != num_axes and set(sides) != {'1'}:
    raise errors.UserError(
        f'compile_check.topology={topology!r}: a slice of {generation} has '
        f'{num_axes} sides, as in {generation}:{"x".join("2" * num_axes)}.')
  if set(sides) == {'1'}:  # Without it, a host has at least four.
    how['chips_per_host_bounds'] = (1, 1, 1)
  elif sides == ['2', '4']:  # A TPU VM of its own.
    how['chips_per_host_bounds'] = (2, 4, 1)
  if generation == 'v4':  # As on a TPU VM, both cores of a chip are one device.
    how['chip_config_name'] = 'megacore'
  return {'platform': 'tpu', 'topology_name': topology, **how}


def _gpu_arguments(topology, generation, layout):
  if not layout.isdecimal() or not 1 <= int(layout) <= _MOST_GPUS:
    raise errors.UserError(
        f'compile_check.topology={topology!r}: a node has 1 to {_MOST_GPUS} '
        f'GPUs, as in {generation}:{_MOST_GPUS}.')
  gpu = _GPUS[generation]
  return {
      'platform': 'cuda', 'topology': f'1x1x{layout}', 'target_config': f"""
          platform_name: "CUDA"
          device_description_str: "{gpu.name}"
          runtime_version {{ major: 13 }}
          dnn_version_info {{ major: 9 minor: 10 }}
          gpu_device_info {{
            cuda_compute_capability {{ major: {gpu.major} }}
            core_count: {gpu.cores}
            fpus_per_core: {gpu.fpus_per_core}
            clock_rate_ghz: {gpu.clock_rate_ghz}
            memory_bandwidth: {gpu.bandwidth}
            device_memory_size: {gpu.memory}
            l2_cache_size: {gpu.l2_cache}
            shared_memory_per_core: {gpu.shared_memory}
            shared_memory_per_block: 49152
            shared_memory_per_block_optin: {gpu.shared_memory - 1024}
            threads_per_block_limit: 1024
            threads_per_core_limit: 2048
            threads_per_warp: 32
            registers_per_core_limit: 65536
            registers_per_block_limit: 65536
            block_dim_limit_x: 2147483647
            block_dim_limit_y: 65535
            block_dim_limit_z: 65535
          }}"""}
