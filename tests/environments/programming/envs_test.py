"""Both environments fail and refuse input in the same way."""

import dataclasses

import pytest

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from tests.environments.programming import examples

PROBLEMS = {
    contests: examples.make([('1 2', ['3'])]),
    functions: examples.make_check()}
PROGRAM = f'```python\nprint(3)\n{examples.ADD}```'
CASES = '```input\n1 2\n```\n```output\n3\n```'
# Module, team, and the actions of one step.
STEPS = [
    (contests, 'pair', {'coder': PROGRAM}),
    (contests, 'pair', {'tester': CASES}),
    (contests, 'solo', {'solo': PROGRAM}),
    (functions, 'pair', {'aux': 'def aux(x): return x', 'main': PROGRAM})]


def make(module, **options):
  return module.make_environment(**{
      'team': 'pair', 'max_turns': 2, 'reward': 'outcome',
      'sandbox': sandbox_lib.Sandbox('/nowhere'), **options})


def start(module):
  state = module.State(PROBLEMS[module])
  if module is contests:
    state = dataclasses.replace(state, program='print(3)')
  return state


@pytest.mark.parametrize('module, team, actions', STEPS)
def test_broken_sandbox_is_an_infrastructure_failure(module, team, actions):
  step = make(module, team=team).step(start(module), actions)
  assert step.outcomes == dict.fromkeys(
      actions, env_api.Outcome.INFRASTRUCTURE)


@pytest.mark.parametrize('module, other, words', [
    (contests, functions, 'tests of example/test/0 are code'),
    (functions, contests, 'tests of example/test/0 are not code')])
def test_reset_needs_fitting_tests_and_a_sandbox(module, other, words):
  task = dataclasses.asdict(PROBLEMS[module])
  assert make(module).reset(task) == module.State(PROBLEMS[module])
  with pytest.raises(ValueError, match=words):
    make(module).reset(dataclasses.asdict(PROBLEMS[other]))
  with pytest.raises(ValueError, match='sandbox=None'):
    make(module, sandbox=None).reset(task)
