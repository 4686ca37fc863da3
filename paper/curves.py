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

from paper import cells
from paper import workdirs

# File -> label, and line style of each metric that is drawn.
_CURVES = {
    'success': ('success', {'validation/success': '-'}),
    'turns': ('turns to solve', {'validation/turns_to_solve': '-'}),
    'rollout': (
        'success (dotted: rollout)',
        {'validation/success': '-', 'rollout/success': ':'}),
}


def draw(
    systems: workdirs.SystemRows, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes the curves of the trained systems to `folder`; returns the files."""
  paths = []
  for task, name in cells.TASKS.items():
    trained = {
        title: row for title, row in systems[task].items()
        if row is not None and row.lines}
    colors = dict(zip(trained, colormaps['tab20'].colors, strict=False))
    for file, (label, styles) in _CURVES.items():
      rows = {
          title: row for title, row in trained.items()
          if file != 'rollout' or title.startswith('Team + AT-GRPO')}
      if not rows:
        continue
      drawing = figure.Figure(figsize=(7, 4.5), layout='constrained')
      axes = drawing.subplots()
      for title, row in rows.items():
        axes.plot([], [], color=colors[title], label=title)
        for lines in row.lines:
          for metric, style in styles.items():
            axes.plot(
                *curve(lines, metric), style, color=colors[title], alpha=0.8,
                linewidth=1.2, drawstyle='steps-post')
      axes.set_xlabel('generated tokens (millions); a line for each seed')
      axes.set_ylabel(label)
      axes.set_title(f'{name}, validation, one answer per prompt')
      axes.legend(fontsize='small')
      paths.append(folder / f'{task}_{file}.png')
      drawing.savefig(paths[-1], dpi=150)
  return paths


def curve(
    lines: Sequence[Mapping[str, float]],
    metric: str) -> tuple[np.ndarray, np.ndarray]:
  """Millions of generated tokens, and a metric, after each step of a run."""
  tokens = np.cumsum(
      [line[workdirs.LEDGER['generated tokens']] for line in lines]) / 1e6
  # Where nothing was solved, no turns are known.
  known = np.array([
      line['validation/success'] > 0 or metric != 'validation/turns_to_solve'
      for line in lines])
  return tokens[known], np.array([
      line[metric] for line, is_known in zip(lines, known) if is_known])
