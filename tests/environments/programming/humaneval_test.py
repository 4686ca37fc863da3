"""Verdicts on HumanEval equal those of its tests run directly.

$HUMANEVAL_JSONL names data/HumanEval.jsonl of openai/human-eval. Without it the
test is skipped.
"""

import ast
from concurrent import futures
import dataclasses
import io
import json
import os
import pathlib
import random
import tokenize

import pytest

from environments import sandbox as sandbox_lib
from environments.programming import checks
from environments.programming import problems

_FILE = os.environ.get('HUMANEVAL_JSONL', '')
pytestmark = pytest.mark.skipif(not _FILE, reason='$HUMANEVAL_JSONL is not set')

_SWAPS = {
    '+': '-', '-': '+', '*': '+', '/': '*', '//': '*', '%': '//', '<': '<=',
    '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '==', '+=': '-=',
    '-=': '+=', 'and': 'or', 'or': 'and', 'True': 'False', 'False': 'True',
    'not': '', 'min': 'max', 'max': 'min', 'any': 'all', 'all': 'any',
    'append': 'extend', 'break': 'continue', 'sorted': 'list'}


def read_problems():
  rows = map(json.loads, pathlib.Path(_FILE).read_text().splitlines())
  return [problems.Problem(
      task_id=row['task_id'], statement=row['prompt'],
      starter_code=row['prompt'], entry_point=row['entry_point'],
      preamble=row['prompt'], comparison='check',
      reference=row['prompt'] + row['canonical_solution'], time_limit=1.0,
      tests=problems.pack(row['test'])) for row in rows]


def mutate(program, first_line, rng):
  """Changes one token in or after a line, counted from 1."""
  tokens = [
      token for token in tokenize.generate_tokens(io.StringIO(program).readline)
      if token.start[0] >= first_line]
  names = sorted({
      token.string for token in tokens
      if token.type == tokenize.NAME and token.string not in _SWAPS
      and not token.string.startswith('__')})
  rng.shuffle(tokens)
  for token in tokens:
    if token.string in _SWAPS:
      other = _SWAPS[token.string]
    elif token.type == tokenize.NUMBER and token.string.isdigit():
      other = str(int(token.string) + 1)
    elif token.type == tokenize.NAME and token.string in names:
      other = rng.choice(names)
    else:
      continue
    lines = program.split('\n')
    (row, start), (_, end) = token.start, token.end
    lines[row - 1] = lines[row - 1][:start] + other + lines[row - 1][end:]
    try:
      ast.parse('\n'.join(lines))
    except SyntaxError:
      continue
    return '\n'.join(lines)
  raise ValueError(f'no token of {program!r} can be changed')


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
    first_line = problem.statement.count('\n') + 1
    programs += [
        (problem, problem.reference),
        (problem, mutate(problem.reference, first_line, rng))]

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
