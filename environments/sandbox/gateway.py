"""Runs models' programs for trainings on other machines.

  python -m environments.sandbox.gateway --token-file FILE

Owns a sandbox server, and replaces it when it is dead, stopped or silent.
Listens on TCP, and passes on what clients that prove to have the token and a
socket of the server say to each other; `connections` has what comes before.
Ends with its server at SIGTERM or SIGINT.

Who has no token costs little: a line of a few bytes, for some seconds, on one
of few connections, of which the oldest is given up for a new one. What is said
is not encrypted.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
import contextlib
import hmac
import logging
import os
import pathlib
import resource
import secrets
import signal
import socket
import sys
import time

from environments.sandbox import connections
from environments.sandbox import launcher
from environments.sandbox import protocol

_LEAST_TOKEN = 16  # Characters.
_HELLO_SECONDS = 10.0  # For a client to prove that it has the token.
# Connections whose clients have not done so, and those of the others, unless
# there may be fewer open files.
_MAX_STRANGERS = 1024
_MAX_CLIENTS = 2048
_OTHER_FILES = 50
_BACKLOG = 1024
_CHUNK = 1 << 14  # Bytes; of each connection some of these are held.
_TICK = 1.0  # Seconds between two looks at the server.
_HEALTH_SECONDS = 60.0  # For its answer, which takes a second.
_LOG_SECONDS = 10.0  # Between two lines about refusals.
# Seconds after which a peer that does not answer is given up.
_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000}  # The last in milliseconds.


class _RefusalError(Exception):
  """Why a client is refused; the client is told."""


class Gateway:
  """Passes on what clients and the sockets of one server say."""

  def __init__(
      self, server: launcher.SandboxServer, token: bytes, max_strangers: int,
      max_clients: int):
    self._server = server
    self._token = token
    self._max_strangers = max_strangers
    self._max_clients = max_clients
    # Once a client is silent, the loop no longer keeps its task alive.
    self._clients: set[asyncio.Task] = set()
    self._strangers: dict[asyncio.Task, None] = {}  # The oldest first.
    self._num_refused = 0  # Since the last line about them.
    self._next_line = 0.0

  async def serve(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The life of a connection."""
    task = asyncio.current_task()
    self._strangers[task] = None
    if len(self._strangers) > self._max_strangers:
      next(iter(self._strangers)).cancel()
    try:
      try:
        _keep_alive(writer)
        async with asyncio.timeout(_HELLO_SECONDS):
          server, end = await self._admit(reader, writer)
      except _RefusalError as refusal:
        self._log_refusal(writer, str(refusal))
        writer.write(b'no %b\n' % str(refusal).encode())
        return
      except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        return self._log_refusal(writer, type(error).__name__)
      finally:
        del self._strangers[task]
      self._clients.add(task)
      try:
        await _relay(reader, writer, *server, end)
      finally:
        self._clients.remove(task)
        server[1].close()
    except (OSError, asyncio.CancelledError):
      pass  # The client has gone, or had to make room for others.
    finally:
      writer.close()  # What was written before is still sent.

  async def _admit(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
  ) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], bytes]:
    """The socket of the server that is asked for, and the last proof."""
    nonce = secrets.token_hex(16).encode()
    writer.write(b'%b %b\n' % (connections.VERSION.encode(), nonce))
    words = (await reader.readuntil()).split()
    if len(words) != 3 or words[0] not in connections.SOCKETS:
      raise _RefusalError('this is no client')
    name, client_nonce, proof = words
    said = nonce, client_nonce, name
    if not hmac.compare_digest(
        proof, connections.prove(self._token, b'client', *said)):
      raise _RefusalError(connections.WRONG_TOKEN)
    if len(self._clients) >= self._max_clients:
      raise _RefusalError('too many connections')
    try:
      server = await asyncio.open_unix_connection(
          connections.socket_path(self._server.address, name), limit=_CHUNK)
    except OSError as error:  # It is about to be replaced, or busy.
      raise _RefusalError(
          f'its sandbox server does not answer ({type(error).__name__})'
      ) from error
    level = self._server.level.value.encode()
    writer.write(b'ok %b %b\n' % (
        level, connections.prove(self._token, b'gateway', *said, level)))
    return server, connections.prove(self._token, b'end', *said)

  def _log_refusal(self, writer: asyncio.StreamWriter, reason: str) -> None:
    """Says how many there were, now and then; nothing that a client said."""
    self._num_refused += 1
    if time.monotonic() >= self._next_line:
      host, *_ = writer.get_extra_info('peername') or ('a client that left',)
      logging.warning(
          'connections refused: %d, the last from %s (%s)', self._num_refused,
          host, reason)
      self._num_refused = 0
      self._next_line = time.monotonic() + _LOG_SECONDS

  async def keep_server(self) -> None:
    """Replaces the server whenever it does not answer."""
    while True:
      await asyncio.sleep(_TICK)
      asking = asyncio.create_task(self._ask_server())
      while self._server.is_running() and not asking.done():
        await asyncio.wait([asking], timeout=_TICK)
      if self._server.is_running() and asking.result():
        continue
      asking.cancel()
      logging.warning('The sandbox server will be replaced.')
      try:
        await asyncio.to_thread(self._server.restart)
      except (RuntimeError, OSError) as error:
        logging.warning('%s', error)

  async def _ask_server(self) -> bool:
    """Whether it answers for itself."""
    try:
      async with asyncio.timeout(_HEALTH_SECONDS):
        reader, writer = await asyncio.open_unix_connection(
            protocol.health_address(self._server.address))
        with contextlib.closing(writer):
          return bool(await reader.read(1))
    except OSError:
      return False


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    server_reader: asyncio.StreamReader, server_writer: asyncio.StreamWriter,
    end: bytes) -> None:
  """Both directions, until the server closes or the client is gone.

  `end` tells the client that the server has heard all and has closed. It is
  left out where a client or a server went before that.
  """
  request = asyncio.create_task(_pass_on(reader, server_writer))
  try:
    while data := await _read(server_reader):
      writer.write(data)
      await writer.drain()
    if (request.done() and request.result()
        and not server_writer.transport.get_write_buffer_size()):
      writer.write(end)
      await writer.drain()
  finally:
    request.cancel()


async def _read(reader: asyncio.StreamReader) -> bytes:
  """What comes next; nothing at the end, be that a process that was killed."""
  try:
    return await reader.read(_CHUNK)
  except OSError:
    return b''


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
  """A request, to the server; whether all of it was passed on."""
  try:
    while data := await reader.read(_CHUNK):
      writer.write(data)
      await writer.drain()
    writer.write_eof()
    return True
  except OSError:  # The client is lost, or the server does not listen.
    writer.transport.abort()
    return False


def _keep_alive(writer: asyncio.StreamWriter) -> None:
  """Gives up a client whose machine is gone, and holds little for others."""
  connection = writer.get_extra_info('socket')
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for option, value in _KEEP_ALIVE.items():
    connection.setsockopt(socket.IPPROTO_TCP, option, value)
  writer.transport.set_write_buffer_limits(_CHUNK)


async def _run(
    server: launcher.SandboxServer, token: bytes, host: str,
    port: int) -> None:
  """Listens until SIGTERM or SIGINT."""
  stop = asyncio.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    asyncio.get_running_loop().add_signal_handler(number, stop.set)
  gateway = Gateway(server, token, *_most_connections())
  listening = await asyncio.start_server(
      gateway.serve, host, port, limit=_CHUNK, backlog=_BACKLOG)
  keeping = asyncio.create_task(gateway.keep_server())
  where = listening.sockets[0].getsockname()
  print(
      f'sandbox gateway: level {server.level.value}, {server.num_slots} '
      f'programs at a time, on {where[0]} port {where[1]}', flush=True)
  stopping = asyncio.create_task(stop.wait())
  await asyncio.wait(
      [stopping, keeping], return_when=asyncio.FIRST_COMPLETED)
  listening.close()
  if keeping.done():
    keeping.result()  # Raises what ended it.


def _most_connections() -> tuple[int, int]:
  """Of strangers, and of clients, which have two open files each."""
  _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  if most == resource.RLIM_INFINITY:
    return _MAX_STRANGERS, _MAX_CLIENTS
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
  strangers = min(_MAX_STRANGERS, most // 4)
  return strangers, min(
      _MAX_CLIENTS, (most - strangers - _OTHER_FILES) // 2)


def read_token(path: str) -> bytes:
  """The token in a file; raises ValueError if it is none, or not secret."""
  try:
    with open(path, 'rb') as file:
      if os.fstat(file.fileno()).st_mode & 0o077:
        raise ValueError(
            f'--token-file {path} is open to others; run `chmod 600` on it')
      token = file.read().strip()
  except OSError as error:
    raise ValueError(f'--token-file {path} cannot be read ({error})') from error
  if len(token) < _LEAST_TOKEN or not token.isascii() or token.split() != [
      token]:
    raise ValueError(
        f'--token-file {path} should have one word of at least {_LEAST_TOKEN} '
        'ASCII characters; `openssl rand -hex 32` prints one')
  return token


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m environments.sandbox.gateway', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--host', default='127.0.0.1', help='where to listen; by default only '
      'programs of this machine, such as sshd, can connect')
  parser.add_argument(
      '--port', type=int, default=8765, help='0 takes a free one')
  parser.add_argument(
      '--token-file', required=True, type=pathlib.Path,
      help='a file that only you may read, with the token that clients need')
  parser.add_argument(
      '--slots', type=int, help='programs at a time; by default one on each '
      'core')
  parser.add_argument(
      '--level', default=launcher.AUTO, choices=launcher.LEVELS,
      help='of the sandbox, see docs/sandbox.md')
  return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
  """Serves until it is stopped; the exit status."""
  given = parse(argv)
  logging.basicConfig(
      level=logging.INFO, format='%(asctime)s sandbox gateway: %(message)s')
  try:
    token = read_token(given.token_file)
    with launcher.SandboxServer(given.slots, given.level) as server:
      asyncio.run(_run(server, token, given.host, given.port))
  except (launcher.NoSandboxError, OSError, OverflowError, ValueError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
