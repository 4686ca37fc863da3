"""Metrics of a run: the record, other writers, timers, and lines of steps.

`metrics.jsonl` in the workdir is the record: one JSON object per step,
`{"step": 3, "shared/loss": 0.25, ...}`, with null for NaN and infinity. It
holds only what was passed in, so two equal runs write equal files.

Every checkpoint stores the size of the record. A resumed run truncates the
record to that size, tells the writers the first step that it repeats, and
repeats the steps after its checkpoint. Only the first process writes.
"""

import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import datetime
import json
import math
import os
import pathlib
import resource
import time
from typing import Any
import uuid

import jax
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2
from tensorboardX.proto import summary_pb2

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from atgrpo_jax.io import progress


class MetricsWriter:
  """Writes named numbers per step; they are on disk when `write` returns."""

  def __init__(
      self, workdir: pathlib.Path, *, offset: int | None = None,
      writers: Sequence[str] = (), config: Mapping[str, Any] | None = None):
    """Opens the record of `workdir`.

    Args:
      workdir: the folder of the run.
      offset: bytes of `metrics.jsonl` to keep when resuming; None for a new
        run, whose workdir `workdir.check_config` has found empty.
      writers: see `check_writers`.
      config: of the run, for the writers.
    """
    self._path = workdir / 'metrics.jsonl'
    self._writers: list[Any] = []
    if not hosts.is_first():
      return
    files.make_folder(workdir)
    content = self._path.read_bytes() if self._path.exists() else b''
    kept = content[:offset or 0]
    if offset and (len(kept) < offset or not kept.endswith(b'\n')):
      raise errors.UserError(
          f'{self._path} has {len(content)} bytes and no line that ends at '
          f'byte {offset}, where the checkpoint continues. Restore the file '
          'that belongs to the checkpoint, or choose another workdir.')
    with files.whole_file(self._path) as file:
      file.write(kept)
    self._size = len(kept)
    first_step = None
    if offset is not None:
      first_step = json.loads(kept.splitlines()[-1])['step'] + 1 if kept else 0
    self._writers = [
        _writer_factory(name)(workdir, config or {}, first_step)
        for name in writers]

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends one line; names have slashes, e.g. `train/grad_norm`.

    Raises LostWorkdirError if the file has changed since the last line.
    """
    if not hosts.is_first():
      return
    numbers = {name: float(value) for name, value in values.items()}
    record = {'step': step} | {
        name: number if math.isfinite(number) else None
        for name, number in numbers.items()}
    line = json.dumps(record, allow_nan=False).encode() + b'\n'
    stat = self._path.stat()
    size = stat.length if files.is_remote(self._path) else stat.st_size
    if size != self._size:
      raise errors.LostWorkdirError(
          f'Another process wrote to {self._path}, which has {size} bytes '
          f'instead of {self._size}. Stop the other run, then run the same '
          'command again.')
    files.append(self._path, line)
    self._size += len(line)
    for writer in self._writers:
      writer.write_scalars(step, numbers)

  def offset(self) -> int:
    """Syncs the record to disk and returns its size, for the checkpoint."""
    if not hosts.is_first():
      return 0
    if not files.is_remote(self._path):
      with self._path.open('rb') as file:
        os.fsync(file.fileno())
    return self._size

  def close(self) -> None:
    for writer in self._writers:
      writer.close()


def read(workdir: pathlib.Path) -> list[dict[str, float]]:
  """Reads `metrics.jsonl`, a dict per line; UserError if it is damaged."""
  path = workdir / 'metrics.jsonl'
  with files.read_errors_as_user_errors(
      path, f'resume the run in {workdir}, which repairs the lines after the '
      'last checkpoint, or restore the file'):
    return [
        {name: float('nan' if value is None else value)
         for name, value in json.loads(line).items()}
        for line in path.read_text().splitlines()]


# Writers beside the record have two methods of clu's MetricWriter,
# `write_scalars` and `close`. A resumed run repeats steps.


class TensorBoard:
  """Event files in `tensorboard/`."""

  def __init__(
      self, workdir: pathlib.Path, config: Mapping[str, Any],
      first_step: int | None):
    """Tells TensorBoard to hide older events from `first_step` on."""
    del config
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    # tensorboardX's SummaryWriter has a queue that its flush does not empty;
    # EventsWriter has no queue.
    self._events = event_file_writer.EventsWriter(
        str(folder / 'events'),
        # Default names have whole seconds, and an equal name overwrites.
        filename_suffix=f'.{time.time_ns()}')
    if first_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(step=first_step, session_log=start)

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
    self._write(step=step, summary=summary_pb2.Summary(value=[
        summary_pb2.Summary.Value(tag=name, simple_value=number)
        for name, number in values.items()]))

  def close(self) -> None:
    self._events.close()

  def _write(self, **fields: Any) -> None:
    self._events.write_event(event_pb2.Event(wall_time=time.time(), **fields))
    self._events.flush()


_RUN_ID = 'wandb_run_id'  # File in the workdir.


class WandB:
  """A run of Weights & Biases; a resumed workdir resumes it."""

  def __init__(
      self, workdir: pathlib.Path, config: Mapping[str, Any],
      first_step: int | None):
    try:
      import wandb
    except ImportError as error:
      raise errors.UserError(
          "train.writers names 'wandb', which is not installed; install the "
          'extra `wandb` of setup.py, or remove it.') from error
    del first_step  # wandb keeps the first value of a repeated step.
    is_remote = files.is_remote(workdir)
    folder = workdir if is_remote else workdir.resolve()
    path = folder / _RUN_ID
    if not path.exists():  # A new run, also in a folder that was deleted.
      files.write_whole(path, uuid.uuid4().hex)
    try:
      self._run = wandb.init(
          id=path.read_text(), name=folder.name,
          dir=None if is_remote else str(folder), config=dict(config),
          resume='allow')
    except Exception as error:  # Settings, disk and network: no common type.
      raise errors.UserError(
          f"train.writers names 'wandb', which failed ({errors.one_line(error)}"
          '); run `wandb login`, or set WANDB_MODE=offline.') from error

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def close(self) -> None:
    self._run.finish()


_WRITERS = {'tensorboard': TensorBoard, 'wandb': WandB}


def check_writers(names: Sequence[str]) -> None:
  """Raises UserError unless every name can be used and appears once.

  A name is 'tensorboard', 'wandb', or a module with a function
  `make_writer(workdir, config, first_step)`, where `first_step` is the next
  step of a resumed run and None for a new one.
  """
  for name in names:
    if names.count(name) > 1:
      raise errors.UserError(
          f'train.writers={names} names {name!r} twice; remove one.')
    _writer_factory(name)


def _writer_factory(name: str) -> Callable[..., Any]:
  return _WRITERS.get(name) or rules.load(
      f'train.writers names {name!r}, which is not {" or ".join(_WRITERS)}',
      name, 'make_writer')


class StepClock:
  """Wall time by part; the parts add up to nearly the whole step."""

  def __init__(self):
    self._start = time.perf_counter()
    self._parts = collections.Counter()

  @contextlib.contextmanager
  def part(self, name: str) -> Iterator[None]:
    """Adds the time of the block to part `name`; parts do not nest."""
    start = time.perf_counter()
    with (jax.profiler.TraceAnnotation(name),
          progress.activity(lambda: f'{name} …')):
      yield
    self._parts[name] += time.perf_counter() - start

  def move(self, source: str, name: str, seconds: float) -> None:
    """Moves seconds from one part to another."""
    self._parts[source] -= seconds
    self._parts[name] += seconds

  def lap(self) -> dict[str, float]:
    """Returns seconds by part, and `time/step` since the previous call."""
    now = time.perf_counter()
    parts = {f'time/{name}': x for name, x in self._parts.items()}
    parts['time/step'] = now - self._start
    self._start, self._parts = now, collections.Counter()
    return parts


@contextlib.contextmanager
def profile(
    folder: pathlib.Path, step: int, steps: Collection[int]) -> Iterator[None]:
  """Writes a trace for XProf if `step` is in `steps`, one per process."""
  if step not in steps:
    yield
    return
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # Python calls would hide the rest.
  with (files.uploaded_folder(folder) as local,
        jax.profiler.trace(local, profiler_options=options),
        jax.profiler.StepTraceAnnotation('train', step_num=step)):
    yield


class CompileCounter:
  """Counts the programs that jax compiles or loads from its cache."""

  def __init__(self):
    self._since = collections.Counter()
    jax.monitoring.register_event_duration_secs_listener(self._on_duration)
    jax.monitoring.register_event_listener(self._on_event)

  def lap(self) -> dict[str, float]:
    """Metrics since the last call; `seconds` includes loading."""
    since, self._since = self._since, collections.Counter()
    return {
        'compile/count': since['requested'] - since['loaded'],
        'compile/from_cache': since['loaded'],
        'compile/seconds': since['seconds']}

  def _on_duration(self, event: str, seconds: float, **kwargs) -> None:
    del kwargs
    if event == progress.COMPILE:
      self._since.update(requested=1, seconds=seconds)

  def _on_event(self, event: str, **kwargs) -> None:
    del kwargs
    self._since['loaded'] += event == '/jax/compilation_cache/cache_hits'


def peak_memory() -> dict[str, float]:
  """Peak GiB of this process and, if known, of its fullest device."""
  kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  values = {'memory/host_peak_gib': kib / 2**20}
  peaks = [
      stats['peak_bytes_in_use'] for device in jax.local_devices()
      if (stats := device.memory_stats())]
  if peaks:
    values['memory/device_peak_gib'] = max(peaks) / 2**30
  return values


class StepPrinter:
  """Prints one line per step."""

  def __init__(self, num_steps: int):
    """`num_steps` is the length of the run, or 0 if it is unknown."""
    self._total = f'/{num_steps}' if num_steps else ''
    self._first: tuple[float, float] | None = None

  def update(
      self, num_done: int, *, fraction_done: float,
      values: Mapping[str, float]) -> None:
    """Prints the last step, its parts of at least 5 %, and the time left."""
    now = time.monotonic()
    seconds = values['time/step']
    parts = sorted((
        (x, name.removeprefix('time/')) for name, x in values.items()
        if name.startswith('time/') and name != 'time/step'
        and x >= seconds / 20), reverse=True)
    text = (
        f'success: rollout {values["rollout/success"]:.3f}, '
        f'validation {values["validation/success"]:.3f} '
        f'(step {values["validation/step"]})  '
        f'return {values["return/mean"]:.3f}  '
        f'{values["budget/completion_tokens"] / seconds:,.0f} tokens/s  '
        f'{seconds:.1f} s: '
        + ', '.join(f'{name} {x:.1f}' for x, name in parts))
    if values['compile/count']:
      text += (f', compiling {values["compile/count"]} programs '
               f'{values["compile/seconds"]:.1f}')
    if self._first is None:  # The first step compiles, so it predicts nothing.
      self._first = (fraction_done, now)
    else:
      first_fraction, first_time = self._first
      pace = (now - first_time) / (fraction_done - first_fraction)
      left = round(max(0.0, pace * (1 - fraction_done)))
      text += f'  {datetime.timedelta(seconds=left)} left'
    print(f'step {num_done}{self._total}  {text}', flush=True)
