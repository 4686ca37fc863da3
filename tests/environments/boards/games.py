"""Cases of the board games for tests: tasks and moves of known effect."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any

from environments import env_api
from environments.boards import board_game
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from tests.environments import echo_sandbox

_ECHO = echo_sandbox.Echo()


@dataclasses.dataclass(frozen=True)
class Case:
  """A game with a task."""

  module: Any  # The module of the environment.
  task: env_api.Task  # The fields of a row that the environment reads.
  malformed: Sequence[str]  # JSON values that are not moves.
  # Options of the environment.
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def make(
      self, team: str, max_turns: int = 2, sandbox: Any = _ECHO
  ) -> board_game.BoardGame:
    return self.module.make_environment(
        team=team, max_turns=max_turns, reward='mixed', sandbox=sandbox,
        **self.options)

  def solve(self, task: env_api.Task) -> Any:
    """Returns a move that solves any task."""
    if 'solution' in task:
      return [[*map(int, row)] for row in task['solution']]
    rules = self.make('solo').game
    return search(rules, rules.start(task))


def act(role: str, move: Any) -> str:
  """The text with which a role plays or proposes a move; None waits."""
  if move is None:
    return 'I wait.'
  move = json.dumps(move if isinstance(move, (list, tuple)) else [*move])
  if board_game.kind_of(role) == 'tool':
    return f'```python\n{move}\n```'
  return f'#### {move}'


def play(
    environment: board_game.BoardGame, state: board_game.State,
    moves: Sequence[Any]) -> tuple[list[board_game.State], list[env_api.Step]]:
  """Plays a turn with one move per role; returns all states and steps."""
  states, steps = [state], []
  for role, move in zip(environment.roles, moves, strict=True):
    steps.append(environment.step(states[-1], {role: act(role, move)}))
    states.append(steps[-1].state)
  return states, steps


def search(
    rules: board_game.GridGame, start: board_game.Board,
    walks_are_free: bool = False) -> tuple[str, ...] | None:
  """A cheapest solution, without free walks; None if there is none.

  Every direction costs 1. In Sokoban, walks without a push may be free.
  """
  queue, done = collections.deque([(start, ())]), set()
  while queue:  # Sorted by cost.
    board, path = queue.popleft()
    if rules.solved(board):
      return path
    if board in done:
      continue
    done.add(board)
    for direction in board_game.DELTAS:
      after = rules.go(board, direction)
      if after is not None and walks_are_free and after.boxes == board.boxes:
        queue.appendleft((after, path))
      elif after is not None:
        queue.append((after, (*path, direction)))
  return None


_NO_MOVES = (
    '"UDLR"', '["u"]', '["UD"]', '["X"]', '[1]', '[["U"]]', '{"moves": []}',
    '[null]', '3', 'true', json.dumps(['U'] * 101))
_BLANK = ', [0, 0, 0, 0]' * 3

CASES = {
    'plan_path': Case(
        plan_path, {
            'task_id': 'maze', 'grid': ['.' * 10] * 10, 'start': [0, 0],
            'goal': [1, 1]}, _NO_MOVES),
    'sokoban': Case(
        sokoban, {
            'task_id': 'room', 'grid': ['.' * 6] * 6, 'player': [0, 0],
            'boxes': [[1, 1]], 'goals': [[3, 1]]}, _NO_MOVES),
    'sudoku': Case(
        sudoku, {'task_id': 'grid', 'board': ['1.3.', '..12', '2.4.', '...1']},
        ('[]', '[[1, 2, 3, 4]]', '{}', '1234', '[1, 2, 3, 4]',
         '[[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]',
         '["1234", "1234", "1234", "1234"]', *(
             f'[[{cell}, 0, 0, 0]{_BLANK}]'
             for cell in ('5', '-1', '1.0', 'true', 'null'))),
        {'size': 4}),
}
