"""HTML pages of one file that need no network, and their plots.

Text written by a run or a model is never markup: the templates escape it, and
the scripts insert it as text nodes. The content security policy allows only the
style and the scripts of the page, by their hashes, and no requests.
"""

import base64
from collections.abc import Sequence
import dataclasses
import hashlib
import math
import pathlib
from typing import Any

import jinja2

_STATIC = pathlib.Path(__file__).parent / 'static'

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Line:
  """A line, the thin lines that it sums up, and a polygon around it."""

  label: str
  points: Points
  parts: Sequence[Points] = ()
  band: Points = ()


@dataclasses.dataclass(frozen=True)
class Plot:
  """Lines over an axis from 0 to `end`; the other axis includes 0.

  A band may leave the plot.
  """

  title: str
  lines: Sequence[Line]
  end: float
  end_label: str
  style: str = 'group'  # CSS class of the lines, without their number.

  @property
  def bounds(self) -> tuple[float, float]:
    """The lowest and the highest value."""
    values = [0.0, *(
        value for line in self.lines for points in (line.points, *line.parts)
        for _, value in points)]
    return min(values), max(values)


def render(template: str, scripts: Sequence[str] = (), **content: Any) -> str:
  """A page from `static/`; `scripts` are named in the order of their use."""
  style = (_STATIC / 'style.css').read_text()
  script = ''.join((_STATIC / f'{name}.js').read_text() for name in scripts)
  script = f"(() => {{\n'use strict';\n{script}}})();\n"
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_STATIC), autoescape=True,
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  environment.filters |= {
      'base64': _base64, 'number': _number, 'points': _points}
  return environment.get_template(template).render(
      content, style=style, script=script,
      style_digest=_base64(hashlib.sha256(style.encode()).digest()),
      script_digest=_base64(hashlib.sha256(script.encode()).digest()))


def _base64(data: bytes) -> str:
  return base64.b64encode(data).decode()


def _number(value: float | None) -> str:
  if value is None or not math.isfinite(value):
    return '–'
  return f'{value:.3g}'.replace('-', '−')


def _points(points: Points) -> str:
  """Points of SVG, whose y axis points down."""
  return ' '.join(f'{x},{-y}' for x, y in points)
