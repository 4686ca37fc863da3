"""Plan-Path: a team walks through 10x10 mazes.

  python -m atgrpo_jax.main --config configs/plan_path.py:size=nano \
      --workdir runs/plan_path

nano, minutes on two CPU cores: success on held-out tasks rises from 10.5 to
99.7 % (three seeds, paper/results/nano). Qwen3 has not been run; the paper
reports 96 % with 1.7B and 93 % with 8B (arXiv 2510.11062, one policy for all
roles).
"""

from configs import common


def get_config(arg: str = ''):
  """Returns the config; `common.parse_arg` documents `arg`."""
  return common.game_config('plan_path', arg).lock()
