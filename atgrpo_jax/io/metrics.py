"""Where the numbers of a run go: a file, TensorBoard, and the terminal.

`metrics.jsonl` in the workdir is the record: one line of JSON per write,
`{"step": 3, "train/loss": 0.25, ...}`, holding nothing but what was passed in,
so that two equal runs write equal files. JSON has no numbers that are not
finite, so these are the strings "NaN", "Infinity" and "-Infinity"; Python's
`float` reads them back. Other `writers` get the same numbers.

A resumed run writes its last steps again. It therefore opens the record with
the offset kept in its checkpoint: what lies behind is cut off, and the writers
are told the step from which on, so that no step is counted twice.

Of several processes only the first writes.
"""

from collections.abc import Mapping, Sequence
import datetime
import json
import math
import pathlib
import resource
import sys
import time
from typing import Any

import jax
from rich import console as rich_console
from rich import progress as rich_progress

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from atgrpo_jax.io import writers as writers_lib


class MetricsWriter:
  """Writes named numbers by step; all is on disk when `write` returns."""

  def __init__(
      self, workdir: pathlib.Path, *, offset: int | None = None,
      writers: Sequence[str] = (), config: Mapping[str, Any] | None = None):
    """Opens the record of `workdir`.

    Args:
      workdir: of the run.
      offset: None for a new run, which must find no earlier lines; to resume,
        the bytes of `metrics.jsonl` to keep (0 keeps nothing).
      writers: see `writers.make`.
      config: of the run, for the writers.
    """
    self._file = None
    if not hosts.is_first():
      return
    path = workdir / 'metrics.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b''
    size = len(content)
    if offset is None:
      if size:
        raise errors.UserError(
            f'{path} already holds {size} bytes of another run: expected a '
            'new workdir. Resume that run, or choose another workdir.'
        )
      kept = b''
    else:
      kept = content[:offset]
      if len(kept) < offset or (kept and not kept.endswith(b'\n')):
        raise errors.UserError(
            f'{path} has no line that ends at byte {offset}, where the '
            f'checkpoint says it stopped ({size} bytes found). Restore the '
            'file that belongs to the checkpoint, or choose another workdir.'
        )
    self._file = files.GrowingFile(path, kept)

    next_step = None
    if offset is not None:
      next_step = json.loads(kept.splitlines()[-1])['step'] + 1 if kept else 0
    self._writers = writers_lib.make(
        writers, workdir, config or {}, next_step)

  def write(self, step: int, values: Mapping[str, float]):
    """Appends one line; names are slashed, such as `train/grad_norm`."""
    if 'step' in values:
      raise ValueError("a metric is called 'step': expected another name.")
    if self._file is None:
      return
    numbers = {name: float(value) for name, value in values.items()}
    line = {'step': step}
    line |= {name: _json_number(number) for name, number in numbers.items()}
    self._file.append(json.dumps(line, allow_nan=False).encode() + b'\n')

    for writer in self._writers:
      writer.write_scalars(step, numbers)
      writer.flush()

  def offset(self) -> int:
    """Bytes written so far; goes into the checkpoint.

    First puts them on the disk itself, so that a checkpoint that outlives a
    power cut never counts bytes that did not.
    """
    if self._file is None:
      return 0
    return self._file.sync()

  def close(self):
    """Closes the files."""
    if self._file is not None:
      self._file.close()
      for writer in self._writers:
        writer.close()


def read(workdir: pathlib.Path) -> list[dict[str, float]]:
  """The lines of `metrics.jsonl`; a UserError if they cannot be read."""
  path = workdir / 'metrics.jsonl'
  try:
    return [
        {name: float(value) for name, value in files.parse_json(line).items()}
        for line in path.read_text().splitlines()]
  except OSError as error:
    raise errors.UserError(f'Cannot read the metrics of a run: {error}.'
                           ) from error
  except (ValueError, AttributeError, TypeError) as error:
    raise errors.UserError(
        f'{path} is cut off or of another program ({error}). To train in '
        f'{workdir} again mends what lies behind the last checkpoint; else put '
        'the file back.') from error


class Progress:
  """How far the run is: a bar on a terminal, else one line per step."""

  def __init__(
      self, num_steps: int, *, num_done: int = 0, share_done: float = 0.0):
    """Shows `num_done` steps, of `num_steps` or, if that is 0, of any number.

    `share_done` is the part of the run that is over.
    """
    self._of = f'/{num_steps}' if num_steps else ''
    self._first: tuple[int, float] | None = None
    self._bar = None
    if sys.stdout.isatty():
      self._bar = rich_progress.Progress(
          rich_progress.TextColumn('step {task.fields[steps]}'),
          rich_progress.BarColumn(),
          rich_progress.TextColumn('{task.description}'),
          console=rich_console.Console(),
      )
      self._task = self._bar.add_task(
          'compiling', total=1.0, completed=share_done,
          steps=f'{num_done}{self._of}',
      )
      self._bar.start()

  def update(
      self,
      num_done: int,
      *,
      share_done: float,
      values: Mapping[str, float],
  ):
    """Shows that `num_done` steps are done, and how the last one went.

    Of the metrics `values` it shows the success of the rollout, which the
    selection by reward helps, and of the last validation, without it; and what
    took the time: parts of at least a twentieth, and programs that had to be
    compiled. After the first steps these mean a shape that was not met before.
    """
    now = time.monotonic()
    seconds = values['time/step']
    tokens_per_second = values['budget/completion_tokens'] / seconds
    parts = sorted((
        (x, name.removeprefix('time/')) for name, x in values.items()
        if name.startswith('time/') and name != 'time/step'
        and x >= seconds / 20), reverse=True)
    text = (
        f'success: rollout {values["rollout/success"]:.3f}, '
        f'validation {values["validation/success"]:.3f} '
        f'(step {values["validation/step"]})  '
        f'return {values["return/mean"]:.3f}  '
        f'{tokens_per_second:,.0f} tokens/s  {seconds:.1f} s: '
        + ', '.join(f'{name} {x:.1f}' for x, name in parts)
    )
    if values['compile/count']:
      text += (f', of these {values["compile/seconds"]:.1f} to compile '
               f'{values["compile/count"]}')
    if self._first is None:  # The first step compiles: it tells nothing.
      self._first = (share_done, now)
    else:
      first_share, first_time = self._first
      pace = (now - first_time) / (share_done - first_share)
      left = round(max(0.0, pace * (1 - share_done)))
      text += f'  {datetime.timedelta(seconds=left)} left'
    if self._bar is None:
      print(f'step {num_done}{self._of}  {text}', flush=True)
    else:
      self._bar.update(
          self._task, completed=share_done, description=text,
          steps=f'{num_done}{self._of}',
      )

  def close(self):
    """Leaves the terminal as it was."""
    if self._bar is not None:
      self._bar.stop()


class CompileCounter:
  """Counts the programs that jax asks for."""

  def __init__(self):
    self._clear()
    jax.monitoring.register_event_duration_secs_listener(self._listen)
    jax.monitoring.register_event_listener(self._listen_for_kept)

  def lap(self) -> dict[str, float]:
    """Metrics since the last call, or since it was made.

    Programs compiled, programs that jax's cache held, seconds for both.
    """
    metrics = {
        'compile/count': self._asked - self._kept,
        'compile/from_cache': self._kept, 'compile/seconds': self._seconds}
    self._clear()
    return metrics

  def _clear(self) -> None:
    self._asked, self._kept, self._seconds = 0, 0, 0.0

  def _listen(self, event: str, seconds: float, **kwargs):
    del kwargs
    if event == '/jax/core/compile/backend_compile_duration':
      self._asked += 1
      self._seconds += seconds

  def _listen_for_kept(self, event: str, **kwargs):
    del kwargs
    self._kept += event == '/jax/compilation_cache/cache_hits'


def peak_memory() -> dict[str, float]:
  """GiB that this process, and its fullest device if it tells, have needed."""
  kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  values = {'memory/host_peak_gib': kib / 2**20}
  peaks = [
      stats['peak_bytes_in_use'] for device in jax.local_devices()
      if (stats := device.memory_stats())]
  if peaks:
    values['memory/device_peak_gib'] = max(peaks) / 2**30
  return values


def _json_number(number: float) -> float | str:
  if math.isnan(number):
    return 'NaN'
  if math.isinf(number):
    return 'Infinity' if number > 0 else '-Infinity'
  return number
