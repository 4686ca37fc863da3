"""The processes of one run, which end together.

Every process has a connection to the first one, its wire, from before it does
anything slow until all are done. A process that ends says why, and the others
end with its sentence. The system closes the wire of one that was killed. One
that is stopped is silent on it.

jax would tell the others after minutes, or never, and abort them with a page of
C++. So its connections to its coordinator, in the first process, are relayed.
The first process listens at the coordinator's address, for wires and for what
it passes on to the coordinator; each other one gives jax a port of its own. A
relay passes on what is sent, but not that a connection has ended: what a
process does without its coordinator is decided here.

Imports no jax: processes meet before their sandboxes start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import json
import socket
import threading
import time

from atgrpo_jax import errors
from atgrpo_jax.io import signals

_PATIENCE = 300.0  # Seconds until all processes must have come.
_RETRY = 0.2
_BEAT = 2.0  # Seconds between two signs of life.
_MAX_MISSED = 10  # Of these in a row; also where a machine has vanished.
# A computation may fail this much before the wire says why.
_VERDICT = 3.0


class Peers:
  """The other processes of a run; a context manager.

  Entering waits until all have come, and leaving until all are done. In between
  this process ends as soon as another one does.
  """

  def __init__(
      self, coordinator_address: str, num_processes: int, process_id: int, *,
      report: Callable[[BaseException], int]):
    """`report` prints an error that ends this process; the exit status."""
    host, _, port = coordinator_address.rpartition(':')
    if not host or not port.isdigit():
      raise errors.UserError(
          f'--coordinator_address={coordinator_address!r} must be HOST:PORT.')
    self.num_processes = num_processes
    self.process_id = process_id
    self._address = host.strip('[]'), int(port)
    self._report = report
    self._wires: dict[int, _Wire] = {}
    self._done: set[int] = set()
    self._lock = threading.Lock()
    self._all_here = threading.Event()
    self._all_done = threading.Event()
    self._jax_port: int | None = None
    self._relayed: list[socket.socket] = []  # So that none is closed.

  def __enter__(self) -> Peers:
    if self.process_id:
      wire = _Wire(self._dial())
      wire.send('here', self.process_id, self.num_processes)
      self._wires[0] = wire
      _start(self._read, 0)
    else:
      try:
        listener = _listen('', self._address[1])
      except OSError as error:
        raise errors.UserError(
            f'--coordinator_address: port {self._address[1]} cannot be used '
            f'({error.strerror}); choose another.') from error
      _start(_accept, listener, self._greet)
      self._check_all_here()
    _start(self._beat)
    # The first process tells the others when its patience is over.
    if not self._all_here.wait(None if self.process_id else _PATIENCE):
      self.end(errors.InfrastructureError.status, (
          f'Only {1 + len(self._wires)} of {self.num_processes} processes have '
          f'come within {_PATIENCE:.0f} seconds; start all of them again.'))
    return self

  def __exit__(self, kind, error, traceback) -> None:
    if error is None:
      self._note_done(self.process_id)
      self._all_done.wait()
      return
    if isinstance(error, errors.REPORTED_ERRORS):
      sentence = f'Process {self.process_id}: {error}'
    else:
      # Perhaps because another process is gone.
      time.sleep(_VERDICT)
      sentence = (
          f'Process {self.process_id} failed with {errors.one_line(error)}; '
          'see what it printed.')
    with self._lock:
      status = self._report(error)
      self._tell('end', status, sentence)
      # Threads of jax and orbax would wait for the others.
      signals.end(status)

  def end(self, status: int, sentence: str) -> None:
    """Ends this process and the others, from whatever thread."""
    with self._lock:  # One thread ends the process, with one sentence.
      self._tell('end', status, sentence)
      signals.end(status, sentence)

  def expect_beats(self) -> None:
    """From now on there is no reason for this process to be silent."""
    self._tell('expect_beats')

  def jax_address(self) -> str:
    """What to give jax as the address of its coordinator."""
    listener = _listen('127.0.0.1', 0)
    port = listener.getsockname()[1]
    if self.process_id:
      _start(_accept, listener, self._relay_to_first)
    else:
      listener.close()  # jax listens there next.
      self._jax_port = port
    return f'127.0.0.1:{port}'

  # What comes on the wires.

  def _greet(self, connection: socket.socket) -> None:
    """Takes a connection to the first process as a wire, or relays it."""
    connection.settimeout(_PATIENCE)
    message = _first_message(connection)
    connection.settimeout(None)
    if message == ['jax']:
      while self._jax_port is None:
        time.sleep(_RETRY)
      self._relay(connection, _connect(('127.0.0.1', self._jax_port)))
    elif len(message) == 3 and message[0] == 'here':
      self._take(_Wire(connection), *message[1:])
    else:  # A stranger.
      connection.close()

  def _take(self, wire: _Wire, process_id: int, num_processes: int) -> None:
    problem = ''
    if num_processes != self.num_processes:
      problem = (
          f'--num_processes={num_processes}, but process 0 has '
          f'{self.num_processes}; give all processes the same.')
    with self._lock:
      if process_id in self._wires:
        problem = (
            f'--process_id={process_id} is taken by another process; give each '
            'its own.')
      if not problem:
        self._wires[process_id] = wire
    if problem:
      wire.send('end', errors.UserError.status, problem)
      return
    self._check_all_here()
    self._read(process_id)

  def _read(self, process_id: int) -> None:
    wire = self._wires[process_id]
    for kind, *values in wire.messages():
      if kind == 'all_here':
        self._all_here.set()
      elif kind == 'expect_beats':
        wire.num_missed = 0
      elif kind == 'beat' and wire.num_missed is not None:
        wire.num_missed = 0
      elif kind == 'done':
        self._note_done(process_id)
      elif kind == 'end':
        self.end(*values)
    with self._lock:
      is_over = self._all_done.is_set()
    if not is_over:
      self._lose(process_id, 'has ended without a word')

  def _beat(self) -> None:
    while True:
      time.sleep(_BEAT)
      self._tell('beat')
      for process_id, wire in list(self._wires.items()):
        if wire.num_missed is not None:
          wire.num_missed += 1
          if wire.num_missed > _MAX_MISSED and not self._all_done.is_set():
            self._lose(process_id, (
                f'has given no sign of life for {_MAX_MISSED * _BEAT:.0f} '
                'seconds'))

  def _lose(self, process_id: int, how: str) -> None:
    self.end(errors.InfrastructureError.status, (
        f'Process {process_id} {how}; see what it printed, then run the same '
        'command again.'))

  def _check_all_here(self) -> None:
    if 1 + len(self._wires) == self.num_processes:
      self._tell('all_here')
      self._all_here.set()

  def _note_done(self, process_id: int) -> None:
    """The first process counts; the others hear from it when all are done."""
    is_first = self.process_id == 0
    with self._lock:
      self._done.add(process_id)
      is_over = (
          len(self._done) == self.num_processes if is_first else
          0 in self._done)
      if is_over == is_first:
        self._tell('done')
      if is_over:
        self._all_done.set()

  def _tell(self, *message) -> None:
    for wire in list(self._wires.values()):
      wire.send(*message)

  # Relays.

  def _relay_to_first(self, connection: socket.socket) -> None:
    first = self._dial()
    first.sendall(_encode('jax'))
    self._relay(connection, first)

  def _relay(self, one: socket.socket, other: socket.socket) -> None:
    self._relayed += [one, other]
    _start(_pass_on, one, other)
    _start(_pass_on, other, one)

  def _dial(self) -> socket.socket:
    try:
      return _connect(self._address)
    except OSError as error:
      host, port = self._address
      raise errors.InfrastructureError(
          f'Process 0 could not be reached at {host}:{port} within '
          f'{_PATIENCE:.0f} seconds ({error}); start all processes again.'
      ) from error


class _Wire:
  """Messages to and from another process: JSON lists, one to a line.

  Attributes:
    num_missed: signs of life in a row; None while there is none to expect.
  """

  def __init__(self, connection: socket.socket):
    if hasattr(socket, 'TCP_USER_TIMEOUT'):  # For a machine that vanishes.
      connection.setsockopt(
          socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT,
          int(1000 * _MAX_MISSED * _BEAT))
    self.num_missed: int | None = None
    self._connection = connection
    self._lock = threading.Lock()

  def send(self, *message) -> None:
    # That the other has ended is found by reading.
    with self._lock, contextlib.suppress(OSError):
      self._connection.sendall(_encode(*message))

  def messages(self) -> Iterator[list]:
    """Until the other has ended."""
    with contextlib.suppress(OSError):
      for line in self._connection.makefile('rb'):
        if line.endswith(b'\n'):
          yield json.loads(line)


def _encode(*message) -> bytes:
  return json.dumps(message).encode() + b'\n'


def _first_message(connection: socket.socket) -> list:
  """Reads no byte beyond it; [] if a stranger sends something else."""
  line = b''
  with contextlib.suppress(OSError, ValueError):
    while len(line) < 100 and not line.endswith(b'\n'):
      line += connection.recv(1) or b'\n'
    message = json.loads(line)
    return message if isinstance(message, list) else []
  return []


def _start(function: Callable[..., None], *args) -> None:
  threading.Thread(target=function, args=args, daemon=True).start()


def _listen(host: str, port: int) -> socket.socket:
  """On all interfaces if `host` is ''."""
  if not host and socket.has_dualstack_ipv6():
    return socket.create_server(
        (host, port), family=socket.AF_INET6, dualstack_ipv6=True)
  return socket.create_server((host, port))


def _accept(
    listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
  while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _start(handle, connection)


def _connect(address: tuple[str, int]) -> socket.socket:
  """As soon as somebody listens there."""
  deadline = time.monotonic() + _PATIENCE
  while True:
    try:
      connection = socket.create_connection(address, _PATIENCE)
    except OSError:
      if time.monotonic() > deadline:
        raise
      time.sleep(_RETRY)
    else:
      connection.settimeout(None)
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      return connection


def _pass_on(source: socket.socket, target: socket.socket) -> None:
  with contextlib.suppress(OSError):
    while data := source.recv(1 << 16):
      target.sendall(data)
