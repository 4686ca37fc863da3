"""The errors that speak to the user."""

from collections.abc import Iterator, Sequence
import contextlib

from absl import flags

# What code that the user wrote, such as a config, may raise.
OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    flags.Error)


class UserError(ValueError):
  """Something the user gave cannot be used, or leads nowhere.

  The message is one sentence or a short table: what was given, what was
  expected, what to do. `main` prints it without a traceback.
  """

  status = 2  # The exit status.


class CheckpointError(UserError):
  """A checkpoint that cannot be written or used."""


class InfrastructureError(RuntimeError):
  """What a run needs beside itself is broken, and stays broken.

  The message is one sentence, which `main` prints without a traceback.
  """

  status = 3


class LostWorkdirError(RuntimeError):
  """The folder of a run has vanished under it, or is another one.

  The message is one sentence, which `main` prints without a traceback.
  """

  status = 1


SPEAKING = UserError, InfrastructureError, LostWorkdirError


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises a UserError if a command line has more than flags."""
  if len(argv) > 1:
    raise UserError(f'Unexpected arguments: {" ".join(argv[1:])}; see --help.')


def check_number(
    name: str, value: float, *, least: float | None = None,
    above: float | None = None, below: float | None = None,
    advice: str = '') -> None:
  """Raises a UserError unless a number is finite, as a float32, and in limits.

  Args:
    name: as the config calls it.
    value: of it.
    least: it must be at least this.
    above: it must be above this.
    below: it must be below this.
    advice: what else the sentence says, as in '; choose a smaller one'.
  """
  if not isinstance(value, (int, float)):
    raise UserError(f'{name}={value!r}, but must be a number{advice}.')
  is_finite = abs(value) < 3.4e38
  limits = [] if is_finite else ['finite, and below 3.4e38 as a float32']
  limits += [
      f'{words} {limit}' for words, limit in (
          ('at least', least), ('above', above), ('below', below))
      if limit is not None]
  if (not is_finite or least is not None and value < least
      or above is not None and value <= above
      or below is not None and value >= below):
    raise UserError(
        f'{name}={value}, but must be {" and ".join(limits)}{advice}.')


def one_line(error: BaseException) -> str:
  """The kind of an error and the first line of its text."""
  text = str(error).strip().partition('\n')[0].rstrip('.')
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
  """Who knows no UserError refuses with a ValueError; that is meant here."""
  try:
    yield
  except ValueError as error:
    raise UserError(str(error)) from error
