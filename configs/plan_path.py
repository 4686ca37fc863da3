"""Plan-Path: a team walks through 10x10 mazes.

  python -m atgrpo_jax.main --config configs/plan_path.py:size=nano \
      --workdir runs/plan_path

nano takes minutes on two CPU cores (docs/results.md). Qwen3 has not been run;
`paper/published.py` has the numbers of arXiv 2510.11062.
"""

from configs import common


def get_config(arg: str = ''):
  """Returns the config; `common.parse_arg` documents `arg`."""
  return common.game_config('plan_path', arg).lock()
