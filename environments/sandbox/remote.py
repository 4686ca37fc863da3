"""A server on another machine, behind a gateway, in the place of our own."""

from __future__ import annotations

import enum
import logging
import time

from environments.sandbox import client
from environments.sandbox import connections
from environments.sandbox import launcher
from environments.sandbox import protocol

REMOTE = 'remote'  # Whatever level the gateway has.


class RemoteLevel(enum.Enum):
  """`Level`, on another machine."""

  BWRAP = 'remote_bwrap'
  KERNEL = 'remote_kernel'
  UNSAFE_RLIMIT = 'remote_unsafe_rlimit'


REMOTE_LEVELS = (REMOTE, *(level.value for level in RemoteLevel))

_START_SECONDS = 10.0  # For the gateway to answer at the start of a run.
# A gateway that does not answer may be starting again, with its machine.
_WAIT_SECONDS = 60.0
_PAUSE_SECONDS = 1.0


class RemoteServer:
  """What a `SandboxServer` is, for a server that is not ours."""

  name = 'connection to the sandbox gateway'

  def __init__(self, level: str, url: str, token_variable: str):
    """`level` is one of REMOTE_LEVELS; the others are as `Remote` has them."""
    self._wanted = level
    self._url = url
    self._token_variable = token_variable
    self._address: connections.Remote | None = None

  @property
  def level(self) -> RemoteLevel:
    """How programs are kept apart from everything else, there."""
    return RemoteLevel[protocol.Level(self._address.level).name]

  @property
  def sandbox(self) -> client.Sandbox:
    """For programs; good for as long as the gateway keeps its level."""
    return client.Sandbox(self._address)

  def start(self) -> None:
    """Asks the gateway for its level, and runs one program.

    Raises NoSandboxError if it does not answer, does not know the token, or has
    another level than the wanted one.
    """
    if not self._url:
      raise launcher.NoSandboxError(
          f'sandbox.level={self._wanted} needs sandbox.url=tcp://HOST:PORT, of '
          'a gateway, and its token in an environment variable; see '
          'docs/sandbox.md.')
    try:
      level = connections.Remote(self._url, self._token_variable).ask_level(
          _START_SECONDS)
      self._address = connections.Remote(
          self._url, self._token_variable, level)
      if self._wanted not in (REMOTE, self.level.value):
        raise launcher.NoSandboxError(
            f'sandbox.level={self._wanted}, but the gateway at {self._url} '
            f'runs programs at {level}; give sandbox.level=remote to take '
            'that, or start the gateway with another --level.')
      launcher.try_out(self.sandbox, protocol.Level(level))
    except launcher.NoSandboxError:
      raise
    except (OSError, RuntimeError, ValueError) as error:
      raise launcher.NoSandboxError(
          f'No remote sandbox for models\' programs: {error}. See '
          'docs/sandbox.md.') from error
    if self.level is RemoteLevel.UNSAFE_RLIMIT:
      logging.warning(
          'Sandbox level remote_unsafe_rlimit: programs of models run with the '
          'rights of the gateway. They can read and delete its files and use '
          'its network.')

  def is_running(self) -> bool:
    """Always: whether it is there is seen when a program is run."""
    return True

  def restart(self) -> None:
    """Waits until a program runs there, with pauses.

    Raises RuntimeError or OSError if none does in time, or never will; it may
    be tried again.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
      time.sleep(_PAUSE_SECONDS)
      try:
        self._address.ask_level(_START_SECONDS)
        return launcher.try_out(
            self.sandbox, protocol.Level(self._address.level))
      except connections.RefusedError:
        raise
      except (OSError, RuntimeError):
        if time.monotonic() > deadline:
          raise

  def close(self) -> None:
    """The server is not ours to end."""
