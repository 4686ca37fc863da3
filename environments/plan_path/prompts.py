"""What the agents of Plan-Path are shown. Every model gets the same text."""

import json

from environments import base
from environments import text

# A program may print 64 KiB; an agent is shown this many characters of it.
SHOWN_OUTPUT = 600

_ANSWER_FORMAT = (
    'End with one line that holds #### and a JSON list of moves, such as '
    '#### ["U", "R"].')

_SYSTEM = {
    'tool': (
        'You are the tool agent of a team that walks through a maze. Write '
        'one Python program in a ```python block. It reads the maze as JSON '
        'from stdin, {"grid": [rows], "position": [row, column], "goal": '
        '[row, column]}, and prints a JSON list of moves that leads to the '
        'goal, such as ["U", "R"]. The planner sees its output.'),
    'planner': (
        'You are the planner of a team that walks through a maze. The tool '
        'agent wrote a program that proposes moves. Check the proposal, then '
        'take it over or decide yourself. Your moves are walked. '
        + _ANSWER_FORMAT),
    'solo': (
        'You walk through a maze alone. Your moves are walked. '
        + _ANSWER_FORMAT),
}

_RULES = (
    'U is one row up, D down, L one column left, R right. # is a wall, A is '
    'you, G is the goal. A move into a wall or off the grid does nothing.')


def messages(state, role: str, max_turns: int) -> list[base.Message]:
  """The chat messages for `role` in `state`."""
  parts = [_RULES, _maze(state), _situation(state, max_turns)]
  if role == 'planner':
    parts.append(_tool_report(state.report))
  return [
      {'role': 'system', 'content': _SYSTEM[role]},
      {'role': 'user', 'content': '\n'.join(parts)},
  ]


def _maze(state) -> str:
  rows = [list(row) for row in state.grid]
  rows[state.goal[0]][state.goal[1]] = 'G'
  rows[state.position[0]][state.position[1]] = 'A'
  return '\n'.join(''.join(row) for row in rows)


def _situation(state, max_turns: int) -> str:
  return (
      f'Turn {state.turn + 1} of {max_turns}. '
      f'Position: {json.dumps(state.position)}. '
      f'Goal: {json.dumps(state.goal)}.')


def _tool_report(report) -> str:
  if report.program is None:
    return 'The tool agent wrote no program.'
  lines = [f'Program of the tool agent:\n```python\n{report.program}```']
  if report.error:
    lines.append(f'It failed: {text.shorten(report.error, SHOWN_OUTPUT)}')
  lines.append(f'Output:\n{text.shorten(report.output, SHOWN_OUTPUT).rstrip()}')
  if report.moves is None:
    lines.append('Proposed moves: none')
  else:
    lines.append(f'Proposed moves: {json.dumps(report.moves)}')
  return '\n'.join(lines)
