"""Models on a TPU slice or GPUs: Plan-Path with the shapes of AT-GRPO's paper.

  python -m atgrpo_jax.main --mode compile_check \
      --config configs/pod.py:size=1.7b,topology=v5e:4x4

reports whether the run fits the slice, on any machine with the extra `compile`.
With the extra `gpu`, topology=h100:8 is a node of GPUs. `launch/tpu_pod.sh`
trains on the slice with the same config.
"""

import math
import re
from typing import Any

from ml_collections import config_dict

from configs import common
from configs import plan_path

_FIELDS = (
    'hidden_size', 'intermediate_size', 'num_layers', 'num_heads',
    'num_kv_heads', 'max_positions', 'tied_head')
# Size -> these fields of its `ModelConfig`.
_DIMENSIONS = {
    '0.6b': (1024, 3072, 28, 16, 8, 40960, True),
    '1.7b': (2048, 6144, 28, 16, 8, 40960, True),
    '4b': (2560, 9728, 36, 32, 8, 40960, True),
    '8b': (4096, 12288, 36, 32, 8, 40960, False),
    'coder-3b': (2048, 11008, 36, 16, 2, 32768, True),
    'coder-7b': (3584, 18944, 28, 28, 4, 32768, False),
}
# Chips, or cores (two per chip), of a slice -> its layout.
_CHIPS = {
    1: '1x1', 4: '2x2', 8: '2x4', 16: '4x4', 32: '4x8', 64: '8x8',
    128: '8x16', 256: '16x16'}
_CORES = {
    8: '2x2x1', 16: '2x2x2', 32: '2x2x4', 64: '2x4x4', 128: '4x4x4',
    256: '4x4x8'}
# gcloud's name of a slice -> its topology.
_SLICES = {
    f'{name}-{size}': f'{generation}:{layout}'
    for name, generation, layouts in (
        ('v5litepod', 'v5e', _CHIPS), ('v6e', 'v6e', _CHIPS),
        ('v5p', 'v5p', _CORES), ('v4', 'v4', _CORES))
    for size, layout in layouts.items()}


def get_config(arg: str = ''):
  """Builds the config from `size`, `topology`, `team` and `policies`."""
  arg = common.parse_arg(
      arg, size='1.7b', topology='v5e:4x4', team='pair', policies='shared')
  c = plan_path.get_config(f'size={arg.size},team={arg.team}')
  c.policies = arg.policies
  put_on_slice(c, arg.size, arg.topology)
  return c


def dimensions(size: str) -> dict[str, Any]:
  """Fields of the `ModelConfig` of a size of `common.MODELS`."""
  common.check_choices({'size': size}, size=_DIMENSIONS)
  return {
      **dict(zip(_FIELDS, _DIMENSIONS[size])),
      'vocab_size': 152064 if size == 'coder-7b' else 151936,
      'head_dim': 128, 'rope_theta': 1e6, 'norm_eps': 1e-6, 'init_std': 0.02,
      'model_type': 'qwen2' if size.startswith('coder') else 'qwen3'}


def put_on_slice(
    c: config_dict.ConfigDict, size: str, topology: str,
    roles: tuple[str, ...] = ()) -> None:
  """Adds `compile_check` to a config, unless `topology` is ''.

  `topology` is a TPU slice, such as 'v5e:4x4' or gcloud's 'v5litepod-16', or a
  node of GPUs, such as 'h100:8'. `roles` each get a pool of equal size.
  """
  if not topology:
    return
  topology = _layout(topology)
  if roles:
    chips = math.prod(map(int, topology.partition(':')[2].split('x')))
    chips //= len(roles)
    c.mesh.pools = tuple(
        (role, i * chips, (i + 1) * chips) for i, role in enumerate(roles))
  with c.unlocked():
    c.compile_check = config_dict.ConfigDict({
        'topology': topology,
        # Mean tokens of a prompt, of a completion, and of the longest
        # completion of a group. They predict the seconds of a step.
        'prompt_tokens': 1200, 'completion_tokens': 900, 'longest_tokens': 1900,
        # Seconds that a collective takes beside sending its bytes.
        'collective_latency': 5e-6,
        # Price of a device for an hour; 0 prints no dollars.
        'dollars_per_hour': 0.0,
        'dimensions': dimensions(size)})


def finish(
    c: config_dict.ConfigDict, arg: config_dict.ConfigDict,
    roles: tuple[str, ...] = ()) -> config_dict.ConfigDict:
  """Applies `debug` and `topology`, and locks; each of `roles` gets a pool."""
  if arg.debug:
    common.shrink_for_debug(c)
  put_on_slice(
      c, arg.size, arg.topology, () if c.environment.team == 'solo' else roles)
  return c.lock()


def _layout(topology: str) -> str:
  """Converts gcloud's 'v5litepod-16' into 'v5e:4x4'."""
  if re.fullmatch(r'\w+:\d+(x\d+)*', topology):
    return topology
  if topology not in _SLICES:
    name = topology.replace('v5e-', 'v5litepod-')
    raise ValueError(f'topology={topology!r} is unknown; ' + (
        f'did you mean {name!r}?' if name in _SLICES else
        'give a TPU slice, such as v5litepod-16 or v5e:4x4, or a node of GPUs, '
        'such as h100:8.'))
  return _SLICES[topology]
