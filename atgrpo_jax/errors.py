"""Errors whose message is for the user; `main` prints it without a traceback.

A message is one sentence or a short table: the given value, what was expected,
and the fix.
"""

from collections.abc import Collection, Iterator, Sequence
import contextlib
import json
import math
import traceback
from typing import Any


class UserError(ValueError):
  """The user's input cannot be used."""

  status = 2  # The exit status.
  user_traceback = ''  # Printed before the message.


class TemplateError(UserError):
  """The chat template refuses messages."""


class InfrastructureError(RuntimeError):
  """A service that the run needs, such as the sandbox, stays broken."""

  status = 3


class LostWorkdirError(RuntimeError):
  """The workdir was deleted, or another process may write to it."""

  status = 1


REPORTED_ERRORS = UserError, InfrastructureError, LostWorkdirError


def of_user_code(message: str, error: BaseException) -> UserError:
  """A UserError with the traceback of `error` below our frame, the first."""
  reported = UserError(message)
  reported.user_traceback = ''.join(traceback.format_exception(
      type(error), error, error.__traceback__.tb_next))
  return reported


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises UserError if a command line has positional arguments."""
  if len(argv) > 1:
    raise UserError(f'Unexpected arguments: {" ".join(argv[1:])}; see --help.')


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
  """Raises UserError unless a value of the config is one of `choices`."""
  if value not in choices:
    raise UserError(f'{name}={value!r}: expected one of {list(choices)}.')


def check_number(
    name: str, value: float, *, min_value: float = -math.inf,
    greater_than: float = -math.inf, less_than: float = math.inf,
    advice: str = '') -> None:
  """Raises UserError unless a number is finite as a float32 and in bounds.

  `min_value` is inclusive, the other bounds are exclusive. `advice` ends the
  message, e.g. '; choose a smaller one'.
  """
  if (isinstance(value, (int, float)) and abs(value) < 3.4e38
      and value >= min_value and greater_than < value < less_than):
    return
  bounds = {'at least': min_value, 'above': greater_than, 'below': less_than}
  given = [
      f', {words} {x}' for words, x in bounds.items() if math.isfinite(x)]
  raise UserError(
      f'{name}={value!r}: expected a finite number{"".join(given)}{advice}.')


def check_sizes(name: str, sizes: Sequence[int], min_count: int = 1) -> None:
  """Raises UserError unless the sizes are positive and strictly ascending."""
  if (len(sizes) < min_count
      or any(type(size) is not int or size < 1 for size in sizes)
      or list(sizes) != sorted(set(sizes))):
    raise UserError(
        f'{name}={sizes}: give whole numbers above 0, the smallest first and '
        'each once.')


# Kind of a value in a JSON file -> what a message calls it.
JSON_KINDS = {
    bool: 'true or false', int: 'a whole number from 1 to 2147483647',
    float: 'a number above 0 that float32 can hold'}


def json_value(name: str, value: Any, kind: type) -> Any:
  """A value of a JSON file as `kind`; UserError unless it is in `JSON_KINDS`.

  Whole numbers count as float.
  """
  if kind is float:
    is_valid = type(value) in (int, float) and 1.2e-38 < value < 3.4e38
  elif kind is int:
    is_valid = type(value) is int and 0 < value < 2**31
  else:
    is_valid = type(value) is kind
  if not is_valid:
    raise UserError(f'{name}={as_json(value)} must be {JSON_KINDS[kind]}.')
  return kind(value)


def as_json(value: Any) -> str:
  """A value in the words of JSON, shortened if it is long."""
  text = json.dumps(value)
  return text if len(text) <= 100 else f'{text[:100]}...'


def one_line(error: BaseException) -> str:
  """The type of an error and the first line of its message."""
  # Also if the error cannot be printed.
  text = str(traceback.TracebackException(type(error), error, None))
  text = text.strip().partition('\n')[0].rstrip('.')
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
  """Converts ValueError into UserError, for code that cannot import this."""
  try:
    yield
  except ValueError as error:
    raise UserError(str(error)) from error
