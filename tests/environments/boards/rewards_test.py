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

# The table of reward terms in the docstring.
TERMS = dict(re.findall(
    r'^  (\w+) +(team|decides|proposes) +\S', board_game.__doc__, re.MULTILINE))
MALFORMED, ILLEGAL, EMPTY, UNIFORM, LEGAL = range(5)
OUTCOMES = {
    MALFORMED: env_api.Outcome.PARSE_ERROR, ILLEGAL: env_api.Outcome.NO_EFFECT,
    EMPTY: env_api.Outcome.NO_EFFECT}


def test_presets_weight_the_documented_terms():
  presets = board_game.REWARDS
  local = {name for name, kind in TERMS.items() if kind != 'team'}
  assert presets['mixed'].keys() == local
  assert presets['outcome'] == {}
  assert presets['outcome_and_plans'].keys() <= local


class Player:
  """Draws moves of all kinds. `size` is that of a Sudoku; 0 for other games."""

  def __init__(self, rules, size):
    self.rules, self.size = rules, size
    self.rng = np.random.default_rng(0)
    # All parts of moves: steps, or (row, column, digit).
    self.parts = list(itertools.product(range(size), repeat=3)) or list('UDLR')

  def join(self, parts):
    if not self.size:
      return list(parts)
    rows = np.zeros((self.size, self.size), int)
    for row, column, digit in parts:
      rows[row, column] = digit + 1
    return rows.tolist()

  def choose(self, way, board):
    """A move; None waits."""
    return {
        MALFORMED: lambda board: None, ILLEGAL: self.illegal,
        EMPTY: lambda board: self.join([]), UNIFORM: self.uniform,
        LEGAL: self.legal}[way](board)

  def illegal(self, board):
    """A move with illegal parts only; None if there is none."""
    moves = (self.join([part]) for part in self.parts)
    return next(
        (move for move in moves if self.rules.play(board, move)[1] == 1), None)

  def uniform(self, board):
    del board
    if self.size:
      return self.rng.integers(
          self.size, size=2 * (self.size,), endpoint=True).tolist()
    return self.rng.choice(self.parts, self.rng.integers(1, 21)).tolist()

  def legal(self, board):
    """A legal move that stops at the solution."""
    chosen, after = [], board
    size = self.rng.integers(1, 7 if self.size else 21)
    for part in self.rng.permutation(
        self.parts * (1 if self.size else size)).tolist():
      if len(chosen) == size or self.rules.solved(after):
        break
      then, illegal = self.rules.play(board, self.join([*chosen, part]))
      if not illegal and then != after:
        chosen.append(part)
        after = then
    return self.join(chosen)


@pytest.mark.parametrize('game, builder, config, num_tasks, options', [
    ('plan_path', plan_path_dataset_builder, (), 60, {}),
    ('sokoban', sokoban_dataset_builder, ('1box',), 60, {}),
    ('sokoban', sokoban_dataset_builder, ('2boxes',), 60, {}),
    ('sudoku', sudoku_dataset_builder, ('4x4',), 20, {'size': 4}),
    ('sudoku', sudoku_dataset_builder, ('9x9',), 20, {'size': 9})])
def test_useless_moves_pay_less_than_random_play(
    game, builder, config, num_tasks, options):
  environment = dataclasses.replace(
      games.CASES[game], options=options).make('pair', max_turns=4)
  player = Player(environment.game, options.get('size', 0))
  tasks = builder.make_splits(*config, {'test': num_tasks})['test']
  # Episodes of [num_turns, 2 roles].
  rewards = {way: [] for way in range(5)}
  for way, episodes in rewards.items():
    for task in tasks:
      state, episode, done = environment.reset(task), [], False
      start, total_progress = state.board, 0.0
      if way == ILLEGAL and player.illegal(start) is None:
        continue
      while not done:
        states, steps = games.play(
            environment, state, [player.choose(way, state.board)] * 2)
        episode.append([
            step.team_reward + sum(step.local_rewards.values())
            for step in steps])
        for step, kinds in zip(steps, (['proposes'], ['team', 'decides'])):
          assert step.reward_terms.keys() == {
              term for term, kind in TERMS.items() if kind in kinds}
          assert all(-1 <= x <= 1 for x in step.reward_terms.values())
          outcome, = step.outcomes.values()
          assert state.turn or outcome is OUTCOMES.get(way, outcome)
        terms = steps[1].reward_terms
        total_progress += terms['progress']
        assert max(terms['idle'], terms['illegal'], terms['malformed']) <= 0
        state, done = states[-1], steps[-1].done
      # A loop pays nothing.
      assert total_progress == pytest.approx(
          environment.game.progress(start, state.board))
      episodes.append(np.array(episode))
  for summarise in (lambda x: x[0], lambda x: x.sum(axis=0)):
    mean = [
        np.mean([summarise(x) for x in episodes], axis=0)
        for episodes in rewards.values()]
    for less, more in itertools.pairwise(mean):
      assert (less < more - 1e-9).all()
  # Rewards of a proposer are changes of its quality.
  malformed, *others = [
      [np.stack([x[:, 0].cumsum(), x[:, 1]], axis=1) for x in episodes]
      for episodes in rewards.values()]
  worst = np.concatenate(list(itertools.chain(*others))).min(axis=0)
  assert (np.concatenate(malformed) < worst).all()
