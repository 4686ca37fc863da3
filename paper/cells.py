"""The cells of the paper's tables, and what each of them needs.

`game_cells`, `problem_cells` and `joint_cells` say what the tables are. A cell
is one process of `atgrpo_jax.main`.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import fnmatch
import pathlib
import re

from atgrpo_jax import errors
from paper import cell as cell_lib
from paper import game_cells
from paper import joint_cells
from paper import problem_cells
from paper import records


def make_cells(
    scale: str, num_seeds: int,
    sandbox_level: str = 'auto') -> list[cell_lib.Cell]:
  """All cells, each behind those it needs."""
  cells = []
  for seed in range(num_seeds):
    for family in (game_cells, problem_cells, joint_cells):
      cells += family.make(scale, seed)
  cells += game_cells.cross_play(scale, num_seeds)
  of_all = {} if sandbox_level == 'auto' else {'sandbox.level': sandbox_level}
  return [
      dataclasses.replace(cell, overrides={**cell.overrides, **of_all})
      for cell in cells]


def needed(cell: cell_lib.Cell) -> list[tuple[str, str]]:
  """Keys of the cells that this one starts from or is compared with."""
  given = ';'.join(map(str, cell.overrides.values()))
  keys = [
      ('export', path) for path in re.findall(
          r'{out}/([^;]*)/export/', given)]
  if cell.budget_of:
    keys.append(('train', cell.budget_of))
  if cell.mode == 'export' or cell.result == joint_cells.TIMED:
    keys.append(('train', cell.path))
  table, task, row, *_, seed = cell.path.split('/')
  if table in game_cells.SWITCHES:
    keys.append(('train', f'unchanged/{task}/at_grpo/{seed}'))
  if table == 'roles':
    keys.append(('train', f'main/{task}/at_grpo_per_role/{seed}'))
  if row in game_cells.SAME_STEPS:
    other = game_cells.SAME_STEPS[row]
    keys.append(('train', f'{table}/{task}/{other}/{seed}'))
  return keys


def choose(
    cells: Sequence[cell_lib.Cell],
    patterns: Sequence[str]) -> list[cell_lib.Cell]:
  """The cells whose path fits a pattern; each pattern must fit one."""
  paths = [cell.path for cell in cells]
  for pattern in patterns or ['']:
    if not fnmatch.filter(paths, pattern):
      raise errors.UserError(
          f'no cell fits {pattern!r} of --only; see --dry_run for their '
          'paths.')
  return [
      cell for cell in cells
      if any(fnmatch.fnmatch(cell.path, pattern) for pattern in patterns)]


def with_needed(
    chosen: Sequence[cell_lib.Cell], cells: Sequence[cell_lib.Cell],
    out: pathlib.Path, kept: records.Runs) -> list[cell_lib.Cell]:
  """Those of `cells` that are chosen, or needed by one of them and not done.

  None of them is in the records `kept`, unless its checkpoints are needed.
  """
  cell_of = {cell.key: cell for cell in cells}
  wanted = {cell.key for cell in chosen if not cell.is_kept(kept)}
  stack = [cell_of[key] for key in wanted if not cell_of[key].is_done(out)]
  while stack:
    cell = stack.pop()
    for key in needed(cell):
      other = cell_of[key]
      in_records = other.is_kept(kept) and other.path != cell.path
      if key not in wanted and not other.is_done(out) and not in_records:
        wanted.add(key)
        stack.append(other)
  return [cell for cell in cells if cell.key in wanted]
