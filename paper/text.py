"""How a table and its numbers are written: Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Table:
  """Text in rows and columns."""

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  note: str = ''

  def markdown(self) -> str:
    lines = [self.header, ['---'] * len(self.header), *self.rows]
    return f'## {self.title}\n\n' + ''.join(
        f'| {" | ".join(line)} |\n' for line in lines) + (
            self.note and f'\n{self.note}\n')

  def latex(self) -> str:
    def escape(text):
      for plain, escaped in (
          ('\\', r'\textbackslash{}'), ('%', r'\%'), ('_', r'\_'),
          ('&', r'\&'), ('#', r'\#'), ('…', r'\ldots{}'), ('−', '$-$'),
          ('<', '$<$')):
        text = text.replace(plain, escaped)
      return text

    def line(texts):
      return '  ' + ' & '.join(map(escape, texts)) + ' \\\\\n'

    caption = f'{self.title}. {self.note}' if self.note else self.title
    return (
        '\\begin{table}\n'
        f'  \\caption{{{escape(caption)}}}\n'
        f'  \\begin{{tabular}}{{l{"r" * (len(self.header) - 1)}}}\n'
        '  \\toprule\n' + line(self.header) + '  \\midrule\n'
        + ''.join(map(line, self.rows))
        + '  \\bottomrule\n  \\end{tabular}\n\\end{table}\n')


def interval(low: float, high: float) -> str:
  return f'{100 * low:.1f} … {100 * high:.1f}'


def signed(number: str) -> str:
  return number.replace('-', '−')


def short(number: float) -> str:
  number = float(f'{number:.3g}')  # 999 700 is 1 M.
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.0f}'


def p_value(value: float) -> str:
  return f'{value:.4f}' if value >= 1e-4 else '< 0.0001'


def updates(num_updates: Mapping[str, float]) -> str:
  """Of each policy if there are several, then of each critic."""
  if len(num_updates) == 1:
    return f'{sum(num_updates.values()):.0f}'
  return ', '.join(
      f'{learner} {num_updates[learner]:.0f}'
      for learner in sorted(num_updates, key=lambda name: ('/' in name, name)))


def shares(values: Sequence[float]) -> str:
  """Their mean, and the least and the most if they differ."""
  if not values:
    return ''
  percent = 100 * np.array(values)
  shown = f'{percent.mean():.0f} %'
  if percent.max() - percent.min() > 1:
    shown += f' ({percent.min():.0f} … {percent.max():.0f})'
  return shown
