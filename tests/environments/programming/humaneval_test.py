"""Verdicts on HumanEval equal those of its tests run directly.

$HUMANEVAL_JSONL names data/HumanEval.jsonl of openai/human-eval. Without it the
test is skipped.
"""

from concurrent import futures
import dataclasses
import json
import os
import pathlib
import random
import re

import pytest

from environments import sandbox as sandbox_lib
from environments.programming import benchmarks_dataset_builder as benchmarks
from environments.programming import checks
from environments.programming import problems

_FILE = os.environ.get('HUMANEVAL_JSONL', '')
pytestmark = pytest.mark.skipif(not _FILE, reason='$HUMANEVAL_JSONL is not set')

# Replaced operators and numbers: most mutants run, and fail.
_SWAPS = {
    ' + ': ' - ', ' - ': ' + ', ' * ': ' + ', ' / ': ' * ', ' // ': ' * ',
    ' % ': ' // ', ' < ': ' <= ', ' <= ': ' < ', ' > ': ' >= ', ' >= ': ' > ',
    ' == ': ' != ', ' != ': ' == ', ' and ': ' or ', ' or ': ' and ',
    ' not ': ' ', 'True': 'False', 'False': 'True', 'min(': 'max(',
    'max(': 'min(', '.append': '.extend', 'sorted(': 'list(', '0': '1',
    '1': '2', '2': '3'}


def read_problems():
  rows = map(json.loads, pathlib.Path(_FILE).read_text().splitlines())
  return [problems.Problem(**benchmarks._humaneval(row) | dict(
      task_id=row['task_id'], tests=problems.pack(row['test']),
      time_limit=1.0)) for row in rows]


def mutate(problem, rng):
  """Replaces one operator or number of the solution; 'pass' if it has none."""
  body = problem.reference.removeprefix(problem.statement)
  found = list(re.finditer('|'.join(map(re.escape, _SWAPS)), body))
  if not found:
    return f'{problem.statement}    pass\n'
  change = rng.choice(found)
  return (
      problem.statement + body[:change.start()] + _SWAPS[change[0]]
      + body[change.end():])


def run_directly(sandbox, problem, program):
  """Returns True if a program passes in one process with its tests."""
  source = (
      f'import random\nrandom.seed(0)\n{program}\n{problem.check_code}\n'
      f'check({problem.entry_point})\n')
  return sandbox.run(source).status is sandbox_lib.Status.OK


def test_verdicts_equal_direct_runs():
  rng = random.Random(0)
  programs = []
  for problem in read_problems():
    programs += [(problem, problem.reference), (problem, mutate(problem, rng))]

  def compare(pair):
    verdict = checks.check(sandbox, *pair)
    assert verdict.status is not sandbox_lib.Status.INFRASTRUCTURE
    return verdict.passed, run_directly(direct, *pair)

  with sandbox_lib.SandboxServer() as server:
    sandbox = sandbox_lib.Sandbox(server.address)
    direct = dataclasses.replace(sandbox, limits=sandbox_lib.Limits(
        cpu_seconds=3.0, wall_seconds=20.0, memory_bytes=512 << 20))
    with futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(compare, programs))
  assert [
      (problem.task_id, program) for (problem, program), (ours, theirs)
      in zip(programs, found) if ours is not theirs] == []
  references, mutants = found[::2], found[1::2]
  assert len(references) == 164 and all(ours for ours, _ in references)
  assert 100 < sum(not ours for ours, _ in mutants) < 164
