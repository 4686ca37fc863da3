"""A table of text, in Markdown."""

from collections.abc import Mapping, Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class Table:
  """A titled table of text with a note below it."""

  title: str
  columns: Sequence[str]
  rows: Sequence[Mapping[str, str]]  # Column -> text.
  note: str

  def lines(self) -> list[list[str]]:
    """The texts of each row, '' for a missing column."""
    return [[row.get(name, '') for name in self.columns] for row in self.rows]

  def markdown(self) -> str:
    lines = [self.columns, ['---'] * len(self.columns), *self.lines()]
    table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
    return f'## {self.title}\n\n{table}\n{self.note}\n'
