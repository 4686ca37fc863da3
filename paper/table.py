"""A table of text, in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses

import pandas as pd


@dataclasses.dataclass(frozen=True)
class Table:
  """A titled table of text with a note below it."""

  title: str
  frame: pd.DataFrame
  note: str

  @classmethod
  def create(
      cls, title: str, columns: Sequence[str],
      rows: Sequence[Mapping[str, str]], note: str) -> Table:
    """A table of rows {column: text}; a missing column is left empty."""
    frame = pd.DataFrame(rows, columns=list(columns), dtype=object)
    return cls(title, frame.fillna(''), note)

  def markdown(self) -> str:
    header = list(self.frame.columns)
    lines = [header, ['---'] * len(header), *self.frame.itertuples(index=False)]
    table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
    return f'## {self.title}\n\n{table}\n{self.note}\n'

  def latex(self) -> str:
    escaped = str.maketrans({
        '\\': r'\textbackslash{}', '%': r'\%', '_': r'\_', '&': r'\&',
        '#': r'\#', '…': r'\ldots{}', '−': '$-$', '<': '$<$'})

    def line(texts):
      cells = [text.translate(escaped) for text in texts]
      return f'  {" & ".join(cells)} \\\\\n'

    caption = f'{self.title}. {self.note}'.translate(escaped)
    return (
        '\\begin{table}\n'
        f'  \\caption{{{caption}}}\n'
        f'  \\begin{{tabular}}{{l{"r" * (self.frame.shape[1] - 1)}}}\n'
        '  \\toprule\n' + line(self.frame.columns) + '  \\midrule\n'
        + ''.join(map(line, self.frame.itertuples(index=False)))
        + '  \\bottomrule\n  \\end{tabular}\n\\end{table}\n')
