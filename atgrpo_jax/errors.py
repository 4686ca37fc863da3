"""The error that speaks to the user."""

from collections.abc import Iterator, Sequence
import contextlib


class UserError(ValueError):
  """Something the user gave cannot be used.

  The message is one sentence or a short table: what was given, what was
  expected, what to do. `main` prints it without a traceback.
  """


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises a UserError if a command line has more than flags."""
  if len(argv) > 1:
    raise UserError(f'Unexpected arguments: {" ".join(argv[1:])}; see --help.')


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
  """Who knows no UserError refuses with a ValueError; that is meant here."""
  try:
    yield
  except ValueError as error:
    raise UserError(str(error)) from error
