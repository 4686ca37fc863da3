"""Settings of --mode compile_check: a slice and the dimensions of a model."""

import math
import re
from typing import Any

from ml_collections import config_dict

# Qwen3: hidden size, intermediate size, layers, query heads, tied head.
_QWEN3 = {
    '0.6b': (1024, 3072, 28, 16, True),
    '1.7b': (2048, 6144, 28, 16, True),
    '4b': (2560, 9728, 36, 32, True),
    '8b': (4096, 12288, 36, 32, False),
}


def dimensions(size: str) -> dict[str, Any]:
  """Fields of a `ModelConfig`."""
  if size not in _QWEN3:
    raise ValueError(f'size={size!r} is not one of {list(_QWEN3)}.')
  hidden_size, intermediate_size, num_layers, num_heads, tied_head = (
      _QWEN3[size])
  return {
      'vocab_size': 151936, 'hidden_size': hidden_size,
      'intermediate_size': intermediate_size, 'num_layers': num_layers,
      'num_heads': num_heads, 'num_kv_heads': 8, 'head_dim': 128,
      'rope_theta': 1e6, 'norm_eps': 1e-6, 'tied_head': tied_head,
      'max_positions': 40960, 'init_std': 0.02}


def put_on_slice(
    c: config_dict.ConfigDict, size: str, topology: str,
    roles: tuple[str, ...] = ()) -> None:
  """Adds `compile_check` to a config.

  Args:
    c: the config.
    size: a size of Qwen3.
    topology: a TPU slice, such as 'v5e:4x4' or gcloud's 'v5litepod-16', or a
      node of GPUs, such as 'h100:8'.
    roles: roles that each get a pool with an equal number of chips.
  """
  topology = _layout(topology)
  if roles:
    chips = math.prod(map(int, topology.partition(':')[2].split('x')))
    chips //= len(roles)
    c.mesh.pools = tuple(
        (role, i * chips, (i + 1) * chips) for i, role in enumerate(roles))
  with c.unlocked():
    c.compile_check = config_dict.ConfigDict()
    c.compile_check.topology = topology
    # Mean tokens of a prompt, of a completion, and of the longest completion of
    # a group. They predict the seconds of a step.
    c.compile_check.prompt_tokens = 1200
    c.compile_check.completion_tokens = 900
    c.compile_check.longest_tokens = 1900
    # Seconds that a collective takes beside sending its bytes.
    c.compile_check.collective_latency = 5e-6
    c.compile_check.dimensions = config_dict.ConfigDict(dimensions(size))


def _layout(topology: str) -> str:
  """Converts gcloud's 'v5litepod-16' into 'v5e:4x4'."""
  found = re.fullmatch(r'(v5e|v5litepod|v6e|v5p|v4)-(\d+)', topology)
  if not found:
    if not re.fullmatch(r'\w+:\d+(x\d+)*', topology):
      raise ValueError(
          f'topology={topology!r} is unknown; give a TPU slice, such as '
          'v5litepod-16 or v5e:4x4, or a node of GPUs, such as h100:8.')
    return topology
  generation, size = found[1].replace('litepod', 'e'), int(found[2])
  num_axes = 2
  if generation in ('v4', 'v5p'):  # gcloud counts two cores per chip.
    num_axes, size = 3, size // 2
  exponent = size.bit_length() - 1
  if size != 2**exponent or num_axes == 3 and exponent < 2:
    raise ValueError(
        f'topology={topology!r} does not determine a layout; give the chips, '
        f'as in {generation}:{"x".join("4" * num_axes)}.')
  each, more = divmod(exponent, num_axes)
  sides = [2**(each + (axis >= num_axes - more)) for axis in range(num_axes)]
  if num_axes == 3 and not each:
    sides.reverse()  # 2x2x1
  return f'{generation}:{"x".join(map(str, sides))}'
