"""Sokoban: a team pushes boxes onto goals in 6x6 rooms.

  python -m atgrpo_jax.main --config configs/sokoban.py:size=nano \
      --workdir runs/sokoban
"""

from configs import common


def get_config(arg: str = ''):
  """For `arg`, see `common.game_config`."""
  c = common.game_config('sokoban', arg)
  c.lock()
  return c
