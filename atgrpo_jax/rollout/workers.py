"""Steps environments in worker processes, with a sandbox for their programs.

`Workers` owns the worker processes and the sandbox server. It replaces those
that are dead or stopped; a slow step is not a fault. Steps that fail because of
the sandbox are repeated together on a new server, then one by one, each on a
new server. Steps that are lost with two pools of workers in a row are repeated
one by one. One that kills two more workers has the outcome INFRASTRUCTURE, so
it harms no other step. A step is a function of its state and actions, so
repeating it gives the same bits. docs/sandbox.md lists the faults.

This module starts processes before jax is imported, so it must not import jax.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import process
import contextlib
import dataclasses
import logging
import multiprocessing
from multiprocessing import context
import os
import time

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import contract
from environments import env_api
from environments import sandbox as sandbox_lib
from environments.sandbox import processes

NO_PROGRAMS = 'none'  # The level without a sandbox server.
REMOTE = sandbox_lib.Level.REMOTE.value
LEVELS = (*sandbox_lib.LEVELS, REMOTE, NO_PROGRAMS)
# Consecutive replacements without a successful step; one more stops the run.
MAX_IN_A_ROW = 8
_TICK = 1.0  # Seconds between two checks of the server and the processes.
_END_SECONDS = 10.0  # Time for the processes to exit before they are killed.
_MAX_BY_DEFAULT = 32  # Workers and programs of a host.
_COUNTS = 'server_restarts', 'pool_restarts', 'repeated_steps'


@dataclasses.dataclass(eq=False)
class StepBatch:
  """The steps of one message to a worker."""

  workers: 'Workers'
  step_all: Callable[..., list[env_api.Step]]
  environment: env_api.Environment
  requests: Sequence[contract.StepRequest]
  future: futures.Future | None = None
  steps: list[env_api.Step] | None = None
  # Indices of the steps that kill workers, and are not repeated.
  killers: set[int] = dataclasses.field(default_factory=set)

  def result(self) -> list[env_api.Step]:
    """Waits for all batches, so that retries run alone."""
    self.workers.finish()
    return self.steps

  def failed(self) -> list[int]:
    """Indices of the steps that failed because of the sandbox."""
    return [
        index for index, step in enumerate(self.steps)
        if index not in self.killers
        and env_api.Outcome.INFRASTRUCTURE in step.outcomes.values()]


class Workers:
  """Owns the sandbox server and the worker processes; a context manager.

  Enter it before jax is imported, because a process with jax must not fork.
  Later replacements need no fork.
  """

  def __init__(
      self, num_workers: int, program_slots: int, level: str, url: str = '',
      is_stopped: Callable[[], bool] = lambda: False):
    """Checks the arguments and starts nothing yet; may raise UserError.

    Args:
      num_workers: number of worker processes; 0 for half as many as there are
        cores, from 2 to 32.
      program_slots: programs that run at a time; 0 as above.
      level: one of `LEVELS`.
      url: http://HOST:PORT of a SandboxFusion service for level 'remote'.
      is_stopped: if True, waiting for steps raises `signals.Stopped`.
    """
    for name, number in (
        ('num_workers', num_workers), ('program_slots', program_slots)):
      errors.check_number(
          f'environment.{name}', number, min_value=0,
          less_than=sandbox_lib.MAX_SLOTS + 1, advice='; each is a process')
    errors.check_choice('sandbox.level', level, LEVELS)
    self._is_stopped = is_stopped
    self._counts = dict.fromkeys(_COUNTS, 0)
    by_default = min(max(2, (os.cpu_count() or 1) // 2), _MAX_BY_DEFAULT)
    self.num_workers = num_workers or by_default
    self._server = None
    if level == REMOTE:
      with errors.as_user_error():
        self._server = sandbox_lib.RemoteServer(url)
    elif url:
      raise errors.UserError(
          f'sandbox.url={url!r} has no effect with sandbox.level={level}; set '
          "sandbox.level=remote or sandbox.url=''.")
    elif level != NO_PROGRAMS:
      self._server = sandbox_lib.SandboxServer(
          program_slots or by_default, level)
    self._batches: list[StepBatch] = []  # Since the last `finish`.
    self._in_a_row = 0
    self._first: futures.Future | None = None  # Of the first pool.

  @property
  def sandbox(self) -> sandbox_lib.Sandbox | None:
    """The sandbox of the environments; survives restarts of the server."""
    return self._server and self._server.sandbox

  @property
  def level(self) -> str:
    """The level at which programs run; 'auto' is resolved."""
    return self._server.level.value if self._server else NO_PROGRAMS

  def submit(
      self, step_all: Callable[..., list[env_api.Step]],
      environment: env_api.Environment,
      requests: Sequence[contract.StepRequest]) -> StepBatch:
    """Starts to step each state with its actions, by `step_all`."""
    batch = StepBatch(self, step_all, environment, requests)
    self._start(batch)
    self._batches.append(batch)
    return batch

  def finish(self) -> None:
    """Waits for all batches and repeats failed steps; see the module.

    Raises InfrastructureError if the failures persist, UserError if the first
    worker process cannot start, or Stopped.
    """
    batches, self._batches = self._batches, []
    num_restarts = self._counts['server_restarts']
    self._wait(batches)
    failed = [(batch, i) for batch in batches for i in batch.failed()]
    if failed and self._counts['server_restarts'] == num_restarts:
      self._restart_server()
    for step in self._repeat(failed):
      self._restart_server()
      self._repeat([step])

  def take_counts(self) -> dict[str, int]:
    """Restarts and repeated steps since the last call, by name."""
    counts, self._counts = self._counts, dict.fromkeys(_COUNTS, 0)
    return counts

  def _repeat(
      self,
      failed: Sequence[tuple[StepBatch, int]]) -> list[tuple[StepBatch, int]]:
    """Repeats failed steps and returns those that fail again."""
    self._counts['repeated_steps'] += len(failed)
    repeats = [
        dataclasses.replace(
            batch, requests=[batch.requests[i]], steps=None, killers=set())
        for batch, i in failed]
    for batch in repeats:
      self._start(batch)
    self._wait(repeats)
    for (batch, i), repeated in zip(failed, repeats):
      batch.steps[i], = repeated.steps
      if repeated.killers:
        batch.killers.add(i)
    return [
        step for step, repeat in zip(failed, repeats) if repeat.failed()]

  def _start(self, batch: StepBatch) -> None:
    try:
      batch.future = self._pool.submit(
          batch.step_all, batch.environment, batch.requests)
    except process.BrokenProcessPool as error:  # `_wait` handles it.
      batch.future = futures.Future()
      batch.future.set_exception(error)

  def _wait(self, batches: Sequence[StepBatch]) -> None:
    """Waits until all batches have steps, replacing broken parts."""
    while unfinished := [batch for batch in batches if batch.steps is None]:
      if self._is_stopped():
        raise signals.Stopped
      futures.wait([batch.future for batch in unfinished], _TICK)
      is_broken = self._has_stopped_worker()
      for batch in unfinished:
        if batch.future.done():
          try:
            batch.steps = batch.future.result()
          except process.BrokenProcessPool:
            is_broken = True
          else:
            if not batch.failed():
              self._in_a_row = 0
      if is_broken:
        self._check_start()
        lost = [batch for batch in unfinished if batch.steps is None]
        self._count_in_a_row('worker processes' + (
            f' (first lost step: {contract.where_of(lost[0].requests[0])})'
            if lost else ''))
        self._restart_pool()
        repeat = self._run_alone if self._in_a_row > 1 else self._start
        for batch in lost:
          repeat(batch)
      if self._server is not None and not self._server.is_running():
        self._restart_server()

  def _run_alone(self, batch: StepBatch) -> None:
    """Repeats the steps of a batch, one at a time."""
    batch.steps = []
    for index, request in enumerate(batch.requests):
      alone = dataclasses.replace(batch, requests=[request])
      for _ in range(2):
        self._start(alone)
        while not alone.future.done() and not self._has_stopped_worker():
          if self._is_stopped():
            raise signals.Stopped
          futures.wait([alone.future], _TICK)
        try:
          batch.steps += alone.future.result(timeout=0)
          self._in_a_row = 0
          break
        except (process.BrokenProcessPool, TimeoutError):
          self._restart_pool()
      else:
        where = contract.where_of(request)
        self._count_in_a_row(f'worker process of a step {where}')
        batch.killers.add(index)
        batch.steps.append(contract.unfinished_step(
            batch.environment, request, env_api.Outcome.INFRASTRUCTURE))

  def _has_stopped_worker(self) -> bool:
    return any(
        processes.is_stopped(worker.pid) for worker in self._context.started)

  def _restart_pool(self) -> None:
    rules.check_unchanged()
    self._counts['pool_restarts'] += 1
    self._end_pool(seconds=0.0)
    self._start_pool()

  def _restart_server(self) -> None:
    """Restarts the server, if there is one, until it runs programs."""
    if self._server is None:
      return
    self._counts['server_restarts'] += 1
    while True:
      self._count_in_a_row(self._server.name)
      try:
        self._server.restart()
        return
      except (RuntimeError, OSError) as error:
        logging.warning('%s', error)

  def _count_in_a_row(self, name: str) -> None:
    self._in_a_row += 1
    if self._in_a_row > MAX_IN_A_ROW:
      raise errors.InfrastructureError(
          f'The {name} failed again after {MAX_IN_A_ROW} replacements without '
          'a successful step, for a reason outside the model; find the reason '
          'in the log above, then run the same command again.')
    logging.warning('The %s failed and will be replaced.', name)

  def _check_start(self) -> None:
    """Raises UserError if the first pool broke before it did anything."""
    is_known = self._first.done() and not self._first.cancelled()
    if is_known and isinstance(
        self._first.exception(), process.BrokenProcessPool):
      raise errors.UserError(
          'A worker process could not start; its error is in the log above. '
          'Workers import the main script, so it must be a file, not standard '
          "input, and use a run below `if __name__ == '__main__':`.")

  def _start_pool(self) -> None:
    self._context = _Context()
    self._pool = futures.ProcessPoolExecutor(
        self.num_workers, mp_context=self._context,
        initializer=signals.begin_worker)

  def _end_pool(self, seconds: float) -> None:
    """Waits this long for the processes to exit, then kills them."""
    self._pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + seconds
    for worker in self._context.started:
      worker.join(max(0.0, deadline - time.monotonic()))
      if worker.is_alive():
        worker.kill()
        worker.join()

  def __enter__(self) -> 'Workers':
    with contextlib.ExitStack() as stack:
      if self._server is not None:
        try:
          self._server.start()
        except sandbox_lib.NoSandboxError as error:
          raise errors.UserError(str(error)) from error
        stack.callback(self._server.close)
      self._start_pool()
      # Starts a worker while jax is imported.
      self._first = self._pool.submit(int)
      stack.pop_all()
    return self

  def __exit__(self, *exception) -> None:
    self._end_pool(_END_SECONDS)
    if self._server is not None:
      self._server.close()


class _Context(context.SpawnContext):
  """Remembers its processes, which a pool does not expose."""

  def __init__(self):
    self.started: list[multiprocessing.Process] = []

  def Process(self, *args, **kwargs) -> multiprocessing.Process:
    self.started.append(super().Process(*args, **kwargs))
    return self.started[-1]
