"""Programming problems of all benchmarks, in one format.

There are three kinds of tests:

  stdin   The program reads text and prints text. A test is an input and the
          correct outputs.
  call    A function of the program is called. A test is its arguments and the
          correct values.
  check   The benchmark has a function `check` that asserts (HumanEval, MBPP).

Some tasks have megabytes of tests, so tests are stored compressed in one text.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
import zlib

from environments import env_api
from environments.sandbox import literals

# Tasks whose tests a process keeps unpacked, because the candidates of a group
# are graded one after another.
_NUM_UNPACKED = 4


@dataclasses.dataclass(frozen=True)
class Case:
  """One test of the kinds stdin and call.

  Attributes:
    input: text for stdin, or a tuple of arguments.
    answers: texts or values, each of which is correct.
  """

  input: Any
  answers: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
  """A task of one of the builders.

  Attributes:
    starter_code: the beginning of a program to complete, or ''.
    entry_point: the function that is called, or '' for stdin.
    preamble: text that precedes every program.
    comparison: a key of `comparisons.COMPARISONS`, or 'check'.
    reference: a correct program, or ''.
    time_limit: CPU seconds of one test.
    packed_tests: see `tests` and `check_code`.
  """

  task_id: str
  statement: str
  starter_code: str
  entry_point: str
  preamble: str
  comparison: str
  reference: str
  time_limit: float
  packed_tests: str

  @property
  def tests(self) -> tuple[Case, ...]:
    """Tests of the kinds stdin and call, in the order of the data."""
    return _unpack_tests(self.packed_tests)

  @property
  def check_code(self) -> str:
    """Tests of the kind check: text that defines `check(candidate)`."""
    return unpack(self.packed_tests)


def from_task(task: env_api.Task) -> Problem:
  """Returns the problem of a row; ValueError for a row of other data."""
  try:
    return Problem(
        packed_tests=task['tests'], **{
            field.name: task[field.name]
            for field in dataclasses.fields(Problem)
            if field.name != 'packed_tests'})
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


def pack_tests(tests: Sequence[Case]) -> str:
  return pack([(test.input, test.answers) for test in tests])


@functools.lru_cache(_NUM_UNPACKED)
def _unpack_tests(text: str) -> tuple[Case, ...]:
  return tuple(Case(*test) for test in unpack(text))
