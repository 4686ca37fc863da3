"""The HTML of a report: static sections, and scripts that draw the trees.

Text written by a run or a model is never markup. Static sections escape it.
Trees are compressed, base64-encoded, and inserted as text nodes by the scripts.
The content security policy allows only the scripts of the page, by their
hashes, and no requests.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
import gzip
import hashlib
import html
import json
import math
import pathlib
import re
from typing import Any

import numpy as np

from atgrpo_jax import evaluate
from atgrpo_jax.viewer import trees

_STATIC = pathlib.Path(__file__).parent / 'static'
_SCRIPTS = 'dom', 'tree', 'detail', 'browse'  # In the order of their use.

_PLOT_WIDTH, _PLOT_HEIGHT = 360, 180
_NUM_COLORS = 6


class Markup(str):
  """Text that is already HTML. Any other text is escaped."""


def element(name: str, *children: Any, **attributes: Any) -> Markup:
  """An element; children and attributes that are None are left out."""
  given = ''.join(
      f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
      for key, value in attributes.items() if value is not None)
  content = ''.join(
      child if isinstance(child, Markup) else html.escape(str(child))
      for child in children if child is not None)
  return Markup(f'<{name}{given}>{content}</{name}>')


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
  """A table; the first cell of a row is its heading."""
  head = element('tr', *(element('th', cell, scope='col') for cell in header))
  body = (
      element('tr', element('th', first, scope='row'), *(
          element('td', cell) for cell in rest))
      for first, *rest in rows)
  return element(
      'div', element('table', element('thead', head), element('tbody', *body)),
      class_='scroll', tabindex=0)


def render(run: Mapping[str, Any], sources: Sequence[trees.Source]) -> str:
  """The page of a run, as `report.read_run` returns it."""
  index = [
      {'name': it.name, 'kind': it.kind, 'file': it.file,
       'num_trees': it.num_trees, 'num_packed': it.num_packed}
      for it in sources]
  chunks = {'sources': gzip.compress(json.dumps(index).encode(), mtime=0)}
  chunks |= {f'trees-{i}': it.chunk for i, it in enumerate(sources)}
  style = (_STATIC / 'style.css').read_text()
  scripts = ''.join(
      (_STATIC / f'{name}.js').read_text() for name in _SCRIPTS)
  script = f"(() => {{\n'use strict';\n{scripts}}})();\n"
  name = _task_name(run['task'])
  parts = {
      'policy': (
          f"default-src 'none'; style-src {_digest(style)}; "
          f'script-src {_digest(script)}'),
      'style': f'<style>{style}</style>',
      'title': element('title', f'{name}: {run["name"]}'),
      'head': _head(run, name),
      'curves': ''.join(
          _plot(**plot) for plot in run['plots'])
                or element('p', 'No training step is finished yet.'),
      'evaluations': _evaluations(run),
      'config': element(
          'details', element('summary', 'All keys'),
          table(['key', 'value'], (
              [element('code', key), element('code', value)]
              for key, value in run['config'].items()))),
      'data': '\n'.join(
          f'<script type="text/plain" id="{key}">'
          f'{base64.b64encode(chunk).decode()}</script>'
          for key, chunk in chunks.items()),
      'script': f'<script>{script}</script>'}
  template = (_STATIC / 'page.html').read_text()
  # One pass, so that inserted text is never searched.
  return re.sub(r'\{\{(\w+)\}\}', lambda found: parts[found[1]], template)


def _digest(text: str) -> str:
  """The source of a content security policy for exactly this text."""
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


def _task_name(module: str) -> str:
  """'environments.boards.plan_path.env' as 'Plan path'."""
  name = module.removesuffix('.env').rpartition('.')[2]
  return name.replace('_', ' ').capitalize()


def _percent(value: float) -> str:
  return f'{100 * value:.1f} %'


def _number(value: float | None) -> str:
  if value is None or not math.isfinite(value):
    return '–'
  return f'{value:.3g}'.replace('-', '−')


def _interval(evaluation: Mapping[str, Any]) -> str:
  low, high = evaluation['interval']
  return f'{100 * low:.1f} … {_percent(high)}'


def _head(run: Mapping[str, Any], name: str) -> Markup:
  evaluations = {it['name']: it for it in run['evaluations']}
  figures = []
  for moment in ('before', 'after'):
    label = f'Success {moment} training'
    evaluation = evaluations.get(moment)
    if evaluation is None:
      figures.append(_figure(label, '–'))
    else:
      figures.append(_figure(
          label, _percent(evaluation['success']),
          f'95 %: {_interval(evaluation)}, '
          f'{evaluation["num_tasks"]} tasks'))
  minutes = run['seconds'] / 60
  figures += [
      _figure('Steps', f'{run["steps"]:,}', f'{minutes:.0f} min of steps'),
      _figure('Generated tokens', f'{run["tokens"]:,.0f}', 'in training'),
      _figure('Config', element('code', run['hash']), 'hash')]
  subtitle = [
      run['team'] and f'Team {run["team"]}', run['algorithm'],
      element('strong', run['state']), element('code', run['name'])]
  return Markup(
      element('h1', name)
      + element('p', *(element('span', it) for it in subtitle if it),
                id='subtitle')
      + element('div', *figures, class_='figures'))


def _figure(label: str, value: str, *notes: str) -> Markup:
  return element(
      'div', element('div', label, class_='label'),
      element('div', value, class_='value'),
      element('div', *notes, class_='label'), class_='figure')


def _evaluations(run: Mapping[str, Any]) -> str:
  if not run['evaluations']:
    return element('p', 'No evaluation is finished yet.')
  header = (
      'name', 'success', '95 % interval', 'tasks', 'return', 'turns',
      'turns to solve', 'truncated', 'after step', 'temperature', 'split',
      'sandbox', 'policies')
  rows = [[
      it['name'], _percent(it['success']), _interval(it),
      it['num_tasks'] - it['num_left_out'],
      _number(it['mean_return']), _number(it['mean_turns']),
      _number(it['mean_turns_to_solve']), _percent(it['truncated']),
      it['step'], it['sampling']['temperature'], it['split'],
      evaluate.sandbox_of(it) or 'no programs',
      ', '.join(f'{role}: {policy}'
                for role, policy in it['policy_map'].items())]
      for it in run['evaluations']]
  return table(header, rows)


def _plot(
    title: str, is_ratio: bool,
    lines: Mapping[str, Sequence[tuple[float, float]]]) -> Markup:
  """A line plot over steps, as SVG.

  Args:
    title: the caption.
    is_ratio: the axis goes from 0 to 100 %.
    lines: label -> points (step, value).
  """
  points = np.concatenate([np.array(line) for line in lines.values()])
  (first, low), (last, high) = points.min(axis=0), points.max(axis=0)
  low, high = (0.0, 1.0) if is_ratio else (min(0.0, low), high)
  show = _percent if is_ratio else _number
  left, top, right, bottom = 44, 8, _PLOT_WIDTH - 8, _PLOT_HEIGHT - 22

  def place(x, y):
    return (round(left + (right - left) * (x - first) / (last - first or 1), 1),
            round(bottom - (bottom - top) * (y - low) / (high - low or 1), 1))

  shapes, legend = [], []
  for value in (low, (low + high) / 2, high):
    _, y = place(first, value)
    shapes += [
        element('line', x1=left, x2=right, y1=y, y2=y, class_='grid'),
        element('text', show(value), x=left - 6, y=y + 4, class_='right')]
  for x, side in ((first, 'left'), (last, 'right')):
    shapes.append(element(
        'text', f'step {x:.0f}', x=place(x, low)[0], y=_PLOT_HEIGHT - 6,
        class_=side))
  for number, (label, line) in enumerate(lines.items()):
    color = f'line-{number % _NUM_COLORS}'
    corners = ' '.join('%s,%s' % place(*point) for point in line)
    shapes.append(element('polyline', points=corners, class_=color))
    legend.append(element(
        'span', element('i', class_=color), f'{label} {show(line[-1][1])}'))
  return element(
      'figure', element('figcaption', title),
      element('svg', *shapes, viewBox=f'0 0 {_PLOT_WIDTH} {_PLOT_HEIGHT}',
              role='img', aria_label=title),
      element('div', *legend, class_='legend'), class_='card')
