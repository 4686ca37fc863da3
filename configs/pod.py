"""Qwen3 on a TPU slice or GPUs: Plan-Path with the shapes of AT-GRPO's paper.

  python -m atgrpo_jax.main --mode compile_check \
      --config configs/pod.py:size=1.7b,topology=v5e:4x4

reports whether the run fits the slice, on any machine with the extra `compile`.
With the extra `gpu`, topology=h100:8 is a node of GPUs. `launch/tpu_pod.sh`
trains on the slice with the same config.
"""

from configs import common
from configs import plan_path
from configs import slices


def get_config(arg: str = ''):
  """Builds the config from `size`, `topology`, `team` and `policies`."""
  arg = common.parse_arg(
      arg, size='1.7b', topology='v5e:4x4', team='pair', policies='shared')
  c = plan_path.get_config(f'size={arg.size},team={arg.team}')
  c.policies = arg.policies
  slices.put_on_slice(c, arg.size, arg.topology)
  return c
