"""Verdicts on HumanEval equal those of its tests run directly.

$HUMANEVAL_JSONL names data/HumanEval.jsonl of openai/human-eval. Without it the
tests are skipped.
"""

from concurrent import futures
import dataclasses
import json
import os
import pathlib
import random

import pytest

from environments import sandbox as sandbox_lib
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import env as functions
from tests.environments.programming import mutants
from tests.environments.programming.functions import splitting

_FILE = os.environ.get('HUMANEVAL_JSONL', '')
pytestmark = pytest.mark.skipif(not _FILE, reason='$HUMANEVAL_JSONL is not set')


def read_problems():
  rows = map(json.loads, pathlib.Path(_FILE).read_text().splitlines())
  return [problems.Problem(
      row['task_id'], row['prompt'], row['prompt'], row['entry_point'],
      row['prompt'], 'check', row['prompt'] + row['canonical_solution'],
      1.0, problems.pack(row['test'])) for row in rows]


def run_directly(sandbox, problem, program):
  """True if a program passes in one process with its tests."""
  source = (
      f'import random\nrandom.seed(0)\n{program}\n{problem.check_code}\n'
      f'check({problem.entry_point})\n')
  return sandbox.run(source).status is sandbox_lib.Status.OK


@pytest.fixture(scope='module')
def programs():
  """Returns (problem, reference) and (problem, mutant) pairs."""
  rng = random.Random(0)
  pairs = []
  for problem in read_problems():
    pairs.append((problem, problem.reference))
    first_line = problem.statement.count('\n') + 1
    pairs.append(
        (problem, mutants.mutate(problem.reference, first_line, rng)))
  return pairs


def test_verdicts_equal_direct_runs(programs):
  def compare(pair):
    verdict = checks.check(sandbox, *pair)
    assert not verdict.failed
    return verdict.passed, run_directly(direct, *pair)

  with sandbox_lib.SandboxServer() as server:
    sandbox = sandbox_lib.Sandbox(server.address)
    direct = dataclasses.replace(sandbox, limits=sandbox_lib.Limits(
        cpu_seconds=3.0, wall_seconds=20.0, memory_bytes=512 << 20))
    with futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(compare, programs))
  wrong = [
      (problem.task_id, program) for (problem, program), (ours, theirs)
      in zip(programs, found) if ours is not theirs]
  assert not wrong
  references, of_mutants = found[::2], found[1::2]
  assert len(references) == 164 and all(ours for ours, _ in references)
  assert 100 < sum(not ours for ours, _ in of_mutants) < 164


def test_split_references_pass_as_helper_and_main():
  def play(problem):
    parts = splitting.split(problem.reference, problem.entry_point)
    aux, main = parts or ('', problem.reference)
    step = environment.step(
        functions.State(problem), {'aux': aux, 'main': main})
    return parts is not None, step.reward_terms

  with sandbox_lib.SandboxServer() as server:
    environment = functions.make_environment(
        team='pair', max_turns=1, reward='outcome',
        sandbox=sandbox_lib.Sandbox(server.address))
    with futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(play, read_problems()))
  assert len(found) == 164
  for is_split, terms in found:
    assert (terms['syntax'], terms['tests']) == (0.5, 1.0)
    assert terms['structure'] == (1.0 if is_split else 0.6)
  assert sum(is_split for is_split, _ in found) == 140
