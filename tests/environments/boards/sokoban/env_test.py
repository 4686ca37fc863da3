"""Sokoban: moves, pictures, and a solver checked by a plain search."""

import dataclasses

import numpy as np
import pytest

from environments.boards.sokoban import env as sokoban
from tests.environments.boards import games

RULES = sokoban.Sokoban()


@pytest.mark.parametrize('grid, player, boxes, goals, moves, expected', [
    # Nothing is played after the room is solved.
    (['.....'], [0, 0], [[0, 1]], [[0, 2]], 'RRL', ((0, 1), ((0, 2),), 0)),
    (['.....'], [0, 0], [[0, 1]], [[0, 4]], 'RRL', ((0, 1), ((0, 3),), 0)),
    # Off the grid and into a wall; later moves are played.
    (['...'], [0, 0], [[0, 1]], [[0, 2]], 'LUDR', ((0, 1), ((0, 2),), 3 / 4)),
    (['.#.', '...'], [0, 0], [[1, 2]], [[0, 2]], 'RD',
     ((1, 0), ((1, 2),), 1 / 2)),
    # A box off the grid, into a wall, and into another box.
    (['...', '...'], [0, 1], [[0, 2]], [[1, 2]], 'R', ((0, 1), ((0, 2),), 1)),
    (['....'], [0, 0], [[0, 2], [0, 1]], [[0, 2], [0, 3]], 'RR',
     ((0, 0), ((0, 1), (0, 2)), 1)),
    # A box is pushed, never pulled.
    (['....'], [0, 1], [[0, 2]], [[0, 3]], 'L', ((0, 0), ((0, 2),), 0)),
])
def test_moves(grid, player, boxes, goals, moves, expected):
  board = RULES.start(
      {'grid': grid, 'player': player, 'boxes': boxes, 'goals': goals})
  after, illegal = RULES.play(board, moves)
  assert (after.player, after.boxes, illegal) == expected


def test_progress_assigns_boxes_to_goals_with_the_minimum_distance():
  # Both boxes are nearest to the same goal.
  before = RULES.start({
      'grid': ['......'] * 6, 'player': [3, 3], 'boxes': [[0, 0], [0, 2]],
      'goals': [[0, 1], [5, 1]]})
  after = dataclasses.replace(before, boxes=before.goals)
  assert RULES.solved(after)
  assert RULES.progress(before, after) == 7 / 20


def test_pictures_show_boxes_and_player_on_goals():
  board = RULES.start({
      'grid': ['....', '#...', '....'], 'player': [2, 2],
      'boxes': [[0, 2], [1, 1]], 'goals': [[2, 2], [1, 1]]})
  assert RULES.show(board) == '..B.\n#*..\n..+.'


@pytest.mark.parametrize('height, width, num_boxes, num_rooms', [
    (6, 6, 1, 60), (3, 7, 1, 100), (4, 4, 2, 50), (3, 5, 3, 15)])
def test_solver_agrees_with_a_plain_search(
    height, width, num_boxes, num_rooms):
  rng = np.random.default_rng(0)
  num_solvable = 0
  for _ in range(num_rooms):
    walls = rng.random((height, width)) < 0.1
    cells = rng.permutation(np.argwhere(~walls)).tolist()
    # Goals may lie under the player and under boxes.
    goals = rng.permutation(cells)[:num_boxes].tolist()
    task = {
        'grid': [''.join('#' if x else '.' for x in row) for row in walls],
        'player': cells[0], 'boxes': cells[1:1 + num_boxes], 'goals': goals}
    for walks_are_free in (False, True):
      path = games.search(RULES, RULES.start(task), walks_are_free)
      assert sokoban.min_cost(task, walks_are_free) == (
          None if path is None else len(path))
    num_solvable += path is not None
  assert 0 < num_solvable < num_rooms


def test_canonical_form_ignores_rotation_and_reflection():
  rng = np.random.default_rng(0)
  for num_boxes in [1] * 20 + [2] * 5:
    copies = [sokoban.random_task(rng, num_boxes)]
    for turn in (True, True, True, False):  # Quarter turns, and a reflection.
      rows, move = copies[-1]['grid'][::-1], lambda cell: [5 - cell[0], cell[1]]
      if turn:
        rows, move = zip(*rows), lambda cell: [cell[1], 5 - cell[0]]
      copies.append({
          'grid': [''.join(row) for row in rows],
          'player': move(copies[-1]['player']), **{
              name: sorted(map(move, copies[-1][name]))
              for name in ('boxes', 'goals')}})
    assert len({str(copy) for copy in copies}) == 5
    assert len({sokoban.canonical_form(copy) for copy in copies}) == 1
