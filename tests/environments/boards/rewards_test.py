"""Rewards of the board games: documented, bounded, and worth no exploit."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

from environments import env_api
from environments.boards import board_game
from environments.boards.plan_path import plan_path_dataset_builder
from environments.boards.sokoban import sokoban_dataset_builder
from environments.boards.sudoku import sudoku_dataset_builder
from tests.environments.boards import games

TURNS = 4
# The table of reward terms in the docstring.
TERMS = dict(re.findall(
    r'^  (\w+) +(team|decides|proposes) +\S', board_game.__doc__, re.MULTILINE))


@dataclasses.dataclass(frozen=True)
class Case:
  """A game with real tasks, and moves of all kinds."""

  game: games.Case  # With its options.
  tasks: list[env_api.Task]

  @property
  def size(self) -> int:
    """Rows of a Sudoku; 0 for other games."""
    return self.game.options.get('size', 0)

  def parts(self):
    """All parts of moves: steps, or (row, column, digit)."""
    size = range(self.size)
    return list(itertools.product(size, repeat=3)) or list('UDLR')

  def join(self, parts):
    if not self.size:
      return list(parts)
    rows = [[0] * self.size for _ in range(self.size)]
    for row, column, digit in parts:
      rows[row][column] = int(digit) + 1
    return rows

  def legal(self, rng, rules, board):
    """A random legal move that stops at the solution."""
    max_size = 6 if self.size else 20
    chosen, after, size = [], board, rng.integers(1, max_size + 1)
    for part in rng.permutation(self.parts() * (1 if self.size else size)):
      if len(chosen) == size or rules.solved(after):
        break
      then, illegal = rules.play(board, self.join([*chosen, part]))
      if not illegal and then != after:
        chosen.append(part)
        after = then
    return self.join(chosen)

  def uniform(self, rng):
    if self.size:
      return rng.integers(0, self.size + 1, (self.size, self.size)).tolist()
    return rng.choice(self.parts(), rng.integers(1, 21)).tolist()

  def illegal(self, rules, board):
    """A move with illegal parts only; None if there is none."""
    moves = (self.join([part]) for part in self.parts())
    return next((x for x in moves if rules.play(board, x)[1] == 1), None)

  def unchanged(self, rules, board):
    """A legal move that leaves the board unchanged; None if there is none."""
    if self.size:
      return [[0 if x == '.' else int(x) for x in row] for row in board.filled]
    return next((
        list(moves) for moves in ('UD', 'DU', 'LR', 'RL')
        if rules.play(board, tuple(moves)) == (board, 0)), None)


def _case(game, builder, *config, num_tasks, **options):
  case = games.CASES[game]
  return Case(
      dataclasses.replace(case, options=case.options | options),
      builder.make_splits(*config, {'test': num_tasks})['test'])


CASES = {
    'plan_path': _case('plan_path', plan_path_dataset_builder, num_tasks=60),
    'sokoban': _case(
        'sokoban', sokoban_dataset_builder, '1box', num_tasks=60),
    'sokoban of two boxes': _case(
        'sokoban', sokoban_dataset_builder, '2boxes', num_tasks=60),
    'sudoku': _case('sudoku', sudoku_dataset_builder, '4x4', num_tasks=20),
    'sudoku of nine': _case(
        'sudoku', sudoku_dataset_builder, '9x9', num_tasks=4, size=9),
}


def test_presets_weight_the_documented_terms():
  presets = board_game.REWARDS
  local = {name for name, kind in TERMS.items() if kind != 'team'}
  assert presets['mixed'].keys() == local
  assert presets['outcome'] == {}
  assert presets['outcome_and_plans'].keys() <= local


MALFORMED, ILLEGAL, EMPTY, UNCHANGED, UNIFORM, LEGAL = range(6)
OUTCOMES = {
    MALFORMED: env_api.Outcome.PARSE_ERROR, ILLEGAL: env_api.Outcome.NO_EFFECT,
    EMPTY: env_api.Outcome.NO_EFFECT, UNCHANGED: env_api.Outcome.NO_EFFECT}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_useless_moves_pay_less_than_random_play(case):
  environment = case.game.make('pair', max_turns=TURNS)
  rules, rng = environment.game, np.random.default_rng(0)
  moves = {
      MALFORMED: lambda board: None,
      ILLEGAL: lambda board: case.illegal(rules, board),
      EMPTY: lambda board: case.join([]),
      UNCHANGED: lambda board: case.unchanged(rules, board),
      UNIFORM: lambda board: case.uniform(rng),
      LEGAL: lambda board: case.legal(rng, rules, board),
  }
  rewards = {way: [] for way in moves}  # Episodes of [num_turns, 2 roles].
  for way, choose in moves.items():
    for task in case.tasks:
      if choose(rules.start(task)) is None and way is not MALFORMED:
        continue  # This board has no such move.
      state, episode, done = environment.reset(task), [], False
      while not done:
        states, steps = games.play(
            environment, state, [choose(state.board)] * 2)
        episode.append([
            step.team_reward + sum(step.local_rewards.values())
            for step in steps])
        for step, kinds in zip(steps, (['proposes'], ['team', 'decides'])):
          assert step.reward_terms.keys() == {
              term for term, kind in TERMS.items() if kind in kinds}
          assert all(-1 <= x <= 1 for x in step.reward_terms.values())
          outcome, = step.outcomes.values()
          assert state.turn or outcome is OUTCOMES.get(way, outcome)
        state, done = states[-1], steps[-1].done
      rewards[way].append(np.array(episode))
  for summarise in (lambda x: x[0], lambda x: x.sum(axis=0)):
    mean = {
        way: np.mean([summarise(x) for x in episodes], axis=0)
        for way, episodes in rewards.items()}
    for less, more in itertools.pairwise(
        (MALFORMED, ILLEGAL, EMPTY, UNIFORM, LEGAL)):
      assert (mean[less] < mean[more] - 1e-9).all(), (less, more)
    np.testing.assert_allclose(mean[EMPTY], mean[UNCHANGED])
  for episodes in rewards.values():  # Changes of a proposer's quality.
    for episode in episodes:
      episode[:, 0] = episode[:, 0].cumsum()
  worst = [
      np.concatenate(rewards[way]).min(axis=0)
      for way in moves if way != MALFORMED]
  assert (np.concatenate(rewards[MALFORMED]) < np.min(worst, axis=0)).all()


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_a_loop_pays_nothing(case):
  rng, num_loops = np.random.default_rng(0), 0
  environment = case.game.make('solo', max_turns=12)
  rules = environment.game
  for task in case.tasks[:20]:
    state, done = environment.reset(task), False
    boards, rewards = [state.board], []
    pool = [list(x) for x in ('', *'UDLR', 'UU', 'DD', 'RL', 'UDLR')]
    if case.size:
      pool = [
          case.join([]), case.illegal(rules, state.board),
          *(case.legal(rng, rules, state.board) for _ in range(2))]
    while not done:
      _, (step,) = games.play(
          environment, state, [pool[rng.integers(len(pool))]])
      state, done = step.state, step.done
      boards.append(state.board)
      rewards.append(step.local_rewards['solo'])
    for i, j in itertools.combinations(range(len(boards)), 2):
      if boards[i] == boards[j]:
        num_loops += 1
        assert sum(rewards[i:j]) <= 1e-12
  assert num_loops > 50
