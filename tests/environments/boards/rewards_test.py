"""rewards.py: the tables are true, and no useless answer beats random play."""

from collections.abc import Callable
import dataclasses
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest

from environments import env_api
from environments.boards import board_game
from environments.boards import rewards
from environments.boards.plan_path import env as plan_path
from environments.boards.plan_path import maze
from environments.boards.plan_path import plan_path_dataset_builder
from environments.boards.sokoban import env as sokoban
from environments.boards.sokoban import room
from environments.boards.sokoban import sokoban_dataset_builder
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import sudoku_dataset_builder
from environments.relay import env as relay
from tests.environments import echo_sandbox

TURNS = 4
MALFORMED, ILLEGAL, EMPTY, UNCHANGED, UNIFORM, LEGAL = range(6)

# The tables of reward terms, as the docstrings have them.
TERMS = dict(re.findall(
    r'^  (\w+) +(team|decides|proposes) +\S', rewards.__doc__, re.MULTILINE))
DECIDES, PROPOSES = re.search(
    r'^  (\w+) \((\w+)\)  ', sokoban.__doc__, re.MULTILINE).groups()
ORACLE_TERMS = {DECIDES: 'decides', PROPOSES: 'proposes'}


@dataclasses.dataclass(frozen=True)
class Case:
  """A game with tasks, and ways to play it.

  Attributes:
    game: its module.
    tasks: real ones.
    parts: of a board, what moves are made of.
    join: parts to a move.
    options: of its environment.
    longest: parts of a random move.
  """

  game: Any
  tasks: tuple[env_api.Task, ...]
  parts: Callable[[board_game.Board], list[Any]]
  join: Callable[[board_game.Board, list[Any]], Any]
  options: dict[str, int] = dataclasses.field(default_factory=dict)
  longest: int = 20

  def game_rewards(self) -> list[str]:
    """The presets with terms of each step."""
    return ['mixed', 'oracle'] if self.game is sokoban else ['mixed']

  def make(self, team: str, reward: str = 'mixed') -> board_game.BoardGame:
    return self.game.make_environment(
        team=team, max_turns=TURNS, reward=reward,
        sandbox=echo_sandbox.Echo(), **self.options)

  def legal(self, rng, rules, board, longest):
    """A random legal move of at most so many parts, up to the solution."""
    chosen, after = [], board
    for _ in range(rng.integers(1, longest + 1)):
      parts = [
          part for part in self.parts(board)
          if not rules.play(board, self.join(board, [*chosen, part]))[1]
          and part not in (chosen if self.game is sudoku else ())]
      if not parts or rules.solved(after):
        break
      chosen.append(parts[rng.integers(len(parts))])
      after, _ = rules.play(board, self.join(board, chosen))
    return self.join(board, chosen)

  def uniform(self, rng, board):
    if self.game is sudoku:
      size = len(board.clues)
      return rng.integers(0, size + 1, (size, size)).tolist()
    return rng.choice(list('UDLR'), rng.integers(1, self.longest + 1)).tolist()

  def illegal(self, rules, board):
    """A move whose parts are all illegal, if there is one."""
    for part in self.parts(board):
      move = self.join(board, [part])
      if rules.play(board, move)[1] == 1:
        return move
    return None

  def unchanged(self, rules, board):
    """A legal move that leaves the board as it was, if there is one."""
    if self.game is sudoku:
      return [
          [0 if digit == '.' else int(digit) for digit in row]
          for row in board.filled]
    for moves in ('UD', 'DU', 'LR', 'RL'):
      if rules.play(board, tuple(moves)) == (board, 0):
        return list(moves)
    return None


def _grid(board, digits):
  """A Sudoku move: (row, column, digit)s, and no other digit."""
  rows = [[0] * len(board.clues) for _ in board.clues]
  for row, column, digit in digits:
    rows[row][column] = digit
  return rows


def _digits(board):
  size = range(len(board.clues))
  return [(row, column, digit + 1) for row in size for column in size
          for digit in size if board.clues[row][column] != str(digit + 1)]


def _moves(board):
  del board
  return list('UDLR')


def _list(board, moves):
  del board
  return list(moves)


CASES = {
    'plan_path': Case(
        plan_path, tuple(plan_path_dataset_builder.make_splits(
            {'test': 100})['test']), _moves, _list),
    'sokoban': Case(
        sokoban, tuple(sokoban_dataset_builder.make_splits(
            '1box', {'test': 100})['test']), _moves, _list),
    'sokoban of two boxes': Case(
        sokoban, tuple(sokoban_dataset_builder.make_splits(
            '2boxes', {'test': 100})['test']), _moves, _list),
    'sudoku': Case(
        sudoku, tuple(sudoku_dataset_builder.make_splits(
            '4x4', {'test': 40})['test']), _digits, _grid, {'size': 4}, 6),
    'sudoku of nine': Case(
        sudoku, tuple(sudoku_dataset_builder.make_splits(
            '9x9', {'test': 4})['test']), _digits, _grid, {'size': 9}, 6),
}


def _text(role, move):
  if move is None:
    return 'I wait.'
  if board_game.kind_of(role) == 'tool':
    return f'```python\n{json.dumps(move)}\n```'
  return f'#### {json.dumps(move)}'


def _play(environment, task, choose):
  """What `choose(board)` pays the first role in each turn, and the outcomes.

  The others make the same move.
  """
  state, pays, outcomes = environment.reset(task), [], []
  while True:
    move = choose(state.board)
    for role in environment.roles:
      step = environment.step(state, {role: _text(role, move)})
      state = step.state
      if role == environment.roles[0]:
        pays.append(step.local_rewards[role] + step.team_reward)
        outcomes.append(step.outcomes[role])
    if step.done:
      return pays, outcomes


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
@pytest.mark.parametrize('team', board_game.TEAMS)
def test_steps_have_the_terms_of_the_tables(team, case):
  environment, rng = case.make(team), np.random.default_rng(0)
  terms = TERMS | (ORACLE_TERMS if case.game is sokoban else {})
  start = environment.reset(case.tasks[0])
  proposed = {name for name, kind in terms.items() if kind == 'proposes'}
  for move in (case.legal(rng, environment.game, start.board, 1), None):
    state = start
    for role in environment.roles:
      step = environment.step(state, {role: _text(role, move)})
      state = step.state
      decides = role == environment.roles[-1]
      assert step.reward_terms.keys() == (
          terms.keys() - proposed if decides else proposed)


@pytest.mark.parametrize('presets, terms', [
    pytest.param(rewards.REWARDS, TERMS, id='games'),
    pytest.param(sokoban.REWARDS, TERMS | ORACLE_TERMS, id='sokoban')])
def test_presets_weigh_the_local_terms_of_the_tables(presets, terms):
  # Bite: a term that no preset pays, a weight of a name that no step has.
  local = {name for name, kind in terms.items() if kind != 'team'}
  assert set().union(*presets.values()) == local
  assert presets['mixed'].keys() == TERMS.keys() & local
  assert presets['outcome_and_plans'].keys() == {'plan_solved'}


@pytest.mark.parametrize('module', [rewards, sokoban, relay])
def test_in_the_preset_outcome_no_environment_pays_a_role(module):
  assert module.REWARDS['outcome'] == {}


@pytest.mark.parametrize('team', ['solo', 'pair'])
@pytest.mark.parametrize('case, reward', [
    pytest.param(case, reward, id=f'{name}, {reward}')
    for name, case in CASES.items() for reward in case.game_rewards()])
def test_no_useless_answer_pays_more_than_random_play(case, team, reward):
  # Bite: an idle term that is 0, or that `illegal` or `malformed` outweighs.
  environment = case.make(team, reward)
  rules, rng = environment.game, np.random.default_rng(0)
  ways = {
      MALFORMED: lambda board: None,
      ILLEGAL: lambda board: case.illegal(rules, board),
      EMPTY: lambda board: case.join(board, []),
      UNCHANGED: lambda board: case.unchanged(rules, board),
      UNIFORM: lambda board: case.uniform(rng, board),
      LEGAL: lambda board: case.legal(rng, rules, board, case.longest),
  }
  expected = {
      MALFORMED: env_api.Outcome.PARSE_ERROR,
      ILLEGAL: env_api.Outcome.NO_EFFECT,
      EMPTY: env_api.Outcome.NO_EFFECT, UNCHANGED: env_api.Outcome.NO_EFFECT}
  first, episode, least = {}, {}, 0.0
  for way, choose in ways.items():
    first[way], episode[way] = [], []
    for task in case.tasks:
      if choose(rules.start(task)) is None and way is not MALFORMED:
        continue  # Walled in, or no wall near.
      pays, outcomes = _play(environment, task, choose)
      first[way].append(pays[0])
      episode[way].append(sum(pays))
      assert outcomes[0] is expected.get(way, outcomes[0])
      least = min(least, *pays) if way is not MALFORMED else least
  for pays in (first, episode):
    mean = {way: np.mean(values) for way, values in pays.items()}
    assert mean[MALFORMED] < mean[ILLEGAL] < mean[EMPTY]
    assert mean[EMPTY] == pytest.approx(mean[UNCHANGED])
    assert mean[EMPTY] < mean[UNIFORM] < mean[LEGAL]
  assert np.max(first[MALFORMED]) < least


@pytest.mark.parametrize('presets', [rewards.REWARDS, sokoban.REWARDS])
def test_no_preset_pays_a_move_less_than_a_malformed_answer(presets):
  for weights in presets.values():
    for prefix in ('', 'plan_'):
      names = [f'{prefix}{name}' for name in (
          'malformed', 'progress', 'idle', 'illegal', 'deadlock')]
      malformed, progress, idle, *others = (
          weights.get(name, 0.0) for name in names)
      # An idle move makes no progress.
      assert malformed >= max(progress, idle) + sum(others) - 1e-12


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_a_loop_over_turns_pays_at_most_nothing(case):
  """Walking to and fro, erasing and writing again, rewriting the same."""
  rng, loops = np.random.default_rng(0), 0
  environment = dataclasses.replace(case.make('solo'), max_turns=12)
  rules = environment.game
  for task in case.tasks[:20]:
    start = rules.start(task)
    if case.game is sudoku:
      pool = [
          case.join(start, []), case.illegal(rules, start),
          *(case.legal(rng, rules, start, 3) for _ in range(2)),
          case.uniform(rng, start)]
    else:
      pool = [list(moves) for moves in ('', *'UDLR', 'UU', 'DD', 'RL', 'UDLR')]
    state, boards, pays = environment.reset(task), [start], []
    total = 0.0
    while True:
      move = pool[rng.integers(len(pool))]
      step = environment.step(state, {'solo': _text('solo', move)})
      state = step.state
      boards.append(state.board)
      pays.append(step.local_rewards['solo'])
      total += step.reward_terms['progress']
      if step.done:
        break
    assert total == pytest.approx(rules.progress(start, state.board))
    for i, j in itertools.combinations(range(len(boards)), 2):
      if boards[i] == boards[j]:
        loops += 1
        assert sum(pays[i:j]) <= 1e-12
  assert loops > 50


@pytest.mark.parametrize('team', ['solo', 'pair'])
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_what_stands_behind_the_solution_changes_nothing(case, team):
  # Bite: `illegal` as a share of all parts of the move.
  rng, seen = np.random.default_rng(0), 0
  environment = case.make(team)
  role, rules = environment.roles[0], environment.game
  for task in case.tasks[:30]:
    state = environment.reset(task)
    for moves, longer in _with_junk(case, rng, rules, task, state.board):
      steps = [
          environment.step(state, {role: _text(role, move)})
          for move in (moves, longer)]
      assert moves != longer
      for step in steps:
        terms = step.reward_terms
        assert terms.get('solved', terms.get('plan_solved')) == 1
      assert steps[0].reward_terms == steps[1].reward_terms
      assert steps[0].local_rewards == steps[1].local_rewards
      assert steps[0].outcomes == steps[1].outcomes
      seen += steps[0].outcomes[role] is env_api.Outcome.ILLEGAL_ACTION
  assert seen


def _with_junk(case, rng, rules, task, board):
  """Solutions, right and with an illegal part, and each with junk behind."""
  if case.game is sudoku:
    rows = [[int(digit) for digit in row] for row in task['solution']]
    size = len(rows)
    cells = list(''.join(board.clues))
    last = len(cells) - 1 - cells[::-1].index('.')
    clues = [i for i, digit in enumerate(cells) if digit != '.']
    junk = [i for i in clues if i > last]
    for early in ([], [i for i in clues if i < last][:1]):
      given = [[*row] for row in rows]
      for i in early:
        given[i // size][i % size] = given[i // size][i % size] % size + 1
      longer = [[*row] for row in given]
      for i in junk:
        longer[i // size][i % size] = longer[i // size][i % size] % size + 1
      if junk:
        yield given, longer
    return
  if case.game is sokoban:
    moves = room.solve(board.grid, board.player, board.boxes, board.goals)
  else:
    moves, after = [], board
    while not rules.solved(after):
      tried = {move: rules.play(after, (move,))[0] for move in 'UDLR'}
      moves.append(min(tried, key=lambda move: maze.shortest_path_length(
          board.grid, tried[move].position, board.goal)))
      after = tried[moves[-1]]
  wrong = case.illegal(rules, board) or []
  for solution in (moves, [*wrong, *moves]):
    yield solution, [*solution, *rng.choice(list('UDLR'), 20).tolist()]
