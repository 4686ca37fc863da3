"""Sokoban levels from text files, such as those of Boxoban and Microban.

Copy files or folders into `<data_dir>/downloads/manual/sokoban_levels/`. A file
`NAME.txt`, or all .txt files of a folder `NAME` in the order of their paths,
become the split NAME; other characters than letters, digits and _ become _.

A level is a block of lines that contain a wall and only these characters:

  #  wall      $  box           @  player
  .  goal      *  box on goal   +  player on goal      space, - or _  free

Other lines, such as titles, comments and numbers, separate levels. A level must
be enclosed by walls. Free cells that the player cannot reach, even without the
boxes, become walls.
"""

from collections.abc import Iterator, Sequence
import itertools
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from environments import datasets
from environments.boards import board_game
from environments.boards.sokoban import env

_ROW = re.compile(r'(?=.*#)[#$.@*+ _-]+$')


def read_levels(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the levels of a file as tasks without task_id."""
  # Rows are ASCII; a title may have any encoding.
  text = path.read_text('utf-8-sig', errors='replace')
  for is_level, block in itertools.groupby(
      enumerate(text.splitlines(), 1), lambda x: bool(_ROW.match(x[1]))):
    if is_level:
      numbers, rows = zip(*block)
      try:
        yield parse_level(list(map(str.rstrip, rows)))
      except ValueError as error:
        raise ValueError(
            f'{path}, line {numbers[0]}: {error}; fix the level.') from error


def parse_level(rows: Sequence[str]) -> dict[str, Any]:
  """Converts a level to a task without task_id, or raises ValueError."""
  cells = {
      (row, column): character for row, line in enumerate(rows)
      for column, character in enumerate(line)}

  def find(characters: str) -> list[board_game.Cell]:
    return [cell for cell, kind in cells.items() if kind in characters]

  players = find('@+')
  if len(players) != 1:
    raise ValueError(f'the level has {len(players)} players; expected one')
  reached, inside = players.copy(), set(players)
  for before in reached:  # Grows during the iteration.
    for direction in board_game.DELTAS:
      cell = board_game.ahead(before, direction)
      if cell not in cells:
        raise ValueError('the level is not enclosed by walls')
      if cells[cell] != board_game.WALL and cell not in inside:
        inside.add(cell)
        reached.append(cell)
  width = max(map(len, rows))
  task = {
      'grid': [
          ''.join(
              board_game.FREE if (row, column) in inside else board_game.WALL
              for column in range(width))
          for row in range(len(rows))],
      'player': [*players[0]],
      'boxes': [[*cell] for cell in find('$*')],
      'goals': [[*cell] for cell in find('.*+')]}
  env.Sokoban().start(task)  # Raises for pieces that no rule allows.
  return task


class Builder(datasets.TaskBuilder):
  """Levels from text files."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {
      'grid': tfds.features.Sequence(tfds.features.Text()),
      'player': tfds.features.Tensor(shape=(2,), dtype=np.int32),
      'boxes': tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
      'goals': tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
  }

  def splits(self) -> dict[str, list[pathlib.Path]]:
    """Returns the files of each split."""
    folder = datasets.manual_folder(self.data_dir_root, 'sokoban_levels')
    splits = {}
    for path in sorted(folder.glob('*')):
      files = [path] if path.suffix == '.txt' else sorted(path.rglob('*.txt'))
      name = re.sub(r'\W', '_', path.stem)
      if files and name in splits:
        raise ValueError(f'{path}: another file or folder is named {name!r}.')
      if files:
        splits[name] = files
    if not splits:
      raise ValueError(
          f'{folder} has no levels; copy a .txt file, or a folder with .txt '
          'files, into it.')
    return splits

  def _generate_examples(
      self, split: str, paths: Sequence[pathlib.Path]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    levels = (level for path in paths for level in read_levels(path))
    for index, level in enumerate(levels):
      yield index, level | {'task_id': f'sokoban_levels/{split}/{index}'}
