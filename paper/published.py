"""What the AT-GRPO paper reports of the three games (arXiv 2510.11062).

Each table of it is row -> task -> success in per cent. A number that is not
known is left out.
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
