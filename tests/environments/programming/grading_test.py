"""Grading of programs: which inputs run, with which limits, and verdicts."""

import dataclasses

import pytest

from environments import sandbox as sandbox_lib
from environments.programming import grading
from tests.environments.programming import examples

Status = sandbox_lib.Status
SUM = 'print(sum(map(int, input().split())))'
CASES = [('1 2\n', ['3\n']), ('3 4\n', ['7']), ('5 5\n', ['x', '10'])]


def grade(sandbox, problem, program):
  return grading.grade(sandbox, problem, program, problem.cases)


@pytest.mark.parametrize('program, passed', [
    (SUM, [1, 1, 1]),
    (f'import sys; print("a warning", file=sys.stderr)\n{SUM}', [1, 1, 1]),
    ('print(7)', [0, 1, 0]), (f'{SUM}\nexit(1)', [0, 0, 0])])
def test_stdin_programs_pass_with_equal_output(sandbox, program, passed):
  found = grade(sandbox, examples.make(CASES), program)
  assert found.passed == tuple(map(bool, passed))
  assert found.pass_rate == sum(passed) / 3


@pytest.mark.parametrize('program, passed', [
    ('def f(a, b): return a + b', [1, 1]),
    ('class Solution:\n  def f(self, a, b): return (*a, *b)', [1, 0]),
    ('def g(a, b): return a + b', [0, 0]),
    # A class Solution precedes a function of the same name.
    ('class Solution:\n  def f(self, a, b): return a + b\ndef f(a, b): 1 / 0',
     [1, 1]),
    # Not equal by `==`.
    ('import numpy\ndef f(a, b): return numpy.array([*a, *b])', [0, 0]),
    ('from __future__ import annotations\n'
     'def f(a, b): return list(chain(a, b)) if a[0] == 1 else "ab"', [1, 1]),
])
def test_functions_pass_with_equal_values(sandbox, program, passed):
  problem = examples.make(
      [(([1], [2]), [[1, 2]]), (('a', 'b'), ['ab'])], entry_point='f',
      preamble='from collections import *\nfrom itertools import *\n'
      'from typing import *\n')
  assert grade(sandbox, problem, program).passed == tuple(map(bool, passed))


def test_a_function_of_the_preamble_is_no_answer(sandbox):
  problem = examples.make(
      [((12, 8), [4])], entry_point='gcd', preamble='from math import *')
  assert grade(sandbox, problem, '# No idea.').passed == (False,)
  for program in ('import math\ngcd = math.gcd', (
      'def gcd(a, b): return gcd(b, a % b) if b else a')):
    assert grade(sandbox, problem, program).passed == (True,)


@dataclasses.dataclass(frozen=True)
class Spy:
  """Records its inputs and returns results with the given statuses."""

  requests: list
  statuses: tuple = ()
  limits: sandbox_lib.Limits = sandbox_lib.Limits()

  def run_tests(self, source, stdins):
    start = sum(len(inputs) for _, inputs, _ in self.requests)
    self.requests.append((source, list(stdins), self.limits))
    return [
        sandbox_lib.ProgramResult(status, '3', '')
        for status in self.statuses[start:start + len(stdins)]]


def test_sandbox_never_sees_answers():
  secret = 'the answer'
  requests = []
  problem = examples.make([(str(i), [secret]) for i in range(6)], time_limit=4.)
  found = grade(Spy(requests, (Status.OK,) * 6), problem, 'program')
  assert found.passed == (False,) * 6
  assert [inputs for _, inputs, _ in requests] == [
      ['0'], ['1', '2'], ['3', '4', '5']]
  assert secret not in str(requests)
  assert {limits for _, _, limits in requests} == {sandbox_lib.Limits(
      cpu_seconds=4.0, wall_seconds=10.0, memory_bytes=512 << 20,
      output_bytes=64 << 10)}


def test_output_limit_is_twice_the_longest_answer(sandbox):
  problem = examples.make([('', ['a' * 200_000])])
  assert grade(sandbox, problem, 'print("a" * 200_000)').passed == (True,)
  result, = grade(sandbox, problem, 'print("a" * 500_000)').results
  assert result.status is Status.RESOURCE_LIMIT


@pytest.mark.parametrize('statuses, num_runs', [
    ('tteoooooo', 9), ('tttoooooo', 3), ('ototootoo', 7), ('oiooooooo', 3)])
def test_third_timeout_or_sandbox_failure_ends_the_run(statuses, num_runs):
  problem = examples.make([(str(i), ['3']) for i in range(9)])
  meaning = {
      'o': Status.OK, 't': Status.TIMEOUT, 'e': Status.ERROR,
      'i': Status.INFRASTRUCTURE}
  found = grade(
      Spy([], tuple(map(meaning.get, statuses))), problem, 'program')
  assert len(found.results) == num_runs
  assert found.passed == tuple(
      i < num_runs and status == 'o' for i, status in enumerate(statuses))
  assert grading.any_failed(found.results) is ('i' in statuses)
