"""The tables and the figure of Depot."""

from collections.abc import Mapping, Sequence
import functools
import pathlib

from matplotlib import colormaps
from matplotlib import figure
import numpy as np
import pandas as pd

from atgrpo_jax import statistics
from configs import depot as depot_config
from paper import depot
from paper import records as records_lib
from paper import rows as rows_lib

_NOTE = (
    'area: mean of the return on {num_tasks} held-out tasks over the budget, '
    'in percent of the maximum. 95 %: interval of the mean of new seeds. '
    'p (Holm): exact permutation test of seeds, adjusted for the number of '
    'comparisons in this table; empty if these numbers of seeds cannot give '
    'one below 0.05. low seeds: their last return is below half of that of the '
    "row's best seed. choices until 90 %: until a validation, mean over the "
    'seeds; empty if a seed never reached it. invalid answers: of all agents, '
    'after training. The learning rate has the largest area in a search over '
    '{rates} on two other seeds and other tasks.')

# Column -> seeds. The second half was added after the first had been seen.
_HALVES = {
    'area of seeds 0 to 4 %': slice(5), 'area of seeds 5 to 9 %': slice(5, 10)}


def make(records: records_lib.Records) -> list[rows_lib.Table]:
  """Algorithms in each preset, variants of AT-GRPO, and roles."""
  tables = []  # (title, preset, rows, rows from other tables)
  for reward in depot.REPORTED_AT:
    tables.append((f'`{reward}`', reward, {
        title: f'depot/{reward}/{system}'
        for title, system in depot.ARMS_OF[reward].items()}, {}))
  for table, rows in depot.VARIANTS.items():
    tables.append((f'{table}, `mixed`', 'mixed', {
        name: f'depot_{table}/mixed/{name}' for name in rows
        if name not in depot.UNCHANGED[table]}, depot.UNCHANGED[table]))
  tables.append(('roles, `outcome`', 'outcome', {
      name: f'depot_roles/outcome/{name}' for name in depot.ROLES}, {}))
  made = []
  for title, reward, paths, unchanged in tables:
    rows, others = (
        {name: depot.seeds_of(records.curves, path)
         for name, path in found.items()} for found in (paths, unchanged))
    if any(rows.values()):
      made.append(_table(title, reward, others | rows))
  for reward, budget in depot.SEARCH_BUDGETS.items():
    lines = []
    for title, system in depot.SEARCHED_SYSTEMS[reward].items():
      if areas := depot.search_areas(records.curves, reward, system):
        lines.append({'': title} | {
            f'{rate} %': rows_lib.percent(x) for rate, x in areas.items()})
    if lines:
      made.append(rows_lib.Table(
          f'Depot: learning rates, `{reward}`, {budget // 1000}k choices',
          ['', *(f'{rate} %' for rate in depot.SEARCH)], lines,
          'area on validation tasks, mean of seeds {} and {}.'.format(
              *depot.SEARCH_SEEDS)))
  return made


def _table(
    title: str, reward: str, rows: Mapping[str, Sequence[depot.Curve]],
) -> rows_lib.Table:
  """Compares rows, each the curves of its seeds, with the first one."""
  budget, _ = depot_config.BUDGETS[reward]
  reported_at = depot.REPORTED_AT[reward]
  at = f'return at {reported_at // 1000}k'
  measure_fns = {
      'area': functools.partial(depot.area, budget=budget),
      at: functools.partial(depot.return_at, num_choices=reported_at)}
  baseline = next(iter(rows))
  # (index of a line, column) -> p, and the smallest p of as many seeds.
  lines, p_values, smallest = [], {}, {}
  for name, curves in rows.items():
    if not curves:
      continue
    frame = pd.DataFrame(curves)
    is_trained = 'num_updates' in frame
    cells = {
        '': name, 'seeds': rows_lib.seeds(len(curves)),
        'invalid answers %': rows_lib.percent(frame['invalid'].mean())}
    for measure, measure_fn in measure_fns.items():
      if measure == 'area' and not is_trained:
        continue
      values, others = (
          np.array([measure_fn(curve) for curve in seeds])
          for seeds in (curves, rows[baseline]))
      cells[f'{measure} %'] = rows_lib.percent(values.mean())
      if len(values) > 1:
        cells[f'95 % of the {measure}'] = rows_lib.between(
            *statistics.interval_of_seeds(values, depot.NUM_TASKS))
      if name != baseline and min(len(values), len(others)) > 1:
        cells[f'{measure} minus {baseline}'] = rows_lib.signed(
            f'{100 * (values.mean() - others.mean()):+.1f}')
        key = len(lines), f'p (Holm) of the {measure}'
        p_values[key] = statistics.p_value_of_seeds(values, others)
        smallest[key] = statistics.smallest_p(len(values), len(others))
      if measure == 'area' and len(values) >= 2 * statistics.MIN_SEEDS:
        for column, half in _HALVES.items():
          cells[column] = rows_lib.percent(values[half].mean())
    last = np.array([curve['returns'][-1] for curve in curves])
    cells['low seeds'] = f'{np.sum(last < last.max() / 2)}'
    if is_trained:
      until = np.mean([depot.choices_until(curve, 0.9) for curve in curves])
      cells |= {
          'choices until 90 %': (
              '' if np.isnan(until) else f'{until / 1000:.1f}k'),
          'learning rate': f'{frame["learning_rate"].mean():g}',
          'updates': f'{frame["num_updates"].mean():.0f}',
          'minutes': f'{frame["minutes"].mean():.1f}',
          'peak GiB': f'{frame["peak_gib"].max():.1f}'}
    lines.append(cells)
  adjusted = statistics.holm(list(p_values.values()))
  for (index, column), p in zip(p_values, adjusted):
    if len(p_values) * smallest[index, column] < 0.05:
      lines[index][column] = rows_lib.p_text(p)
  columns = ['', 'seeds']
  for measure in measure_fns:
    columns += [f'{measure} %', f'95 % of the {measure}',
                f'{measure} minus {baseline}', f'p (Holm) of the {measure}']
  columns += ['low seeds', *_HALVES, 'choices until 90 %', 'invalid answers %',
              'learning rate', 'updates', 'minutes', 'peak GiB']
  return rows_lib.Table(
      f'Depot: {title}, {budget // 1000}k choices', columns, lines,
      _NOTE.format(
          num_tasks=depot.NUM_TASKS, rates=', '.join(depot.SEARCH)))


def draw(
    records: records_lib.Records, path: pathlib.Path) -> list[pathlib.Path]:
  """Draws the return of Depot's arms against choices, a panel per preset."""
  presets = {}
  for reward in depot.REPORTED_AT:
    arms = {title: depot.seeds_of(
        records.curves, f'depot/{reward}/{depot.ARMS[title]}')
            for title in depot.DRAWN if title in depot.ARMS_OF[reward]}
    if any(arms.values()):
      presets[reward] = {title: arms[title] for title in arms if arms[title]}
  if not presets:
    return []
  drawing = figure.Figure(
      figsize=(1 + 3.5 * len(presets), 4.5), layout='constrained')
  panels, = drawing.subplots(1, len(presets), sharey=True, squeeze=False)
  colors = dict(zip(depot.DRAWN, colormaps['tab10'].colors, strict=False))
  for axes, (reward, arms) in zip(panels, presets.items()):
    budget, _ = depot_config.BUDGETS[reward]
    choices = np.linspace(0, budget, 100)
    for name, curves in arms.items():
      returns = np.array([
          np.interp(choices, curve['choices'], curve['returns'])
          for curve in curves])
      axes.plot(choices / 1000, returns.mean(axis=0), color=colors[name],
                label=name)
      axes.fill_between(
          choices / 1000, returns.min(axis=0), returns.max(axis=0),
          color=colors[name], alpha=0.15, linewidth=0)
    axes.set_title(reward)
    axes.set_xlabel('sampled choices (thousands)')
  panels[0].set_ylabel('return on held-out tasks')
  drawing.legend(
      *panels[0].get_legend_handles_labels(), loc='outside lower center',
      ncols=len(presets), fontsize='small')
  drawing.savefig(path, dpi=120)
  return [path]
