"""How tables and their numbers are written, in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np
import pandas as pd

from paper import statistics


@dataclasses.dataclass(frozen=True)
class Table:
  """A titled table of text with a note below it."""

  title: str
  frame: pd.DataFrame
  note: str = ''

  def markdown(self) -> str:
    header = list(self.frame.columns)
    lines = [header, ['---'] * len(header), *self.frame.itertuples(index=False)]
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
        f'  \\begin{{tabular}}{{l{"r" * (self.frame.shape[1] - 1)}}}\n'
        '  \\toprule\n' + line(self.frame.columns) + '  \\midrule\n'
        + ''.join(map(line, self.frame.itertuples(index=False)))
        + '  \\bottomrule\n  \\end{tabular}\n\\end{table}\n')


def table(
    title: str, columns: Sequence[str], rows: Sequence[Mapping[str, str]],
    note: str = '') -> Table:
  """A table of rows {column: text}; a missing column is left empty."""
  cells = [[row.get(column, '') for column in columns] for row in rows]
  return Table(title, pd.DataFrame(cells, columns=columns), note)


def interval(low: float, high: float) -> str:
  return f'{100 * low:.1f} … {100 * high:.1f}'


def percent(mean: float) -> str:
  return f'{100 * mean:.1f}'


def signed(number: str) -> str:
  return number.replace('-', '−')


def short(number: float) -> str:
  """Three significant digits with a unit."""
  number = float(f'{number:.3g}')  # 999 700 is 1 M.
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.0f}'


def comparison(
    values: np.ndarray, others: np.ndarray,
    clusters: Sequence[int]) -> tuple[str, str]:
  """Difference of two [seeds, tasks] in points; p unless a row has one seed."""
  difference = signed(f'{100 * (values.mean() - others.mean()):+.1f}')
  if min(len(values), len(others)) < 2:
    return difference, ''
  p = statistics.p_value(values, others, clusters)
  return difference, f'{p:.4f}' if p >= 1e-4 else '< 0.0001'


def updates(num_updates: Mapping[str, float]) -> str:
  """Updates of each policy, then of each critic."""
  if len(num_updates) == 1:
    return f'{sum(num_updates.values()):.0f}'
  return ', '.join(
      f'{learner} {num_updates[learner]:.0f}'
      for learner in sorted(num_updates, key=lambda name: ('/' in name, name)))


def ratios(values: Sequence[float]) -> str:
  """Mean of ratios in per cent, and their range if they differ."""
  if not values:
    return ''
  percents = 100 * np.array(values)
  text = f'{percents.mean():.0f} %'
  if percents.max() - percents.min() > 1:
    text += f' ({percents.min():.0f} … {percents.max():.0f})'
  return text
