"""Messages between client, supervisor and program.

A supervisor sends a greeting when it is free. The client answers with a packed
`Request` and closes its side. The supervisor sends frames (kind, length, data)
and closes: `STDOUT`, `STDERR` and `VALUE` carry output, and at the end `REPORT`
carries a packed `ExitReport`, or `FAULT` the reason why there is none. A
supervisor that closes with neither was killed.

The greeting holds the server's random id. The server also sends it on each
connection to the socket `health`. Programs that mention one of PACKAGES go to
the socket `packages`, which a fork of the server with these packages serves;
without them, forks are five times as fast.

Messages are NamedTuples: importing dataclasses would lengthen the server's
start by a quarter.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import struct
from typing import NamedTuple

STDOUT, STDERR, VALUE, REPORT, FAULT = b'o', b'e', b'v', b'r', b'f'
SOCKETS = ('socket', 'packages', 'health')  # Names in the server's directory.
WORK_DIRECTORY = 'empty'  # Of the programs, in the same directory.
# Packages for programs besides the standard library, if they are installed.
PACKAGES = ('numpy', 'sympy')
_HEADER = struct.Struct('>cI')
_GREETING = struct.Struct('>Q')


class Status(enum.Enum):
  """How a program ended."""

  OK = 'ok'  # Exit status 0.
  ERROR = 'error'  # An uncaught exception, a signal, or a non-zero exit.
  TIMEOUT = 'timeout'  # CPU or wall-clock limit.
  RESOURCE_LIMIT = 'resource_limit'  # Memory, output, or size of a file.
  INFRASTRUCTURE = 'infrastructure'  # The sandbox failed, not the program.


class Level(enum.Enum):
  """How programs are isolated."""

  BWRAP = 'bwrap'  # KERNEL inside namespaces that bubblewrap makes.
  KERNEL = 'kernel'  # Landlock, a filter of system calls, and limits.
  UNSAFE_RLIMIT = 'unsafe_rlimit'  # Limits only: no boundary.
  REMOTE = 'remote'  # By a SandboxFusion service.


class Limits(NamedTuple):
  """Resources of one program."""

  cpu_seconds: float = 2.0
  wall_seconds: float = 5.0  # From the program's start; a queue is free.
  memory_bytes: int = 256 << 20  # Address space beyond the interpreter's.
  output_bytes: int = 64 << 10  # Of stdout, of stderr, and of a value.


class Request(NamedTuple):
  """A program to run.

  Attributes:
    source: Python text.
    stdin: text of its input.
    function: called after the text has run, see `Sandbox.call`; '' for none.
    arguments: of the function, a tuple encoded by `literals`.
    limits: resources of the program.
  """

  source: str
  stdin: str
  function: str
  arguments: str
  limits: Limits


class ExitReport(NamedTuple):
  """How a program ended, without its output.

  Attributes:
    status: how it ended.
    exit_code: -N after signal N.
    reason: why the sandbox, or a signal, stopped it; '' if nothing did.
    cpu_seconds: user and system time, including children it waited for.
    wall_seconds: time from its start to its end.
  """

  status: Status
  exit_code: int
  reason: str
  cpu_seconds: float
  wall_seconds: float


class Reply(NamedTuple):
  """Everything a supervisor sent; `report` is None if it was killed."""

  stdout: bytes
  stderr: bytes
  value: bytes
  report: ExitReport | None


def socket_path(address: str, name: str) -> str:
  """Path of one of SOCKETS on the server whose first socket is `address`."""
  return os.path.join(os.path.dirname(address), name)


def send_greeting(connection: socket.socket, server_id: int) -> None:
  connection.sendall(_GREETING.pack(server_id))


def receive_greeting(connection: socket.socket) -> int:
  """The server's id; TimeoutError after silence, OSError if it closed."""
  data = connection.recv(_GREETING.size)
  if len(data) < _GREETING.size:
    raise ConnectionError('the server closed the connection')
  return _GREETING.unpack(data)[0]


def pack(message: Request | Limits | ExitReport) -> bytes:
  """The fields as a JSON list."""
  return json.dumps(message, default=lambda status: status.value).encode()


def unpack_request(data: bytes) -> Request:
  *texts, limits = json.loads(data)
  return Request(*texts, Limits(*limits))


def unpack_limits(data: bytes) -> Limits:
  return Limits(*json.loads(data))


def frame_header(kind: bytes, length: int) -> bytes:
  return _HEADER.pack(kind, length)


def frame(kind: bytes, data: bytes) -> bytes:
  return frame_header(kind, len(data)) + data


def unpack_reply(data: bytes) -> Reply:
  """Raises OSError if the supervisor sent a fault."""
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
