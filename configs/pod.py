"""Qwen3 on a TPU slice: Plan-Path with the shapes of the AT-GRPO paper.

  python -m atgrpo_jax.main --mode compile_check \
      --config configs/pod.py:size=1.7b,topology=v5e:4x4

says, on any machine with the extra `compile`, whether the run fits the slice.
On the slice itself, `launch/tpu_pod.sh` trains with the same config.
"""

import math

from ml_collections import config_dict

from configs import common
from configs import plan_path

# Hidden and intermediate size, layers, query heads, whether the head is the
# embedding.
_SIZES = {
    '0.6b': (1024, 3072, 28, 16, True),
    '1.7b': (2048, 6144, 28, 16, True),
    '4b': (2560, 9728, 36, 32, True),
    '8b': (4096, 12288, 36, 32, False),
}


def get_config(arg: str = ''):
  """`size`, `topology`, `team`; `policies` as in common.py."""
  arg = common.parse_arg(
      arg, size='1.7b', topology='v5e:4x4', team='pair', policies='shared')
  if arg.size not in _SIZES:
    raise ValueError(f'size={arg.size!r} is not one of {list(_SIZES)}.')
  c = plan_path.get_config(f'size={arg.size},team={arg.team}')
  c.policies = arg.policies
  # Heads over four chips, groups and parameters over all others.
  num_chips = math.prod(map(int, arg.topology.partition(':')[2].split('x')))
  c.mesh.tensor = min(4, num_chips)
  c.mesh.fsdp = num_chips // c.mesh.tensor
  c.buckets.groups = (4 * c.mesh.fsdp,)
  with c.unlocked():
    c.compile_check = config_dict.ConfigDict()
    c.compile_check.topology = arg.topology
    (hidden_size, intermediate_size, num_layers, num_heads,
     tied_head) = _SIZES[arg.size]
    c.compile_check.dimensions = config_dict.ConfigDict({
        'vocab_size': 151936, 'hidden_size': hidden_size,
        'intermediate_size': intermediate_size, 'num_layers': num_layers,
        'num_heads': num_heads, 'num_kv_heads': 8,
        'head_dim': 128, 'rope_theta': 1e6, 'norm_eps': 1e-6,
        'tied_head': tied_head, 'max_positions': 40960, 'init_std': 0.02})
  return c
