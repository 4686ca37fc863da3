"""Sandboxes without processes, for tests that know what a program prints."""

import dataclasses

from environments import sandbox


@dataclasses.dataclass(frozen=True)
class Echo:
  """In the place of `sandbox.Sandbox`: a program prints its own source.

  The program `cat` prints its input.
  """

  def run(self, source, stdin=''):
    printed = stdin if source == 'cat\n' else source
    return sandbox.ProgramResult(sandbox.Status.OK, 0, printed, '', 0., 0.)


@dataclasses.dataclass(frozen=True)
class Constant:
  """In the place of `sandbox.Sandbox`: every program ends in the same way."""

  status: sandbox.Status
  stdout: str
  stderr: str = ''

  def run(self, source, stdin=''):
    del source, stdin
    return sandbox.ProgramResult(
        self.status, 0, self.stdout, self.stderr, 0., 0.)
