"""Where the metrics of a run go beside `metrics.jsonl`.

A writer has the methods of clu's `MetricWriter` that are used here:

  write_scalars(step, values)  name -> float; may be called again for a step
  flush()                      what was written is safe when it returns
  close()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import importlib
import pathlib
import time
from typing import Any, Protocol

from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2
from tensorboardX.proto import summary_pb2

from atgrpo_jax import errors
from atgrpo_jax.io import files


class Writer(Protocol):
  """See the module."""

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None: ...

  def flush(self) -> None: ...

  def close(self) -> None: ...


def make(
    names: Sequence[str], workdir: pathlib.Path, config: Mapping[str, Any],
    first_step: int | None) -> list[Writer]:
  """The writers of a run.

  Args:
    names: 'tensorboard', 'wandb', or modules with a function
      `make_writer(workdir, config, first_step)`.
    workdir: of the run.
    config: of the run, as nested dicts.
    first_step: the next one, of a run that goes on; None for a new one.

  Raises:
    UserError: a name is none of these, or what it needs is not installed.
  """
  def make_one(name):
    if name in _KNOWN:
      return _KNOWN[name](workdir, config, first_step)
    with _of_module(name) as make_writer:
      return make_writer(workdir, config, first_step)

  return [make_one(name) for name in names]


class TensorBoard:
  """Event files in `tensorboard/`."""

  def __init__(
      self, workdir: pathlib.Path, config: Mapping[str, Any],
      first_step: int | None):
    """TensorBoard is told to hide what there is from `first_step` on."""
    del config
    # tensorboardX's SummaryWriter passes events on through a queue that its
    # flush does not empty; this one writes at once.
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    self._events = event_file_writer.EventsWriter(
        str(folder / 'events'),
        # Names have whole seconds, and a file of the same name is emptied.
        filename_suffix=f'.{time.time_ns()}')
    if first_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._events.write_event(event_pb2.Event(
          wall_time=time.time(), step=first_step, session_log=start))
      self._events.flush()

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
    summary = summary_pb2.Summary(value=[
        summary_pb2.Summary.Value(tag=name, simple_value=number)
        for name, number in values.items()])
    self._events.write_event(event_pb2.Event(
        wall_time=time.time(), step=step, summary=summary))

  def flush(self) -> None:
    self._events.flush()

  def close(self) -> None:
    self._events.close()


class WandB:
  """A run of Weights & Biases, the same one for one workdir."""

  def __init__(
      self, workdir: pathlib.Path, config: Mapping[str, Any],
      first_step: int | None):
    try:
      import wandb
    except ImportError as error:
      raise errors.UserError(
          "train.writers names 'wandb', which is not installed; `pip install "
          'wandb`, or leave it out.') from error
    del first_step  # It goes by the step of what is written.
    is_remote = files.is_remote(workdir)
    place = workdir if is_remote else workdir.resolve()
    self._run = wandb.init(
        id=hashlib.sha256(str(place).encode()).hexdigest()[:16],
        name=place.name, dir=None if is_remote else str(place),
        config=dict(config), resume='allow')

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def flush(self) -> None:
    """It sends in the background."""

  def close(self) -> None:
    self._run.finish()


def check(names: Sequence[str]) -> None:
  """Raises UserError unless each can be found, and is named once."""
  for name in names:
    if names.count(name) > 1:
      raise errors.UserError(
          f'train.writers={names} names {name!r} twice; leave one of them out.')
    if name not in _KNOWN:
      with _of_module(name):
        pass


@contextlib.contextmanager
def _of_module(name: str) -> Iterator[Callable[..., Writer]]:
  """Its `make_writer`; UserError if there is none, or if the call raises."""
  try:
    yield importlib.import_module(name).make_writer
  except errors.USER_CODE_ERRORS as error:
    raise errors.UserError(
        f'train.writers names {name!r}, which is none of '
        f'{", ".join(_KNOWN)} and cannot be used as a module '
        f'({errors.one_line(error)}); it must have make_writer(workdir, '
        'config, first_step).') from error


_KNOWN = {'tensorboard': TensorBoard, 'wandb': WandB}
