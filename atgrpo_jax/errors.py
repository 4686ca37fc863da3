"""The error that speaks to the user."""


class UserError(ValueError):
  """Something the user gave cannot be used.

  The message is one sentence or a short table: what was given, what was
  expected, what to do. `main` prints it without a traceback.
  """
