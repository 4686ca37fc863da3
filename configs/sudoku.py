"""Sudoku: a team fills 4x4 grids.

  python -m atgrpo_jax.main --config configs/sudoku.py:size=nano \
      --workdir runs/sudoku
"""

from configs import common


def get_config(arg: str = ''):
  """For `arg`, see `common.game_config`."""
  c = common.game_config('sudoku', arg)
  c.environment.options.size = 4
  c.lock()
  return c
