"""Sokoban: a team pushes boxes onto goals in 6x6 rooms.

  python -m atgrpo_jax.main --config configs/sokoban.py:size=nano \
      --workdir runs/sokoban

nano takes minutes on two CPU cores (docs/results.md). Qwen3 has not been run;
`paper/published.py` has the numbers of arXiv 2510.11062.
"""

from configs import common


def get_config(arg: str = ''):
  """Returns the config; `common.parse_arg` documents `arg`."""
  return common.game_config('sokoban', arg).lock()
