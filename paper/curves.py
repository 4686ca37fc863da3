"""Learning curves (PNG) against the number of generated tokens.

For each game, in validation with one candidate per prompt: success, turns of
solved episodes, and for AT-GRPO the success in validation and in the rollout,
where the best candidate is selected.
"""

from __future__ import annotations

import pathlib

from matplotlib import colormaps
from matplotlib import figure
import pandas as pd

from paper import experiments
from paper import records as records_lib
from paper import rows as rows_lib

# File -> label of the y axis, and metric -> line style.
_CURVES = {
    'success': ('success', {'validation/success': '-'}),
    'turns': ('turns to solve', {'validation/turns_to_solve': '-'}),
    'rollout': (
        'success (dotted: rollout)',
        {'validation/success': '-', 'rollout/success': ':'}),
}


def draw(
    systems: rows_lib.SystemRows, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the curves of the trained systems; returns the files."""
  paths = []
  for task, name in experiments.GAMES.items():
    trained = {
        title: row for title, row in systems[task].items()
        if row is not None and not row.steps.empty}
    colors = dict(zip(trained, colormaps['tab20'].colors, strict=False))
    for file, (label, styles) in _CURVES.items():
      drawn = {
          title: row for title, row in trained.items()
          if file != 'rollout' or title.startswith('Team + AT-GRPO')}
      if not drawn:
        continue
      drawing = figure.Figure(figsize=(7, 4.5), layout='constrained')
      axes = drawing.subplots()
      for title, row in drawn.items():
        axes.plot([], [], color=colors[title], label=title)
        for _, steps in row.steps.groupby(level='workdir'):
          for metric, style in styles.items():
            values = curve(steps, metric)
            axes.plot(
                values.index, values, style, color=colors[title], alpha=0.8,
                linewidth=1.2, drawstyle='steps-post')
      axes.set_xlabel('generated tokens (millions); a line for each seed')
      axes.set_ylabel(label)
      axes.set_title(f'{name}, validation, one candidate per prompt')
      axes.legend(fontsize='small')
      paths.append(folder / f'{task}_{file}.png')
      drawing.savefig(paths[-1], dpi=150)
  return paths


def curve(steps: pd.DataFrame, metric: str) -> pd.Series:
  """A metric by millions of generated tokens, where it was measured."""
  tokens = steps[records_lib.LEDGER['generated tokens']].cumsum() / 1e6
  return steps.set_index(tokens).get(metric, pd.Series(dtype=float)).dropna()
