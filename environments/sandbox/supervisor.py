"""Starts a program, watches it, sweeps up, and reports how it ended.

The program reads its own request and writes to files in memory, which the
kernel copies to the connection. A supervisor never holds either. Programs are
forks of the supervisor, so this keeps one program from finding another's
source, input or output in inherited memory.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import socket
import time

from environments.sandbox import isolation as isolation_lib
from environments.sandbox import processes
from environments.sandbox import program
from environments.sandbox import protocol

MAX_THREADS = 64
_TICK = 0.01  # Seconds between two counts of threads.
_CLIENT_SECONDS = 60  # Timeout of the client's side of a connection.
_START_SECONDS = 2 * _CLIENT_SECONDS  # The program waits for the client too.


def serve(listener: socket.socket, isolation: isolation_lib.Isolation) -> None:
  """Runs the programs of one connection after another."""
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ends without a traceback.
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  while True:
    connection, _ = listener.accept()
    with connection:
      connection.settimeout(_CLIENT_SECONDS)
      try:
        _supervise(connection, isolation)
      except ConnectionError:
        pass  # The client has gone.
      except BaseException as error:
        # Silence would blame the program. The server replaces this process.
        report = protocol.ExitReport(
            protocol.Status.INFRASTRUCTURE, -1,
            f'{type(error).__name__}: {error}', 0.0, 0.0, (0, 0, 0))
        with contextlib.suppress(OSError):
          connection.sendall(protocol.pack(report) + b'\n')
        raise


def _supervise(
    connection: socket.socket, isolation: isolation_lib.Isolation) -> None:
  """Runs one program to its end; sends its report and output."""
  with contextlib.ExitStack() as stack:
    stack.callback(processes.kill_descendants)
    outputs = [
        stack.enter_context(open(os.memfd_create(name), 'rb'))
        for name in ('stdout', 'stderr', 'value')]
    reader, writer = os.pipe()
    ready = stack.enter_context(open(reader, 'rb', 0))
    parent = os.getpid()
    pid = os.fork()
    if not pid:
      processes.die_with(parent)
      program.main(
          connection, isolation, [file.fileno() for file in outputs], writer)
    os.close(writer)
    if not select.select([ready], [], [], _START_SECONDS)[0]:
      raise TimeoutError(f'no program started within {_START_SECONDS} s')
    packed_limits = ready.read(4096)
    if not packed_limits:
      if os.waitpid(pid, 0)[1]:
        raise RuntimeError('a process died before its program started')
      return  # The client has gone.
    limits = protocol.unpack_limits(packed_limits)
    started = time.monotonic()
    end = _watch(pid, started + limits.wall_seconds)
    os.killpg(pid, signal.SIGKILL)  # The whole group: none can fork away.
    _, wait_status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - started
    processes.kill_descendants()  # They could still write.

    sizes = [os.fstat(file.fileno()).st_size for file in outputs]
    exit_code = os.waitstatus_to_exitcode(wait_status)
    cpu = usage.ru_utime + usage.ru_stime
    is_flooded = max(sizes) > limits.output_bytes
    sizes = [min(size, limits.output_bytes) for size in sizes]
    status, reason = _classify(limits, end, is_flooded, cpu, exit_code)
    connection.sendall(protocol.pack(protocol.ExitReport(
        status, exit_code, reason, cpu, wall, sizes)) + b'\n')
    for file, size in zip(outputs, sizes):
      if size:
        connection.sendfile(file, 0, size)


class _End(enum.Enum):
  """Why a supervisor stopped watching."""

  EXIT = enum.auto()
  THREADS = enum.auto()
  WALL_CLOCK = enum.auto()


def _watch(pid: int, deadline: float) -> _End:
  """Waits until the program ends or must be ended.

  Counts threads because the kernel does not limit those of root.
  """
  with open(os.pidfd_open(pid), 'rb', 0) as process:
    while not select.select([process], [], [], _TICK)[0]:
      if time.monotonic() >= deadline:
        return _End.WALL_CLOCK
      if processes.num_threads(pid) > MAX_THREADS:
        return _End.THREADS
  return _End.EXIT


def _classify(
    limits: protocol.Limits, end: _End, is_flooded: bool, cpu_seconds: float,
    exit_code: int) -> tuple[protocol.Status, str]:
  """The status, and why the sandbox or a signal stopped the program."""
  status = protocol.Status
  if is_flooded or exit_code == -signal.SIGXFSZ:
    return status.RESOURCE_LIMIT, (
        f'stopped: more than {limits.output_bytes} bytes of output')
  if end is _End.THREADS:
    return status.RESOURCE_LIMIT, f'stopped: more than {MAX_THREADS} threads'
  if end is _End.WALL_CLOCK:
    return status.TIMEOUT, (
        f'stopped: wall-clock limit of {limits.wall_seconds} s')
  if cpu_seconds > limits.cpu_seconds or exit_code == -signal.SIGXCPU:
    return status.TIMEOUT, f'stopped: CPU limit of {limits.cpu_seconds} s'
  if exit_code == -program.OUT_OF_MEMORY:
    return status.RESOURCE_LIMIT, (
        f'stopped: memory limit of {limits.memory_bytes} bytes')
  if exit_code < 0:
    # Most real-time signals have no name.
    names = {signal.value: signal.name for signal in signal.Signals}
    name = names.get(-exit_code, f'signal {-exit_code}')
    return status.ERROR, f'killed by {name}'
  return status.ERROR if exit_code else status.OK, ''
