"""Programming problems of all benchmarks, in one format.

There are three kinds of tests:

  stdin   The program reads text and prints text. A test is an input and the
          correct outputs.
  call    A function of the program is called. A test is its arguments and the
          correct values.
  check   The benchmark has a function `check` that asserts (HumanEval, MBPP).

A task is a `Problem` as a dict. Some tasks have megabytes of tests, so tests
are stored as compressed text.
"""

import base64
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
import zlib

from environments import env_api
from environments.sandbox import literals

# Tasks whose tests stay unpacked in a process. The candidates of a group are
# graded one after another.
_NUM_UNPACKED = 4


@dataclasses.dataclass(frozen=True)
class Case:
  """One test of the kinds stdin and call."""

  input: Any  # Text for stdin, or a tuple of arguments.
  answers: tuple[Any, ...]  # Texts or values, each of which is correct.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """A task of one of the builders."""

  task_id: str = ''
  statement: str
  comparison: str  # A key of `comparisons.COMPARISONS`, or 'check'.
  tests: str  # Compressed; see `cases` and `check_code`.
  time_limit: float  # CPU seconds of one test.
  starter_code: str = ''  # The beginning of a program to complete, or ''.
  entry_point: str = ''  # The function that is called, or '' for stdin.
  preamble: str = ''  # Text that precedes every program.
  reference: str = ''  # A correct program, or ''.

  @property
  def cases(self) -> tuple[Case, ...]:
    """Tests of the kinds stdin and call, in the order of the data."""
    return _unpack_cases(self.tests)

  @property
  def check_code(self) -> str:
    """Tests of the kind check: text that defines `check(candidate)`."""
    return unpack(self.tests)


def from_task(task: env_api.Task) -> Problem:
  """Returns the problem of a row; ValueError for a row of other data."""
  try:
    return Problem(**{
        field.name: task[field.name] for field in dataclasses.fields(Problem)})
  except KeyError as error:
    raise ValueError(
        f'the task {task.get("task_id")!r} has no field {error}, so it is not '
        'a programming problem; dataset.builder must be one of '
        'environments/programming') from error


def pack(value: Any) -> str:
  """Compresses a plain value to text."""
  data = zlib.compress(literals.encode(value).encode())
  return base64.b64encode(data).decode()


def unpack(text: str) -> Any:
  return literals.decode(zlib.decompress(base64.b64decode(text)))


def pack_cases(cases: Sequence[Case]) -> str:
  return pack([(case.input, case.answers) for case in cases])


@functools.lru_cache(_NUM_UNPACKED)
def _unpack_cases(text: str) -> tuple[Case, ...]:
  return tuple(Case(*case) for case in unpack(text))
