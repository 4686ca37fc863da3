"""The error that speaks to the user."""

from collections.abc import Iterator
import contextlib


class UserError(ValueError):
  """Something the user gave cannot be used.

  The message is one sentence or a short table: what was given, what was
  expected, what to do. `main` prints it without a traceback.
  """


@contextlib.contextmanager
def said_to_the_user() -> Iterator[None]:
  """Who knows no UserError refuses with a ValueError; that is meant here."""
  try:
    yield
  except ValueError as error:
    raise UserError(str(error)) from error
