"""The learning curves (PNG): a run against the tokens that it has generated.

For each task, in validation with one candidate per prompt: success, the turns
of episodes that were solved, and, of AT-GRPO, success beside that of the
rollout, where the best candidate goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib

from matplotlib import colormaps
from matplotlib import figure
import numpy as np

from paper import game_cells
from paper import records
from paper import rows

# File -> label, and line style of each metric that is drawn.
_CURVES = {
    'success': ('success', {'validation/success': '-'}),
    'turns': ('turns to solve', {'validation/turns_to_solve': '-'}),
    'rollout': (
        'success (dotted: rollout)',
        {'validation/success': '-', 'rollout/success': ':'}),
}


def draw(
    systems: rows.SystemRows, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes the curves of the trained systems to `folder`; returns the files."""
  paths = []
  for task, name in game_cells.TASKS.items():
    trained = {
        title: row for title, row in systems[task].items()
        if row is not None and row.steps}
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
        for steps in row.steps:
          for metric, style in styles.items():
            axes.plot(
                *curve(steps, metric), style, color=colors[title], alpha=0.8,
                linewidth=1.2, drawstyle='steps-post')
      axes.set_xlabel('generated tokens (millions); a line for each seed')
      axes.set_ylabel(label)
      axes.set_title(f'{name}, validation, one answer per prompt')
      axes.legend(fontsize='small')
      paths.append(folder / f'{task}_{file}.png')
      drawing.savefig(paths[-1], dpi=150)
  return paths


def curve(
    steps: Sequence[Mapping[str, float]],
    metric: str) -> tuple[np.ndarray, np.ndarray]:
  """Millions of generated tokens, and a metric, after the steps that tell it.

  Where nothing was solved, no turns are known.
  """
  tokens = np.cumsum(
      [step[records.LEDGER['generated tokens']] for step in steps]) / 1e6
  known = [metric in step for step in steps]
  return tokens[known], np.array([
      step[metric] for step in steps if metric in step])
