"""Where the seconds of a training step go."""

from __future__ import annotations

from collections.abc import Collection, Iterator
import contextlib
import pathlib
import time

import jax

from atgrpo_jax.io import files


class StepClock:
  """Parts of a step that add up to it, but for a few statements of the loop."""

  def __init__(self):
    self._start = time.perf_counter()
    self._parts: dict[str, float] = {}

  @contextlib.contextmanager
  def part(self, name: str) -> Iterator[None]:
    """What runs in it is counted as `name`; parts are not nested."""
    start = time.perf_counter()
    with jax.profiler.TraceAnnotation(name):
      yield
    self.add(name, time.perf_counter() - start)

  def add(self, name: str, seconds: float) -> None:
    """Counts seconds that were measured elsewhere."""
    self._parts[name] = self._parts.get(name, 0.0) + seconds

  def move(self, source: str, name: str, seconds: float) -> None:
    """Counts some seconds of one part as those of another."""
    self.add(source, -seconds)
    self.add(name, seconds)

  def lap(self) -> dict[str, float]:
    """Metrics of the step that ends now, in seconds; another one begins.

    `time/step` is all of it, from the end of the step before.
    """
    now = time.perf_counter()
    parts = {f'time/{name}': x for name, x in self._parts.items()}
    parts['time/step'] = now - self._start
    self._start, self._parts = now, {}
    return parts


@contextlib.contextmanager
def profile(
    folder: pathlib.Path, step: int, steps: Collection[int]) -> Iterator[None]:
  """Writes a trace of a step, if it is one of `steps`, for XProf.

  Each process writes its own. The parts of a `StepClock` are named in it.
  """
  if step not in steps:
    yield
    return
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # Python's calls would hide all else.
  with (files.uploaded_folder(folder) as here,
        jax.profiler.trace(here, profiler_options=options),
        jax.profiler.StepTraceAnnotation('train', step_num=step)):
    yield
