"""Messages between client, supervisor and program.

A client connects, sends a `Request` and closes its side of the connection. The
supervisor replies with an `ExitReport` on one line, followed by the bytes of
stdout, of stderr and of a function's value. A supervisor that is killed closes
the connection without a reply. Connections wait in the socket's backlog for a
free slot.

Programs that mention one of PACKAGES go to the socket `packages`, which a fork
of the server with these packages serves. Without them, forks are five times as
fast.

Messages are NamedTuples: importing dataclasses would lengthen the server's
start by a quarter.
"""

import enum
import json
from typing import NamedTuple

SOCKETS = ('socket', 'packages')  # File names in the server's directory.
WORK_DIRECTORY = 'empty'  # Programs run here; in the server's directory too.
# Packages for programs besides the standard library, if they are installed.
PACKAGES = ('numpy', 'sympy', 'mpmath')


class Status(enum.Enum):
  """How a program ended."""

  OK = 'ok'  # Exit status 0.
  ERROR = 'error'  # An uncaught exception, a signal, or a non-zero exit.
  TIMEOUT = 'timeout'  # CPU or wall-clock limit.
  RESOURCE_LIMIT = 'resource_limit'  # Memory, threads or output.
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
  wall_seconds: float = 5.0  # From the program's start, without the queue.
  memory_bytes: int = 256 << 20  # Beyond the interpreter's.
  output_bytes: int = 64 << 10  # For each of stdout, stderr and a value.


class Request(NamedTuple):
  """A program to run."""

  source: str  # Python text.
  stdin: str  # Text of its input.
  # Called after the text has run, see `Sandbox.call`; '' for none.
  function: str
  arguments: str  # Calls, see `literals.call`.
  limits: Limits  # Resources of the program.


class ExitReport(NamedTuple):
  """How a program ended, without its output."""

  status: Status  # How it ended; INFRASTRUCTURE if the supervisor failed.
  # Why the sandbox or a signal stopped the program; '' if nothing did.
  reason: str
  # Number of bytes of stdout, stderr and value that follow.
  output_sizes: tuple[int, ...]


def pack(message: Request | Limits | ExitReport) -> bytes:
  """The fields as a JSON list on one line."""
  return json.dumps(message, default=lambda status: status.value).encode()


def unpack_request(data: bytes) -> Request:
  *texts, limits = json.loads(data)
  return Request(*texts, Limits(*limits))


def unpack_limits(data: bytes) -> Limits:
  return Limits(*json.loads(data))


def unpack_report(data: bytes) -> ExitReport:
  status, *fields = json.loads(data)
  return ExitReport(Status(status), *fields)
