"""A gateway for the tests, in a process of its own, on this machine."""

import contextlib
import os
import pathlib
import secrets
import subprocess
import sys

from environments import sandbox
from environments.sandbox import remote
from tests.environments.sandbox import servers

TOKEN = secrets.token_hex(32)  # Of all gateways of this process.
TOKEN_VARIABLE = 'TESTS_SANDBOX_TOKEN'
# The strongest level here.
LEVEL = servers.LEVELS[0]


class Gateway:
  """It may be ended and started again; keeps its port and its token."""

  def __init__(self, folder, level=LEVEL):
    self.folder = folder
    self.level = level
    self.token_file = folder / 'token'
    self.token_file.write_text(TOKEN + '\n')
    self.token_file.chmod(0o600)
    self.port = 0
    self.process = None
    os.environ[TOKEN_VARIABLE] = TOKEN

  @property
  def url(self):
    return f'tcp://127.0.0.1:{self.port}'

  @property
  def sandbox(self):
    return sandbox.Sandbox(
        sandbox.Remote(self.url, TOKEN_VARIABLE), servers.LIMITS)

  def start(self):
    with open(self.folder / 'stderr', 'a') as stderr:
      self.process = subprocess.Popen(
          [sys.executable, '-m', 'environments.sandbox.gateway',
           '--port', str(self.port), '--token-file', str(self.token_file),
           '--level', self.level, '--slots', '2'],
          cwd=servers.ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    line = self.process.stdout.readline()
    assert line.startswith(f'sandbox gateway: level {self.level}, 2'), line
    self.port = int(line.split()[-1])

  def end(self):
    """The exit status."""
    self.process.stdout.close()
    self.process.terminate()
    return self.process.wait()

  def kill(self):
    self.process.stdout.close()
    self.process.kill()
    self.process.wait()

  def server_pid(self):
    """Of the fork-server; None while there is none."""
    pids = [self.process.pid]
    for _ in range(1 + (self.level == 'bwrap')):  # It has the server as child.
      pids = [
          int(child) for pid in pids for path in pathlib.Path(
              f'/proc/{pid}/task').glob('*/children')
          for child in path.read_text().split()]
    return pids[0] if pids else None


@contextlib.contextmanager
def running(folder, level=LEVEL):
  gateway = Gateway(folder, level)
  gateway.start()
  try:
    yield gateway
    pid = gateway.server_pid()
  finally:
    status = gateway.end()
  assert status == 0 and not servers.exists(pid)


def remote_level(level):
  return remote.RemoteLevel[sandbox.Level(level).name].value
