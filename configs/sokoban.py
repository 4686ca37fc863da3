"""Sokoban: a team pushes boxes onto goals in 6x6 rooms.

  python -m atgrpo_jax.main --config configs/sokoban.py:size=nano \
      --workdir runs/sokoban

nano, minutes on two CPU cores: success on held-out tasks rises from 9.8 to
98.4 % (three seeds, paper/results/nano). Qwen3 has not been run; the paper
reports 10 % with 1.7B and 96 % with 8B (arXiv 2510.11062, one policy for all
roles).
"""

from configs import common


def get_config(arg: str = ''):
  """Returns the config; `common.parse_arg` documents `arg`."""
  return common.game_config('sokoban', arg).lock()
