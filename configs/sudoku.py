"""Sudoku: a team fills 4x4 grids.

  python -m atgrpo_jax.main --config configs/sudoku.py:size=nano \
      --workdir runs/sudoku

nano takes minutes on two CPU cores (docs/results.md). Qwen3 has not been run;
`paper/published.py` has the numbers of arXiv 2510.11062.
"""

from configs import common


def get_config(arg: str = ''):
  """Returns the config; `common.parse_arg` documents `arg`."""
  c = common.game_config('sudoku', arg)
  c.environment.options.size = 4
  return c.lock()
