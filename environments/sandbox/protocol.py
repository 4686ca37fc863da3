"""What client, supervisor and program tell each other, and the bytes of it.

The talk on a connection: a supervisor writes a greeting when it is free, the
client answers with a packed `Request` and closes its side, the supervisor
writes frames and closes. A frame is its kind, its length, and that many bytes:
of kind `STDOUT` or `STDERR` what the program printed, of kind `VALUE` what its
function returned, and at the end of kind `REPORT` a packed `ExitReport`, or of
kind `FAULT` why the supervisor cannot give one. A supervisor that closes with
neither has been killed.

A greeting names the server, by a number that no other has. The server itself
writes one on each connection to its socket `health`.

Programs that name one of PACKAGES go to a socket of their own, `packages`: a
fork of the server with these packages serves it. Without them forks are five
times as fast.

Tuples and not dataclasses: that module and what it imports would lengthen the
server's start by a quarter.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import struct
from typing import NamedTuple

STDOUT, STDERR, VALUE, REPORT, FAULT = b'o', b'e', b'v', b'r', b'f'
_HEADER = struct.Struct('>cI')
_GREETING = struct.Struct('>Q')


WORK_DIRECTORY = 'empty'  # Of programs, beside the sockets.
# Beside the standard library, if they are installed.
PACKAGES = ('numpy', 'sympy')


class Status(enum.Enum):
  """How a program ended."""

  OK = 'ok'  # By itself, with exit status 0.
  ERROR = 'error'  # An uncaught exception, a signal, or a non-zero exit.
  TIMEOUT = 'timeout'  # CPU or wall clock.
  RESOURCE_LIMIT = 'resource_limit'  # Memory, output, or size of a file.
  INFRASTRUCTURE = 'infrastructure'  # The sandbox failed, not the program.


class Level(enum.Enum):
  """How programs are kept apart from everything else."""

  BWRAP = 'bwrap'  # As KERNEL, inside namespaces that bubblewrap makes.
  KERNEL = 'kernel'  # Landlock, a filter of system calls, and limits.
  UNSAFE_RLIMIT = 'unsafe_rlimit'  # Limits alone: no boundary.


class Limits(NamedTuple):
  """What one program may use; `Sandbox` refuses what is too low for any."""

  cpu_seconds: float = 2.0
  wall_seconds: float = 5.0  # From its start; waiting for a slot is free.
  # Address space of a process, beyond the interpreter's own.
  memory_bytes: int = 256 << 20
  # Of stdout, as much of stderr, and as much of what a function returns.
  output_bytes: int = 64 << 10


class Request(NamedTuple):
  """A program that is to be run.

  Attributes:
    source: its text.
    stdin: its input.
    function: which of its functions is called once the text has run; '' for
      none. `Sandbox.call` says how it is named.
    arguments: of the function, a tuple as `literals` writes it.
    limits: what the program may use.
  """

  source: str
  stdin: str
  function: str
  arguments: str
  limits: Limits


class ExitReport(NamedTuple):
  """How a program ended, without what it printed or returned.

  Attributes:
    status: how.
    exit_code: -N after signal N.
    reason: why the sandbox, or a signal, stopped it; '' when nothing did.
    cpu_seconds: user and system time of the program and of those children
      whose end it has waited for.
    wall_seconds: from its start to its end.
  """

  status: Status
  exit_code: int
  reason: str
  cpu_seconds: float
  wall_seconds: float


class Reply(NamedTuple):
  """What a supervisor said; no report if it was killed before that."""

  stdout: bytes
  stderr: bytes
  value: bytes
  report: ExitReport | None


def health_address(address: str) -> str:
  """Where a server says that it lives, beside its own address."""
  return os.path.join(os.path.dirname(address), 'health')


def packages_address(address: str) -> str:
  """Where it runs programs with PACKAGES, beside its own address."""
  return os.path.join(os.path.dirname(address), 'packages')


def greet(connection: socket.socket, server: int) -> None:
  connection.sendall(_GREETING.pack(server))


def await_greeting(connection: socket.socket) -> int:
  """The id of the server; an OSError if it closes, or is silent too long.

  A TimeoutError says that nothing came, so that one can go on waiting.
  """
  data = connection.recv(_GREETING.size)
  try:
    while data and len(data) < _GREETING.size:  # As TCP may cut it.
      part = connection.recv(_GREETING.size - len(data))
      data = part and data + part
  except TimeoutError as error:
    raise ConnectionError('the server fell silent in its greeting') from error
  if not data:
    raise ConnectionError('the server closed the connection')
  return _GREETING.unpack(data)[0]


def pack(message: Request | Limits | ExitReport) -> bytes:
  """The fields as a JSON list, a status by its value."""
  return json.dumps(message, default=lambda status: status.value).encode()


def unpack_request(data: bytes) -> Request:
  *texts, limits = json.loads(data)
  return Request(*texts, Limits(*limits))


def unpack_limits(data: bytes) -> Limits:
  return Limits(*json.loads(data))


def frame_header(kind: bytes, length: int) -> bytes:
  """What stands before the `length` bytes of a frame."""
  return _HEADER.pack(kind, length)


def frame(kind: bytes, data: bytes) -> bytes:
  return frame_header(kind, len(data)) + data


def unpack_reply(data: bytes) -> Reply:
  """Raises OSError if the supervisor says that it failed."""
  parts = {kind: [] for kind in (STDOUT, STDERR, VALUE, REPORT, FAULT)}
  position = 0
  while position + _HEADER.size <= len(data):
    kind, length = _HEADER.unpack_from(data, position)
    position += _HEADER.size + length
    parts[kind].append(data[position - length:position])
  *outputs, report, fault = map(b''.join, parts.values())
  if fault:
    raise OSError(f'a supervisor failed: {fault.decode(errors="replace")}')
  if not report:
    return Reply(*outputs, None)
  status, *fields = json.loads(report)
  return Reply(*outputs, ExitReport(Status(status), *fields))
