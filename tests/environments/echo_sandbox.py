"""Sandboxes without processes, for tests that know what a program prints."""

import dataclasses

from environments import sandbox


@dataclasses.dataclass(frozen=True)
class Echo:
  """A `Sandbox` whose programs print their source; `cat` prints its input."""

  def run(self, source, stdin=''):
    printed = stdin if source == 'cat\n' else source
    return sandbox.ProgramResult(sandbox.Status.OK, printed, '')


@dataclasses.dataclass(frozen=True)
class Constant:
  """A `Sandbox` in which every program has the same result."""

  status: sandbox.Status
  stdout: str
  stderr: str = ''
  limits: sandbox.Limits = sandbox.Limits()

  def run(self, source, stdin=''):
    del source, stdin
    return sandbox.ProgramResult(self.status, self.stdout, self.stderr)
