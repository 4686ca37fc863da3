"""Sokoban rules and solver, against a plain search that shares no code."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from environments.boards.sokoban import room

_STEPS = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}


@pytest.fixture(scope='module')
def tasks():
  rng = np.random.default_rng(0)
  return [
      room.random_task(rng, num_boxes)
      for num_boxes in [1] * 60 + [2] * 8]


def _position(task):
  return task['grid'], task['player'], task['boxes'], task['goals']


def _cheapest(grid, player, boxes, goals, walking_cost):
  """Minimum cost if a push costs 1; None without a solution."""
  free = {
      (r, c) for r, row in enumerate(grid) for c, cell in enumerate(row)
      if cell == '.'}
  goals = frozenset(map(tuple, goals))
  queue = collections.deque([
      (0, tuple(player), frozenset(map(tuple, boxes)))])
  done = set()
  while queue:  # Sorted by cost.
    cost, player, boxes = queue.popleft()
    if boxes == goals:
      return cost
    if (player, boxes) in done:
      continue
    done.add((player, boxes))
    for down, right in _STEPS.values():
      ahead = (player[0] + down, player[1] + right)
      beyond = (ahead[0] + down, ahead[1] + right)
      if ahead in boxes:
        if beyond in free - boxes:
          queue.append((cost + 1, ahead, boxes - {ahead} | {beyond}))
      elif ahead in free and walking_cost:
        queue.append((cost + 1, ahead, boxes))
      elif ahead in free:
        queue.appendleft((cost, ahead, boxes))
  return None


def test_tasks_are_well_formed_and_solutions_solve_them(tasks):
  for task in tasks:
    assert len(task['grid']) == 6 and {len(r) for r in task['grid']} == {6}
    assert set(''.join(task['grid'])) <= {'#', '.'}
    num_boxes = len(task['boxes'])
    cells = [task['player'], *task['boxes'], *task['goals']]
    assert len({tuple(cell) for cell in cells}) == 1 + 2 * num_boxes
    assert all(task['grid'][row][col] == '.' for row, col in cells)
    assert task['moves'] >= task['pushes'] > num_boxes
    assert _cheapest(*_position(task), walking_cost=1) == task['moves']
    assert _cheapest(*_position(task), walking_cost=0) == task['pushes']
    grid, player, boxes, goals = _position(task)
    for move in room.solve(grid, player, boxes, goals):
      assert [list(box) for box in boxes] != goals
      player, boxes, _, illegal = room.walk(grid, player, boxes, goals, [move])
      assert not illegal
      assert not room.is_deadlocked(grid, boxes, goals)
    assert [list(box) for box in boxes] == goals


@pytest.mark.parametrize('height, width, num_boxes, num_rooms', [
    (5, 6, 1, 100), (3, 7, 1, 100), (4, 4, 2, 50), (3, 5, 3, 15)])
def test_solver_agrees_with_a_plain_search(
    height, width, num_boxes, num_rooms):
  rng = np.random.default_rng(0)
  solvable = deadlocked = 0
  for _ in range(num_rooms):
    walls = rng.random((height, width)) < 0.1
    grid = [''.join('#' if wall else '.' for wall in row) for row in walls]
    cells = rng.permutation(np.argwhere(~walls)).tolist()
    boxes = cells[1:1 + num_boxes]
    # Goals may lie under the player and under boxes.
    goals = rng.permutation(cells)[:num_boxes].tolist()
    position = (grid, cells[0], boxes, goals)
    moves, pushes = (_cheapest(*position, cost) for cost in (1, 0))
    solution = room.solve(*position)
    assert (None if solution is None else len(solution)) == moves
    assert room.fewest_pushes(*position) == pushes
    solvable += moves is not None
    if room.is_deadlocked(grid, boxes, goals):
      deadlocked += 1
      assert moves is None
  assert 0 < solvable < num_rooms and 0 < deadlocked < num_rooms


@pytest.mark.parametrize('grid, player, boxes, goals, moves, expected', [
    # Nothing is played after the room is solved.
    (['.....'], [0, 0], [[0, 1]], [[0, 2]], 'RRL',
     ((0, 1), ((0, 2),), 1, 0)),
    (['.....'], [0, 0], [[0, 1]], [[0, 4]], 'RRL',
     ((0, 1), ((0, 3),), 3, 0)),
    # Off the grid and into a wall; later moves are played.
    (['...'], [0, 0], [[0, 1]], [[0, 2]], 'LUDR',
     ((0, 1), ((0, 2),), 4, 3)),
    (['.#.', '...'], [0, 0], [[1, 2]], [[0, 2]], 'RD',
     ((1, 0), ((1, 2),), 2, 1)),
    # A box off the grid, into a wall, and into another box.
    (['...', '...'], [0, 1], [[0, 2]], [[1, 2]], 'R',
     ((0, 1), ((0, 2),), 1, 1)),
    (['....'], [0, 0], [[0, 2], [0, 1]], [[0, 2], [0, 3]], 'RR',
     ((0, 0), ((0, 1), (0, 2)), 2, 2)),
    # A box is pushed, never pulled.
    (['....'], [0, 1], [[0, 2]], [[0, 3]], 'L', ((0, 0), ((0, 2),), 1, 0)),
])
def test_walk(grid, player, boxes, goals, moves, expected):
  assert room.walk(grid, player, boxes, goals, moves) == expected


@pytest.mark.parametrize('grid, boxes, goals, expected', [
    (['....'] * 4, [[0, 0]], [[2, 2]], True),  # A corner.
    (['....'] * 4, [[0, 0]], [[0, 0]], False),
    (['....'] * 4, [[0, 1]], [[2, 2]], True),  # It cannot leave the wall.
    (['....'] * 4, [[0, 1]], [[0, 2]], False),
    (['....', '.##.', '....', '....'], [[2, 1]], [[2, 2]], False),
    # A single dead box makes a deadlock.
    (['....'] * 4, [[1, 1], [3, 3]], [[2, 2], [1, 2]], True),
])
def test_is_deadlocked(grid, boxes, goals, expected):
  assert room.is_deadlocked(grid, boxes, goals) == expected


@pytest.mark.parametrize('boxes, goals, expected', [
    ([[0, 0], [0, 5]], [[0, 4], [0, 1]], 2),
    # Both boxes are nearest to the same goal.
    ([[0, 0], [0, 2]], [[0, 1], [5, 1]], 7)])
def test_distance(boxes, goals, expected):
  assert room.distance(boxes, goals) == expected


def test_canonical_form_ignores_rotation_and_reflection(tasks):
  for task in tasks:
    copies = [task]
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
    assert len({room.canonical_form(copy) for copy in copies}) == 1


def test_canonical_form_separates_different_rooms():
  task = {
      'grid': ['.#..', '....', '....', '....'],
      'player': [1, 1], 'boxes': [[1, 2]], 'goals': [[2, 1]]}
  changes = [
      {}, {'grid': ['..#.', '....', '....', '....']}, {'player': [2, 2]},
      {'player': [2, 1]}, {'boxes': [[2, 2]]}, {'boxes': [[2, 1]]},
      {'boxes': [[2, 1]], 'goals': [[1, 2]]},
      {'goals': [[1, 1]], 'player': [2, 1]}]
  forms = {room.canonical_form(task | change) for change in changes}
  assert len(forms) == len(changes)
