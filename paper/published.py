"""What the papers report; a number that is not known is left out.

The tables of AT-GRPO (arXiv 2510.11062) are row -> task -> success in per cent.
"""

# Table 1: all systems with Qwen3-1.7B.
_TABLE_1 = {
    'SA': {'plan_path': 5, 'sokoban': 0, 'sudoku': 7},
    'SA+GRPO': {'plan_path': 11, 'sokoban': 3, 'sudoku': 29},
    'MAS': {'plan_path': 10, 'sokoban': 0, 'sudoku': 69},
    'shared': {'plan_path': 96, 'sokoban': 10, 'sudoku': 99},
    'per role': {'plan_path': 97, 'sokoban': 11.5, 'sudoku': 99},
}

# Table 2: all systems with Qwen3-8B.
_TABLE_2 = {
    'SA': {'plan_path': 12, 'sokoban': 9, 'sudoku': 48},
    'SA+GRPO': {'plan_path': 47, 'sokoban': 14, 'sudoku': 54},
    'MAS': {'plan_path': 71, 'sokoban': 16, 'sudoku': 72},
    'MAS+GRPO': {'plan_path': 96, 'sokoban': 30, 'sudoku': 99},
    'shared': {'plan_path': 93, 'sokoban': 96, 'sudoku': 99.5},
    'per role': {'plan_path': 96, 'sokoban': 98, 'sudoku': 99},
}

# Table 4: roles trained apart, combined, and swapped, with Qwen3-1.7B.
_TABLE_4 = {
    'only_tool': {'plan_path': 11},
    'only_planner': {'plan_path': 14.5},
    'combined': {'plan_path': 16},
    'swapped': {'plan_path': 6},
}

# Table 6: nothing but the outcome pays, with Qwen3-8B.
_TABLE_6 = {'outcome': {'plan_path': 89, 'sokoban': 93, 'sudoku': 99.5}}

# Row -> task -> success in per cent.
QWEN3_1_7B = _TABLE_1 | _TABLE_4
QWEN3_8B = _TABLE_2 | _TABLE_6

# Return in per cent: of MAGRPO's paper, and of all rows in the paper of its
# authors on critics; and the response time there. Qwen3-1.7B, a single agent
# Qwen3-4B. The window of arXiv's reward is not told.
_MAGRPO_TLDR = {'MAGRPO': '94.5'}
_MAGRPO_ARXIV = {
    'Single agent': '44.9', 'Parallel generation': '59.6', 'MAGRPO': '93.1'}
_CRITICS = {
    'Single agent': ('30.3', '5.0', '44.0', '5.1'),
    'Parallel generation': ('22.7', '2.3', '49.0', '2.3'),
    'Sequential pipeline': ('21.7', '4.3', '57.0', '3.9'),
    'One-round discussion': ('22.3', '4.6', '54.3', '4.8'),
    'Single agent + GRPO': ('91.7', '4.1', '91.0', '4.2'),
    'IAC': ('95.4', '1.9', '94.1', '2.0'),
    'MAAC': ('95.2', '1.8', '95.0', '1.9'),
    'MAGRPO': ('93.5', '1.8', '93.1', '2.0'),
}


def _of_critics(tldr: int, arxiv: int) -> dict[str, dict[str, str]]:
  """Kind -> row -> the number in these columns of `_CRITICS`."""
  return {
      kind: {row: numbers[column] for row, numbers in _CRITICS.items()}
      for kind, column in (
          ('tldr', tldr), ('arxiv_a', arxiv), ('arxiv_b', arxiv))}


# Column of our tables -> kind -> row -> number.
WRITING = {
    'arXiv 2508.04652, return %': {
        'tldr': _MAGRPO_TLDR,
        'arxiv_a': _MAGRPO_ARXIV, 'arxiv_b': _MAGRPO_ARXIV},
    'arXiv 2601.21972, return %': _of_critics(0, 2),
    'arXiv 2601.21972, response s': _of_critics(1, 3),
}
