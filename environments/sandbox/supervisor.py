"""Starts a program, watches it, sweeps up, and reports how it ended.

The program reads its own request, and the kernel moves its output from a pipe
to the connection. A supervisor never holds either. Programs are forks of the
supervisor, so this keeps one program from finding another's source, input or
output in inherited memory.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import enum
import fcntl
import io
import os
import select
import signal
import socket
import struct
import termios
import time
import traceback
from typing import NoReturn

from environments.sandbox import isolation as isolation_lib
from environments.sandbox import processes
from environments.sandbox import program
from environments.sandbox import protocol

MAX_THREADS = 64
_TICK = 0.01  # Seconds between two counts of threads.
_CLIENT_SECONDS = 60  # Timeout of the client's side of a connection.
_START_SECONDS = 2 * _CLIENT_SECONDS  # The program waits for the client too.


def serve(
    listener: socket.socket, isolation: isolation_lib.Isolation,
    server_id: int, parent: int) -> NoReturn:
  """Serves one connection after another; never returns.

  Args:
    listener: where clients connect.
    isolation: entered by the programs.
    server_id: sent in greetings.
    parent: id of the process that forked this one.
  """
  try:
    processes.die_with(parent)
    processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ends without a traceback.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    while True:
      with _accept(listener, server_id) as connection:
        try:
          report = _supervise(connection, isolation)
        except BaseException as error:
          _send_fault(connection, error)
          raise
        finally:
          processes.kill_descendants()
        if report is not None:
          connection.sendall(
              protocol.frame(protocol.REPORT, protocol.pack(report)))
  except ConnectionError:
    pass  # The client has gone.
  except BaseException:
    traceback.print_exc()
  finally:
    os._exit(0)


def _accept(listener: socket.socket, server_id: int) -> socket.socket:
  """Takes a connection and greets its client."""
  connection, _ = listener.accept()
  # Not `settimeout`: it makes the socket non-blocking, `splice` included.
  for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
    connection.setsockopt(
        socket.SOL_SOCKET, option, struct.pack('ll', _CLIENT_SECONDS, 0))
  protocol.send_greeting(connection, server_id)
  return connection


def _send_fault(connection: socket.socket, error: BaseException) -> None:
  """Sends the reason; silence would blame the program."""
  fault = f'{type(error).__name__}: {error}'.encode(errors='replace')
  try:
    connection.sendall(protocol.frame(protocol.FAULT, fault))
  except OSError:  # The client has gone, or does not read.
    pass


def _supervise(
    connection: socket.socket, isolation: isolation_lib.Isolation,
    ) -> protocol.ExitReport | None:
  """Runs one program to its end; None without a request."""
  readers, writers = zip(*(os.pipe() for _ in range(4)))
  parent = os.getpid()
  pid = os.fork()
  if not pid:
    processes.die_with(parent)
    program.main(connection, isolation, *writers)
  for fd in writers:
    os.close(fd)
  with contextlib.ExitStack() as stack:
    *pipes, ready = (
        stack.enter_context(open(fd, 'rb', 0)) for fd in readers)
    if not select.select([ready], [], [], _START_SECONDS)[0]:
      raise TimeoutError(f'no program started within {_START_SECONDS} s')
    limits = ready.read(4096)
    if not limits:
      if os.waitpid(pid, 0)[1]:
        raise RuntimeError(
            'a process died before its program started')
      return None
    limits = protocol.unpack_limits(limits)
    kinds = protocol.STDOUT, protocol.STDERR, protocol.VALUE
    outputs = [
        _Output(kind, pipe, limits.output_bytes)
        for kind, pipe in zip(kinds, pipes)]
    started = time.monotonic()
    end = _watch(pid, connection, outputs, started + limits.wall_seconds)
    os.killpg(pid, signal.SIGKILL)  # The whole group: none can fork away.
    _, wait_status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - started
    for output in outputs:  # Never waits for a holder of the pipe.
      output.move(connection)
      if output.flooded:
        end = _End.FLOOD

  cpu = usage.ru_utime + usage.ru_stime
  exit_code = os.waitstatus_to_exitcode(wait_status)
  status, reason = _classify(limits, end, cpu, exit_code)
  return protocol.ExitReport(status, exit_code, reason, cpu, wall)


def _classify(
    limits: protocol.Limits, end: _End, cpu_seconds: float,
    exit_code: int) -> tuple[protocol.Status, str]:
  """The status, and why the sandbox or a signal stopped the program."""
  status = protocol.Status
  if end is _End.FLOOD:
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
  if exit_code == -signal.SIGXFSZ:
    return status.RESOURCE_LIMIT, 'stopped: it wrote to a file'
  if exit_code < 0:
    return status.ERROR, f'killed by {_signal_name(-exit_code)}'
  return status.ERROR if exit_code else status.OK, ''


def _signal_name(number: int) -> str:
  """Name of a signal; most real-time signals have none."""
  known = {signal.value: signal.name for signal in signal.Signals}
  return known.get(number, f'signal {number}')


class _Output:
  """Moves a stream of a program to the client."""

  def __init__(self, kind: bytes, pipe: io.FileIO, max_bytes: int):
    self.kind = kind
    self.pipe = pipe
    self.bytes_left = max_bytes
    self.flooded = False  # More than `max_bytes` came.

  def move(self, connection: socket.socket) -> int:
    """Sends the pipe's content up to the limit; returns the content's size."""
    held = struct.unpack('i', fcntl.ioctl(
        self.pipe, termios.FIONREAD, bytes(4)))[0]
    self.flooded |= held > self.bytes_left
    length = min(held, self.bytes_left)
    self.bytes_left -= length
    if length:
      connection.sendall(protocol.frame_header(self.kind, length))
    while length:
      sent = 0
      try:
        sent = os.splice(
            self.pipe.fileno(), connection.fileno(), length,
            flags=os.SPLICE_F_NONBLOCK)
      except BlockingIOError:
        pass
      if not sent:
        # The program has read its own pipe: fill the frame with zeros.
        connection.sendall(bytes(length))
        break
      length -= sent
    return held


class _End(enum.Enum):
  """Why a program ends."""

  EXIT = enum.auto()
  FLOOD = enum.auto()
  THREADS = enum.auto()
  WALL_CLOCK = enum.auto()


def _watch(
    pid: int, connection: socket.socket, outputs: Sequence[_Output],
    deadline: float) -> _End:
  """Sends outputs until the program ends or must be ended.

  Waits for the process and not for its pipes, which a grandchild can hold open.
  Counts threads because the kernel does not limit those of root.
  """
  poll = select.poll()
  with open(os.pidfd_open(pid), 'rb', 0) as process:
    poll.register(process, select.POLLIN)
    for output in outputs:
      poll.register(output.pipe, select.POLLIN)
    next_count = time.monotonic() + _TICK
    while True:
      ready = dict(poll.poll(1000 * _TICK))
      for output in outputs:
        event = ready.get(output.pipe.fileno())
        if event is not None:
          held = output.move(connection)
          # An empty pipe may still be open: the program can read it.
          if not held and event & select.POLLHUP:
            poll.unregister(output.pipe)
          if output.flooded:
            return _End.FLOOD
      if process.fileno() in ready:
        return _End.EXIT
      now = time.monotonic()
      if now >= deadline:
        return _End.WALL_CLOCK
      if now >= next_count:
        next_count = now + _TICK
        if processes.num_threads(pid) > MAX_THREADS:
          return _End.THREADS


def remove_tree(directory: str) -> None:
  """Removes a directory that a program may have filled with traps.

  The tools survive any depth of nesting and folders without permissions.
  """
  for command in (('chmod', '-R', 'u+rwX'), ('rm', '-rf')):
    os.spawnlp(os.P_WAIT, command[0], *command, '--', directory)
