"""How a client reaches a server: by Unix sockets, or by TCP and a gateway.

A gateway (`gateway`) passes on, byte by byte, what a client on another machine
and a socket of its server say to each other, so both talk as `protocol` says.
Before that there is a line from each side:

  gateway  VERSION NONCE
  client   SOCKET NONCE PROOF
  gateway  ok LEVEL PROOF, or: no REASON

A proof is the HMAC-SHA256, under a token that both have, of who speaks and what
was said. The token itself is never sent, no proof serves twice, and a client
knows that it is the gateway who answers, and not who took the port of an ssh
tunnel that has ended.

When the server has heard the whole request and has closed, the gateway says
another proof, and closes. A connection that ends without that was cut, and what
it said is no reply.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import secrets
import socket
import urllib.parse

from environments.sandbox import protocol

VERSION = 'atgrpo-sandbox-1'  # Another one, if what is said changes.
PROGRAMS, PACKAGES, HEALTH = SOCKETS = b'programs', b'packages', b'health'
WRONG_TOKEN = 'wrong token'  # A gateway's reason.
_MAX_LINE = 1000  # Bytes.


class RefusedError(ConnectionError):
  """Client and gateway do not fit; trying again leads nowhere."""


@dataclasses.dataclass(frozen=True)
class Remote:
  """The address of a gateway. Picklable; does not hold the token.

  Attributes:
    url: tcp://HOST:PORT.
    token_variable: the environment variable that has the token.
    level: the `Level` at which its programs must run; '' for any.

  Raises ValueError for another url.
  """

  url: str
  token_variable: str
  level: str = ''

  def __post_init__(self):
    self._host_and_port()

  def _host_and_port(self) -> tuple[str, int]:
    if '@' in self.url:  # Which may be a secret, so it is not shown.
      raise ValueError(
          'the url of a gateway is tcp://HOST:PORT, and has no user and no '
          'token in it')
    try:
      parts = urllib.parse.urlsplit(self.url)
      host, port = parts.hostname, parts.port
      fits = parts.scheme == 'tcp' and host and port and self.url.endswith(
          parts.netloc)
    except ValueError:
      fits = False
    if not fits:
      raise ValueError(
          f'the url of a gateway is tcp://HOST:PORT, and not {self.url!r}')
    return host, port

  def _token(self) -> bytes:
    token = os.environ.get(self.token_variable, '').strip()
    if not token:
      raise RefusedError(
          f'the environment variable {self.token_variable!r}, which should '
          'have the token of the gateway, is not set')
    return token.encode()

  def ask_level(self, timeout: float) -> str:
    """At which programs run there, as `protocol.Level` has it."""
    connection, _, level = self.open(HEALTH, timeout)
    connection.close()
    return level

  def open(self, name: bytes, timeout: float) -> tuple[
      socket.socket, bytes, str]:
    """A connection, how all that is said on it ends, and the level."""
    token = self._token()
    try:
      connection = socket.create_connection(self._host_and_port(), timeout)
      try:
        return connection, *self._introduce(connection, token, name)
      except BaseException:
        connection.close()
        raise
    except RefusedError:
      raise
    except OSError as error:
      raise ConnectionError(
          f'the gateway at {self.url} does not answer ({error})') from error

  def _introduce(
      self, connection: socket.socket, token: bytes,
      name: bytes) -> tuple[bytes, str]:
    """Says the first lines; the last proof, and the level."""
    # What is sent in parts must not wait for an answer to the first.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    version, *nonce = _receive_line(connection).split(b' ')
    if version != VERSION.encode() or len(nonce) != 1:
      raise RefusedError(
          f'what answers at {self.url} is no gateway of {VERSION!r}; use the '
          'same version of this project on both sides')
    said = *nonce, secrets.token_hex(16).encode(), name
    connection.sendall(
        b' '.join((name, said[1], prove(token, b'client', *said))) + b'\n')
    verdict, *words = _receive_line(connection).split(b' ')
    reason = b' '.join(words).decode('ascii', 'replace')
    if verdict == b'no' and reason == WRONG_TOKEN:
      raise RefusedError(f'the gateway at {self.url} has another token')
    if verdict == b'no':
      raise ConnectionError(reason)
    level, proof = words if len(words) == 2 else (b'', b'')
    if not hmac.compare_digest(proof, prove(token, b'gateway', *said, level)):
      raise RefusedError(f'what answers at {self.url} does not know the token')
    if self.level not in ('', level.decode()):
      raise RefusedError(
          f'the gateway at {self.url} runs programs at {level.decode()}, and '
          f'not at {self.level}')
    return prove(token, b'end', *said), level.decode()


def prove(token: bytes, *words: bytes) -> bytes:
  """What only who has the token can say of words without blanks."""
  return hmac.new(token, b' '.join(words), hashlib.sha256).hexdigest().encode()


def socket_path(address: str, name: bytes) -> str:
  """Of a socket of a server on this machine, by its address."""
  return {
      PROGRAMS: address, PACKAGES: protocol.packages_address(address),
      HEALTH: protocol.health_address(address)}[name]


def connect(
    address: str | Remote, name: bytes,
    timeout: float) -> tuple[socket.socket, bytes]:
  """A connection to a socket of a server, and how what is said on it ends.

  Args:
    address: a path on this machine, or a `Remote`.
    name: PROGRAMS, PACKAGES or HEALTH.
    timeout: seconds to wait here, and on the connection at each call.

  Raises an OSError if that fails, a `RefusedError` if it always will.
  """
  if isinstance(address, Remote):
    connection, end, _ = address.open(name, timeout)
    return connection, end
  connection = socket.socket(socket.AF_UNIX)
  try:
    connection.settimeout(timeout)
    connection.connect(socket_path(address, name))
  except BaseException:
    connection.close()
    raise
  return connection, b''


def _receive_line(connection: socket.socket) -> bytes:
  """Without its end; byte by byte, since what follows is for another."""
  line = b''
  while not line.endswith(b'\n'):
    part = connection.recv(1)
    if not part or len(line) > _MAX_LINE:
      raise ConnectionError(
          'it closed the connection, or says more than a gateway')
    line += part
  return line[:-1]
