"""Numbers that the papers report; unknown numbers are left out."""

# Columns of tables 1 and 2 of AT-GRPO (arXiv 2510.11062).
_TASKS = (
    'sudoku', 'sokoban', 'plan_path', 'livecodebench', 'apps', 'code_contests',
    'aime24', 'aime25', 'olympiadbench')


def _table(rows: dict[str, str]) -> dict[str, dict[str, str]]:
  """Row -> task -> success in percent; - is unknown."""
  return {
      name: {task: number for task, number in zip(_TASKS, text.split())
             if number != '-'}
      for name, text in rows.items()}


_QWEN3_1_7B = _table({
    # Table 1.
    'SA': '7 0 5 11.6 16.2 3.6 13.4 9.8 22.2',
    'SA+GRPO': '29 3 11 18.8 17 3 10 6.7 23.8',
    'MAS': '69 0 10 19 16.6 3.6 13.3 13 35.9',
    'shared': '99 10 96 20.9 17.6 4.8 16.7 16.7 39.6',
    'per role': '99 11.5 97 24 18.6 7.8 13.3 18.3 35.2',
    # Table 4: roles trained apart, combined, and swapped.
    'only_tool': '- - 11',
    'only_planner': '- - 14.5',
    'combined': '- - 16',
    'swapped': '- - 6',
})
_QWEN3_8B = _table({
    # Table 2.
    'SA': '48 9 12 22.8 30.2 15.75 18.3 20 55',
    'SA+GRPO': '54 14 47 25.7 37 12.12 18.3 26.67 54.8',
    'MAS': '72 16 71 28 44.4 17.6 36.6 30 56.5',
    'MAS+GRPO': '99 30 96 24.2 - 10.3 33.3 - 53.2',
    'shared': '99.5 96 93 30.28 45.8 18.1 50 35.2 56.8',
    'per role': '99 98 96 33.1 46.5 18.1 57 40 56.6',
    # Table 6: outcome rewards only.
    'outcome': '99.5 93 89',
})


def qwen3_success(row: str, task: str) -> list[str]:
  """Success with Qwen3-1.7B and with Qwen3-8B, '' if unknown."""
  return [
      table.get(row, {}).get(task, '') for table in (_QWEN3_1_7B, _QWEN3_8B)]


# Returns in percent with Qwen3-1.7B (Qwen3-4B for a single agent), from
# MAGRPO's paper and from its authors' paper on critics (arXiv 2601.21972).
# Neither states the window of arXiv's reward.
_ARXIV_KINDS = ('arxiv_a', 'arxiv_b')
_MAGRPO_ARXIV = {
    'Single agent': '44.9', 'Parallel generation': '59.6', 'MAGRPO': '93.1'}
# Row -> return on TL;DR, response seconds there, and both on arXiv.
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
_RETURN, _SECONDS, _ARXIV_RETURN, _ARXIV_SECONDS = (
    dict(zip(_CRITICS, column)) for column in zip(*_CRITICS.values()))

# Task -> column -> kind -> row -> number. The sources do not say whether 53.9
# is the return with one turn or two.
JOINT = {
    'writing': {
        'arXiv 2508.04652, return %': {
            'tldr': {'Single agent': '36.7', 'MAGRPO': '94.5'},
            **dict.fromkeys(_ARXIV_KINDS, _MAGRPO_ARXIV)},
        **{f'arXiv 2508.04652, {name} %': {'tldr': {'MAGRPO': number}}
           for name, number in (
               ('structure', '98.7'), ('style', '> 95'),
               ('coherence', '78.5'))},
        'arXiv 2601.21972, return %': {
            'tldr': _RETURN, **dict.fromkeys(_ARXIV_KINDS, _ARXIV_RETURN)},
        'arXiv 2601.21972, response s': {
            'tldr': _SECONDS, **dict.fromkeys(_ARXIV_KINDS, _ARXIV_SECONDS)}},
    'functions': {
        'arXiv 2508.04652, return with one turn %': {
            'humaneval': {'Parallel generation': '53.9', 'MAGRPO': '83.7'}},
        **{f'arXiv 2508.04652, {name} with two turns %': {
            'humaneval': {'MAGRPO': humaneval},
            'coop_humaneval': {'MAGRPO': coop_humaneval}}
           for name, humaneval, coop_humaneval in (
               ('return', '86.7', '88.5'), ('tests', '68.4', '75.0'),
               ('cooperation', '84.9', '86.3'))}},
}
