"""Sokoban: moves, pictures, and a solver checked by a plain search."""

import collections
import dataclasses

import numpy as np
import pytest

from environments.boards import board_game
from environments.boards.sokoban import env as sokoban
from tests.environments.boards import games

CASE = games.CASES['sokoban']
RULES = sokoban.Sokoban()
GRID = ('######', '#....#', '#....#', '#..#.#', '#....#', '######')
TASK = {
    'task_id': 'room 7', 'grid': GRID, 'player': [1, 1], 'boxes': [[2, 2]],
    'goals': [[4, 2]]}


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
  board = RULES.start(TASK | {
      'player': [4, 2], 'boxes': [[2, 2], [3, 1]], 'goals': [[4, 2], [3, 1]]})
  assert RULES.show(board) == (
      '######\n#....#\n#.B..#\n#*.#.#\n#.+..#\n######')


def _min_cost(task, walks_are_free):
  """Minimum cost of a solution if a push costs 1; None without a solution."""
  free = {
      (r, c) for r, row in enumerate(task['grid']) for c, cell in enumerate(row)
      if cell == '.'}
  goals = frozenset(map(tuple, task['goals']))
  queue = collections.deque([
      (0, tuple(task['player']), frozenset(map(tuple, task['boxes'])))])
  done = set()
  while queue:  # Sorted by cost.
    cost, player, boxes = queue.popleft()
    if boxes == goals:
      return cost
    if (player, boxes) in done:
      continue
    done.add((player, boxes))
    for down, right in board_game.DELTAS.values():
      ahead = (player[0] + down, player[1] + right)
      beyond = (ahead[0] + down, ahead[1] + right)
      if ahead in boxes:
        if beyond in free - boxes:
          queue.append((cost + 1, ahead, boxes - {ahead} | {beyond}))
      elif ahead in free and walks_are_free:
        queue.appendleft((cost, ahead, boxes))
      elif ahead in free:
        queue.append((cost + 1, ahead, boxes))
  return None


@pytest.mark.parametrize('height, width, num_boxes, num_rooms', [
    (6, 6, 1, 60), (3, 7, 1, 100), (4, 4, 2, 50), (3, 5, 3, 15)])
def test_solver_agrees_with_a_plain_search(
    height, width, num_boxes, num_rooms):
  rng = np.random.default_rng(0)
  num_solvable = 0
  for _ in range(num_rooms):
    walls = rng.random((height, width)) < 0.1
    cells = rng.permutation(np.argwhere(~walls)).tolist()
    task = {
        'grid': [''.join('#' if x else '.' for x in row) for row in walls],
        'player': cells[0], 'boxes': cells[1:1 + num_boxes],
        # Goals may lie under the player and under boxes.
        'goals': rng.permutation(cells)[:num_boxes].tolist()}
    for walks_are_free in (False, True):
      cost = sokoban.min_cost(task, walks_are_free)
      assert cost == _min_cost(task, walks_are_free)
    num_solvable += cost is not None
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
