"""Demonstrations of mixed quality for the warm start of a small model.

A base model that reinforcement learning can improve must be able to do the
right thing and mostly not do it. So each demonstration is one *kind* of
behaviour, spelled in one way; what is random is the kind. The first line of
every answer announces it, so that the choice is one early token and not a
spelling.

Program kinds (tool): `right` finds a shortest path; `greedy` steps towards
the goal and stops at the first wall in its way; `wrong` runs and prints moves
that ignore the walls, or mixes up the axes; `broken` does not run, or prints
no move list. Walk kinds (planner, solo): `adopt` copies the proposal; `ignore`
walks straight at the goal; `invent` makes up a path.
"""

from collections.abc import Mapping
import dataclasses
import json

import numpy as np

from environments import base
from environments import text
from environments.plan_path import env as plan_path
from environments.plan_path import maze
from environments.plan_path import prompts

_HEADER = '''\
import json, sys
maze = json.load(sys.stdin)
grid = maze["grid"]
start = tuple(maze["position"])
goal = tuple(maze["goal"])
moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
'''

_SEARCH = '''\
paths = {start: []}
queue = [start]
for row, column in queue:
  for move, (down, right) in moves.items():
    cell = (row + down, column + right)
    if cell in paths or min(cell) < 0 or max(cell) > 9:
      continue
    if grid[cell[0]][cell[1]] == "#":
      continue
    paths[cell] = paths[row, column] + [move]
    queue.append(cell)
print(json.dumps(paths[goal]))
'''

_GREEDY = '''\
path = []
row, column = start
while (row, column) != goal:
  if row != goal[0]:
    move = "D" if goal[0] > row else "U"
  else:
    move = "R" if goal[1] > column else "L"
  row += moves[move][0]
  column += moves[move][1]
  if grid[row][column] == "#":
    break
  path.append(move)
print(json.dumps(path))
'''

_STRAIGHT = '''\
down = goal[0] - start[0]
right = goal[1] - start[1]
path = ["D"] * down + ["U"] * -down
path += ["R"] * right + ["L"] * -right
print(json.dumps(path))
'''

_MIXED_UP = _STRAIGHT.replace('"D"', '"X"').replace('"R"', '"D"').replace(
    '"X"', '"R"').replace('"U"', '"X"').replace('"L"', '"U"').replace(
        '"X"', '"L"')

# (kind, first line of the answer, program)
PROGRAMS = (
    ('right', 'I search breadth first.', _HEADER + _SEARCH),
    ('greedy', 'I step towards the goal.', _HEADER + _GREEDY),
    ('wrong', 'I count rows and columns.', _HEADER + _STRAIGHT),
    ('wrong', 'I count columns and rows.', _HEADER + _MIXED_UP),
    ('broken', 'I search the grid.', _HEADER + _SEARCH.replace(
        'paths[goal]', 'path')),
    ('broken', 'I follow the moves.', _HEADER + _GREEDY.replace(
        'path = []\n', '')),
    ('broken', 'I print the path.', _HEADER + _STRAIGHT.replace(
        'print(json.dumps(path))', 'print("path", path)')),
)

_WALKS = {
    'adopt': 'I take over the proposal.',
    'ignore': 'I walk straight to the goal.',
    'invent': 'I try a path.',
}


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """Several answers to one prompt.

  Attributes:
    role: who answers.
    state: what the prompt was rendered from.
    messages: the prompt.
    completions: the answers.
    kinds: the kind of each answer.
  """

  role: str
  state: plan_path.State
  messages: list[base.Message]
  completions: tuple[str, ...]
  kinds: tuple[str, ...]


def demonstrate(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int, max_turns: int) -> Demonstration:
  """Draws a maze and `group_size` answers of `role` to it.

  `kinds` maps kinds to their probabilities. The proposal that a planner is
  shown is mostly a random move string: copying is learned only where the
  prompt gives no other hint of the answer. The role 'copyist' is a drill of
  that skill alone: a planner who is shown nothing but the proposal.
  """
  state = _random_state(rng, max_turns)
  if role == 'planner':
    state = dataclasses.replace(state, report=_random_report(rng, state))
  elif role == 'copyist':
    moves = _random_moves(rng, 1, 30)
    state = dataclasses.replace(
        state, report=plan_path.Report('', json.dumps(moves), '', moves))
  drawn = tuple(
      str(kind) for kind in rng.choice(
          list(kinds), size=group_size, p=list(kinds.values())))
  return Demonstration(
      role, state, _messages(state, role, max_turns),
      tuple(_completion(rng, kind, state) for kind in drawn), drawn)


def kind_of(demonstration: Demonstration, completion: str) -> str | None:
  """The kind of an answer to the same prompt, if it is spelled as it should.

  A copy must be exact. A straight walk counts as one when it is announced and
  its moves can be read; whether its count is right is not a matter of
  spelling.
  """
  if demonstration.role == 'tool':
    for kind, line, program in PROGRAMS:
      if completion == program_text(line, program):
        return kind
    return None
  for kind, line in _WALKS.items():
    if completion.startswith(line + '\n'):
      moves = plan_path.parse_moves(text.last_answer(completion))
      if kind == 'adopt' and (
          demonstration.state.report is None
          or moves != _proposal(demonstration.state)):
        return None
      return None if moves is None else kind
  return None


def program_text(line: str, program: str) -> str:
  return f'{line}\n```python\n{program}```'


def _messages(
    state: plan_path.State, role: str, max_turns: int) -> list[base.Message]:
  if role != 'copyist':
    return prompts.messages(state, role, max_turns)
  planner = prompts.messages(state, 'planner', max_turns)
  _, output, shown = planner[1]['content'].partition('Output:')
  return [{'role': 'user', 'content': output + shown}]


def _completion(
    rng: np.random.Generator, kind: str, state: plan_path.State) -> str:
  if kind not in _WALKS:
    same_kind = [p for p in PROGRAMS if p[0] == kind]
    _, line, program = same_kind[rng.integers(len(same_kind))]
    return program_text(line, program)
  if kind == 'adopt':
    moves = _proposal(state)
  elif kind == 'ignore':
    moves = _straight(state)
  else:
    moves = _random_moves(rng, 4, 12)
  return f'{_WALKS[kind]}\n#### {json.dumps(moves)}'


def _random_state(
    rng: np.random.Generator, max_turns: int) -> plan_path.State:
  task = maze.random_task(rng)
  return plan_path.State(
      task_id='', grid=tuple(task['grid']), position=tuple(task['start']),
      goal=tuple(task['goal']), turn=int(rng.integers(max_turns)))


def _random_report(
    rng: np.random.Generator, state: plan_path.State) -> plan_path.Report:
  """What a planner might be shown, without running a program."""
  kind, _, program = PROGRAMS[rng.integers(len(PROGRAMS))]
  if kind == 'broken':
    if 'print("path"' in program:
      output = f'path {list(_random_moves(rng, 4, 16))}\n'
      return plan_path.Report(program, output, '', None)
    error = "NameError: name 'path' is not defined"
    return plan_path.Report(program, '', error, None)
  if kind == 'wrong' and rng.random() < 0.5:
    moves = _straight(state)
  else:
    moves = _random_moves(rng, 1, 30)
  return plan_path.Report(program, json.dumps(moves) + '\n', '', moves)


def _proposal(state: plan_path.State) -> tuple[str, ...]:
  return state.report.moves or ()


def _random_moves(
    rng: np.random.Generator, low: int, high: int) -> tuple[str, ...]:
  size = rng.integers(low, high + 1)
  return tuple(str(move) for move in rng.choice(list('UDLR'), size=size))


def _straight(state: plan_path.State) -> tuple[str, ...]:
  down = state.goal[0] - state.position[0]
  right = state.goal[1] - state.position[1]
  return tuple(
      'D' * down + 'U' * -down + 'R' * right + 'L' * -right)
