"""Prompts of a team that solves mathematical problems, in our own words."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from environments import env_api
from environments import text as text_lib

# Bytes shown to the other role, and to the same role in later turns. Only the
# answers of turns before the previous one are shown.
SHOWN_PROGRAM, SHOWN_OUTPUT, SHOWN_ERROR = 1500, 400, 200
SHOWN_REASONING, SHOWN_ANSWER = 1000, 100

_BOX = (
    'Put your final answer into \\boxed{}; separate several values by commas.')
SYSTEM = {
    'tool': (
        'You are the tool agent of a team that solves a problem. Write one '
        'Python program in a ```python block that computes the answer and '
        'prints it, and nothing else, on its last line. The reasoner sees its '
        'output.'),
    'reasoner': (
        'You are the reasoner of a team that solves a problem. The tool agent '
        'wrote a program. Check its output, and decide yourself. ' + _BOX),
    'solo': 'Solve the problem. ' + _BOX,
}
_DIFFERENT = (
    'The answers were not the same. Find out which is right, or find a better '
    'one.')
_AGAIN = 'Check your answer, and correct it or repeat it.'


@dataclasses.dataclass(frozen=True)
class Attempt:
  """An action of a role.

  Attributes:
    answer: None if there is no box or printed line.
    quality: weighted reward terms, see `rewards.py`.
    text: the program of a tool; the reply of another role.
    output: stdout of the program.
    error: the last line of its stderr, if the program failed.
  """

  role: str
  answer: str | None
  quality: float = 0.0
  text: str = ''
  output: str = ''
  error: str = ''


def messages(
    role: str, problem: str, turn: int, max_turns: int,
    attempts: Sequence[Attempt], num_roles: int) -> list[env_api.Message]:
  """Builds the prompt of a role.

  Args:
    role: 'tool', 'reasoner' or 'solo'.
    problem: text of the data set.
    turn: number of finished turns.
    max_turns: turns before an episode is truncated.
    attempts: of all turns, in order.
    num_roles: attempts per turn.
  """
  parts = [f'Problem:\n{problem}']
  for number in range(turn):
    parts.append(f'Turn {number + 1}:')
    start = number * num_roles
    report = _report if number == turn - 1 else _answer
    parts += map(report, attempts[start:start + num_roles])
  if turn:
    parts.append(_AGAIN if num_roles == 1 else _DIFFERENT)
  if max_turns > 1:
    parts.append(f'Turn {turn + 1} of {max_turns}.')
  parts += map(_report, attempts[turn * num_roles:])
  return [
      {'role': 'system', 'content': SYSTEM[role]},
      {'role': 'user', 'content': '\n'.join(parts)}]


def _answer(attempt: Attempt) -> str:
  subject, verb = (
      ('program', 'printed') if attempt.role == 'tool' else
      (attempt.role, 'answered'))
  answer = 'nothing' if attempt.answer is None else (
      text_lib.shorten(attempt.answer, SHOWN_ANSWER))
  return f'The {subject} {verb} {answer}.'


def _report(attempt: Attempt) -> str:
  if attempt.role != 'tool':
    shown = text_lib.shorten(attempt.text.strip(), SHOWN_REASONING)
    return f'{_answer(attempt)}\n{shown}'
  if not attempt.text:
    return 'The tool agent wrote no program.'
  program = text_lib.shorten(attempt.text, SHOWN_PROGRAM).rstrip()
  lines = [f'Program of the tool agent:\n```python\n{program}\n```']
  if attempt.error:
    lines.append(f'It failed: {text_lib.shorten(attempt.error, SHOWN_ERROR)}')
  output = text_lib.shorten(attempt.output, SHOWN_OUTPUT).rstrip()
  lines.append(f'Output:\n{output}')
  return '\n'.join(lines)
