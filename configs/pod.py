"""Qwen3 on a TPU slice or GPUs: Plan-Path with the shapes of AT-GRPO's paper.

  python -m atgrpo_jax.main --mode compile_check \
      --config configs/pod.py:size=1.7b,topology=v5e:4x4

says, on any machine with the extra `compile`, whether the run fits the slice;
with the extra `gpu`, topology=h100:8 is a node of GPUs. On the slice itself,
`launch/tpu_pod.sh` trains with the same config.
"""

from configs import common
from configs import plan_path
from configs import slices


def get_config(arg: str = ''):
  """`size`, `topology`, `team`; `policies` as in common.py."""
  arg = common.parse_arg(
      arg, size='1.7b', topology='v5e:4x4', team='pair', policies='shared')
  c = plan_path.get_config(f'size={arg.size},team={arg.team}')
  c.policies = arg.policies
  slices.put_on_slice(c, arg.size, arg.topology)
  return c
