"""Plan-Path: a team walks through 10x10 mazes.

  python -m atgrpo_jax.main --config configs/plan_path.py:size=nano \
      --workdir runs/plan_path
"""

from configs import common


def get_config(arg: str = ''):
  """For `arg`, see `common.game_config`."""
  c = common.game_config('plan_path', arg)
  c.lock()
  return c
