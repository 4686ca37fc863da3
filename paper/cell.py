"""A cell of the paper's tables: one process of `atgrpo_jax.main`.

Its workdir is `OUT/<table>/<task>/<row>/seed-<n>`.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from paper import records


@dataclasses.dataclass(frozen=True)
class Cell:
  """One process.

  Attributes:
    path: of its workdir, below OUT.
    config: config file and arguments.
    overrides: key -> value of the config; `{out}` stands for OUT.
    mode: of `atgrpo_jax.main`.
    result: the file that says that it is done, in the workdir.
    budget_of: path of the cell whose generated tokens are its limit; '' for
      none.
    budget_share: the share of these that it may generate.
  """

  path: str
  config: str
  overrides: Mapping[str, Any]
  mode: str = 'train'
  result: str = 'evals/after.json'
  budget_of: str = ''
  budget_share: float = 1.0

  @property
  def key(self) -> tuple[str, str]:
    """(mode, path), which no other cell has."""
    return self.mode, self.path

  def is_done(self, out: pathlib.Path) -> bool:
    """Whether the cell has its result."""
    return (out / self.path / self.result).exists()

  def is_kept(self, kept: records.Runs) -> bool:
    """Whether records have its result, an evaluation."""
    folder, name = self.result.rsplit('/', 1)
    return (
        folder == 'evals' and self.path in kept
        and name.removesuffix('.json') in kept[self.path].evaluations)


def config_of(file: str, scale: str, **arguments: str) -> str:
  """A config file, by its name in configs/, with its arguments."""
  given = ''.join(f',{name}={value}' for name, value in arguments.items())
  return f'configs/{file}.py:size={scale}{given}'


def export(cell: Cell, last_policy: str) -> Cell:
  """Writes the policies of a training."""
  return dataclasses.replace(
      cell, mode='export', budget_of='', budget_share=1.0,
      overrides={**cell.overrides, 'export.dtype': 'float32'},
      # Each policy's folder is there whole or not at all.
      result=f'export/{last_policy}/tokenizer.json')


def command(cell: Cell, out: pathlib.Path, tokens: int | str) -> list[str]:
  """The flags of the trainer; `tokens` is the budget, if the cell has one."""
  overrides = dict(cell.overrides)
  if cell.budget_of:
    overrides |= {'train.num_steps': 0, 'train.completion_tokens': tokens}
  return [
      '--mode', cell.mode, '--config', cell.config,
      '--workdir', str(out / cell.path), *(
          f'--config.{key}={value}'.replace('{out}', str(out))
          for key, value in overrides.items())]
