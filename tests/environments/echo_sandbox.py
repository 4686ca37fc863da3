"""Sandboxes without processes, and prompts as text."""

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


def prompt(environment, state, role):
  """The contents of the messages that a role sees."""
  return '\n'.join(
      message['content'] for message in environment.observe(state, role))
