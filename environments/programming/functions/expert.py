"""A reviewer outside of the team: any model with an OpenAI-compatible endpoint.

After a turn it is shown the problem and what each agent wrote, and suggests
edits to each (arXiv 2508.04652, `expert_edits` of the released code: another
model, temperature 0.3, at most 2048 tokens, three attempts).

What it says is not a function of the seed, so a run that asks it can be resumed
but not repeated. An endpoint that does not answer is no fault of the team: the
step fails. An answer that is no JSON of the form asked for, three times, is a
review without edits; the term `edits` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import http.client
import json
import logging
import os
import time
from typing import Any
import urllib.error
import urllib.request

from environments import text as text_lib

_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0  # Before the second attempt; doubled before the third.
_TEMPERATURE = 0.3
_MAX_TOKENS = 2048
_MAX_EDITS = 10  # That an agent is shown, of at most so many bytes.
_SHOWN_EDIT = 600


class ExpertError(RuntimeError):
  """The endpoint gave no answer."""


@dataclasses.dataclass(frozen=True)
class Expert:
  """Whom to ask, and how.

  Attributes:
    url: of the API, such as 'http://localhost:8000/v1'.
    model: its name there.
    key_variable: the environment variable with the API key; '' sends none.
    seconds: that an answer may take.
  """

  url: str
  model: str
  key_variable: str = ''
  seconds: float = 120.0

  def __post_init__(self):
    if not self.url.startswith(('http://', 'https://')) or not self.model:
      raise ValueError(
          f'environment.options.expert_url={self.url!r} and expert_model='
          f'{self.model!r}: feedback_mode=expert_edits asks a model at an '
          "OpenAI-compatible endpoint; give both, such as 'http://localhost:"
          "8000/v1' and its name there.")
    if self.key_variable and not os.environ.get(self.key_variable):
      raise ValueError(
          f'environment.options.expert_key_variable={self.key_variable!r}: '
          'there is no such environment variable; set it to the API key.')

  def edits(
      self, statement: str,
      functions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """What each agent should change.

    Args:
      statement: of the problem.
      functions: role -> what it wrote.

    Raises:
      ExpertError: three attempts had no answer.
    """
    failure = None
    for attempt in range(_ATTEMPTS):
      if attempt:
        time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
      try:
        failure, reply = None, self._ask(_prompt(statement, functions))
      except (OSError, http.client.HTTPException, ValueError) as error:
        failure = error
        logging.warning('The expert at %s: %s', self.url, error)
        continue
      if (found := _read(reply, functions)) is not None:
        return found
    if failure is not None:
      raise ExpertError(f'The expert at {self.url}: {failure}') from failure
    return dict.fromkeys(functions, ())

  def _ask(self, prompt: str) -> str:
    """The text of one answer."""
    headers = {'Content-Type': 'application/json'}
    if self.key_variable:
      headers['Authorization'] = f'Bearer {os.environ[self.key_variable]}'
    request = urllib.request.Request(
        f'{self.url.rstrip("/")}/chat/completions', headers=headers,
        data=json.dumps({
            'model': self.model, 'temperature': _TEMPERATURE,
            'max_tokens': _MAX_TOKENS,
            'messages': [{'role': 'user', 'content': prompt}]}).encode())
    with urllib.request.urlopen(request, timeout=self.seconds) as response:
      reply = json.load(response)
    try:
      text = reply['choices'][0]['message']['content']
    except (LookupError, TypeError) as error:
      raise ValueError(f'no choices[0].message.content in {reply!r:.200}'
                       ) from error
    return text or ''


def _prompt(statement: str, functions: Mapping[str, str]) -> str:
  written = '\n\n'.join(
      f'{role} wrote:\n{text or "(nothing)"}'
      for role, text in functions.items())
  form = json.dumps({role: ['first edit', '...'] for role in functions})
  return (
      'Review the code of programmers who solve a problem together. Suggest '
      'edits to each, in words or code: errors, and what keeps their functions '
      f'from working together.\n\nProblem:\n{statement}\n\n{written}\n\n'
      f'Answer with JSON alone, of this form: {form}')


def _read(
    reply: str,
    functions: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
  """The edits of each role; None if the reply has another form."""
  first, last = reply.find('{'), reply.rfind('}')
  try:
    found: Any = json.loads(reply[first:last + 1])
  except (ValueError, RecursionError):
    return None
  if not isinstance(found, dict):
    return None
  edits = {}
  for role in functions:
    of_role = found.get(role, [])
    if not isinstance(of_role, list) or not all(
        isinstance(edit, str) for edit in of_role):
      return None
    edits[role] = tuple(
        text_lib.shorten(edit, _SHOWN_EDIT) for edit in of_role[:_MAX_EDITS])
  return edits


def tell(edits: tuple[str, ...]) -> str:
  """What an agent is told of its edits."""
  if not edits:
    return 'A reviewer has read your code and suggests no edits.'
  return '\n'.join(['A reviewer suggests:', *(f'- {edit}' for edit in edits)])
