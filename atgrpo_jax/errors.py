"""Errors whose message is for the user; `main` prints it without a traceback.

A message is one sentence or a short table: the given value, what was expected,
and the fix.
"""

from collections.abc import Iterator, Sequence
import contextlib

from absl import flags

# Errors that code written by the user, such as a config file, may raise.
USER_CODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    flags.Error)


class UserError(ValueError):
  """The user's input cannot be used."""

  status = 2  # The exit status.


class CheckpointError(UserError):
  """A checkpoint cannot be written, read or used."""


class InfrastructureError(RuntimeError):
  """A service that the run needs, such as the sandbox, stays broken."""

  status = 3


class LostWorkdirError(RuntimeError):
  """The workdir was deleted, or another process may write to it."""

  status = 1


REPORTED_ERRORS = UserError, InfrastructureError, LostWorkdirError


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises UserError if a command line has positional arguments."""
  if len(argv) > 1:
    raise UserError(f'Unexpected arguments: {" ".join(argv[1:])}; see --help.')


def check_number(
    name: str, value: float, *, min_value: float | None = None,
    greater_than: float | None = None, less_than: float | None = None,
    advice: str = '') -> None:
  """Raises UserError unless a number is finite as a float32 and in bounds.

  Args:
    name: its key in the config.
    value: the number to check.
    min_value: inclusive lower bound.
    greater_than: exclusive lower bound.
    less_than: exclusive upper bound.
    advice: appended to the sentence, e.g. '; choose a smaller one'.
  """
  if not isinstance(value, (int, float)):
    raise UserError(f'{name}={value!r} must be a number{advice}.')
  is_finite = abs(value) < 3.4e38
  limits = [] if is_finite else ['finite, and below 3.4e38 as a float32']
  limits += [
      f'{words} {limit}' for words, limit in (
          ('at least', min_value), ('above', greater_than),
          ('below', less_than))
      if limit is not None]
  if (not is_finite or min_value is not None and value < min_value
      or greater_than is not None and value <= greater_than
      or less_than is not None and value >= less_than):
    raise UserError(
        f'{name}={value} must be {" and ".join(limits)}{advice}.')


def one_line(error: BaseException) -> str:
  """The type of an error and the first line of its message."""
  text = str(error).strip().partition('\n')[0].rstrip('.')
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
  """Converts ValueError into UserError, for code that cannot import this."""
  try:
    yield
  except ValueError as error:
    raise UserError(str(error)) from error
