"""Coder and tester: rewards and the end of an episode.

`tests/environments/transcripts_test.py` plays whole episodes of each team.
"""

import pytest

from environments import env_api
from environments import text as text_lib
from environments.programming.contests import env as contests
from tests.environments import echo_sandbox
from tests.environments.programming import examples

Outcome = env_api.Outcome
# The golden numbers occur in no program or case below.
GOLDEN = [(f'{i} 77001', [f'{i + 77001}']) for i in (1, 2, 3, 4)]
REFERENCE = 'a, b = map(int, input().split())\nprint(a + b)  # reference'
RIGHT = 'print(sum(map(int, input().split())))'
HALF = 'a, b = map(int, input().split())\nprint(a + b if a < 3 else 0)'


def make(sandbox, team='pair', max_turns=2, reward='mixed'):
  return contests.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=sandbox)


def start(problem=None, **changes):
  if problem is None:
    problem = examples.make(GOLDEN, reference=REFERENCE)
  return contests.State(problem, **changes)


def block(program):
  return f'Here it is.\n```python\n{program}\n```\n'


def written(*pairs):
  return '\n'.join(
      f'```input\n{given}\n```\n```output\n{expected}\n```'
      for given, expected in pairs)


def run_cases(environment, state, *cases):
  return environment.step(state, {'tester': written(*cases)})


SPIN = 'import time\nwhile time.process_time() < 0.25: pass'


# Previous program and its pass rate, reply, outcome, compiles, smoke, golden.
@pytest.mark.parametrize('previous, rate, action, outcome, terms', [
    ('', 0, block(RIGHT), Outcome.OK, (1, 1, 1)),
    (HALF, .5, block(RIGHT), Outcome.OK, (1, 1, 1)),
    (RIGHT, 1, block(RIGHT), Outcome.NO_EFFECT, (1, 1, 1)),
    (RIGHT, 1, block(HALF), Outcome.OK, (1, 1, .5)),
    ('', 0, block('print(1)\nexit("SyntaxErrors are none")'),
     Outcome.PROGRAM_ERROR, (1, 0, 0)),
    ('', 0, block('print('), Outcome.PROGRAM_ERROR, (0, 0, 0)),
    ('', 0, block('import no_such_module'), Outcome.PROGRAM_ERROR, (0, 0, 0)),
    # Doing nothing earns nothing.
    ('', 0, block('pass'), Outcome.NO_EFFECT, (0, 0, 0)),
    ('', 0, block('x = [0] * 10**9'), Outcome.RESOURCE_LIMIT, (1, 0, 0)),
    ('', 0, block(SPIN), Outcome.TIMEOUT, (1, 0, 0)),
    # A reply without a program loses the previous one.
    ('x', .75, '', Outcome.PARSE_ERROR, (0, 0, 0)),
])
def test_coder_is_paid_for_passed_tests(
    sandbox, previous, rate, action, outcome, terms):
  problem = examples.make(GOLDEN, reference=REFERENCE, time_limit=0.2)
  state = start(problem, program=f'{previous}\n', pass_rate=rate)
  step = make(sandbox).step(state, {'coder': action})
  compiles, smoke, golden = terms
  assert step.reward_terms == {
      'improvement': golden - rate, 'compiles': compiles, 'smoke': smoke,
      'golden': golden}
  assert step.team_reward == golden - rate
  assert step.local_rewards == {
      'coder': pytest.approx(.1 * compiles + .1 * smoke + .8 * golden)}
  assert step.outcomes == {'coder': outcome}
  assert not step.done
  assert step.program_runs == {
      Outcome.TIMEOUT: 3, Outcome.PARSE_ERROR: 0}.get(outcome, 4)
  assert step.state.pass_rate == golden
  assert step.state.program == (text_lib.last_program(action) or '')
  # The quality is paid once.
  again = make(sandbox).step(step.state, {'coder': action})
  assert again.local_rewards == {'coder': 0}


def test_outcome_preset_pays_only_golden_tests(sandbox):
  environment = make(sandbox, reward='outcome')
  step = environment.step(start(), {'coder': block(HALF)})
  assert (step.team_reward, step.local_rewards) == (.5, {'coder': 0})


@pytest.mark.parametrize('value', ['[' * 101 + ']' * 101, '"\\ud83d"'])
def test_cases_that_cannot_enter_the_sandbox_are_malformed(sandbox, value):
  problem = examples.make(
      [((1, 2), [3])], entry_point='add', reference=examples.ADD)
  state = start(problem, program=examples.ADD)
  for case in ((f'{value}\n1', '2'), ('1\n1', value)):
    tested = run_cases(make(sandbox), state, case)
    assert tested.outcomes == {'tester': Outcome.PARSE_ERROR}


@pytest.mark.parametrize('action, valid, correct, outcome', [
    (written(('1 2', '3'), ('2 2', '5')), 1, .5, Outcome.OK),
    (written(('1 2', '3'), ('a b', '4')), .5, .5, Outcome.OK),
    (written(('a b', '4')), 0, 0, Outcome.ILLEGAL_ACTION),
    # Cases that the empty program passes, and repeated cases, are wrong.
    (written(('1 2', '')), 0, 0, Outcome.NO_EFFECT),
    (written(('1 2', ''), ('1 2', '3')), .5, .5, Outcome.OK),
    (written(('1 2', '3'), ('1  2', '3'), ('01 2\n', '3')), 1 / 3, 1 / 3,
     Outcome.OK),
    (written(*((f'{i} 1', f'{i + 1}') for i in range(9))), 1, 1, Outcome.OK),
    ('', 0, 0, Outcome.PARSE_ERROR),
    ('```output\n3\n```\n```input\n1 2\n```', 0, 0, Outcome.PARSE_ERROR),
    ('```input\n1 2\n```\n' + written(('1 2', '3')), .5, .5, Outcome.OK),
])
def test_tester_terms_and_outcome(sandbox, action, valid, correct, outcome):
  step = make(sandbox).step(
      start(program=RIGHT, pass_rate=1.0), {'tester': action})
  assert step.reward_terms == {'valid': valid, 'correct': correct}
  assert step.local_rewards == {
      'tester': pytest.approx(.2 * valid + .8 * correct)}
  assert step.outcomes == {'tester': outcome}
  assert step.team_reward == 0.0


@pytest.mark.parametrize('reference, terms', [
    ('import time\ninput()\nprint(time.time_ns())',
     {'valid': 0, 'correct': 0}),
    ('', {})])
def test_reference_must_exist_and_be_deterministic(sandbox, reference, terms):
  state = start(examples.make(GOLDEN, reference=reference), program=RIGHT)
  step = run_cases(make(sandbox), state, ('1 2', '3'))
  assert step.reward_terms == terms
  assert step.local_rewards == {'tester': 0.0}
  assert step.done  # The program and the case agree.


@pytest.mark.parametrize('program, rate, cases, last, done, success, trunc', [
    (RIGHT, 1.0, [('1 2', '3')], False, True, True, False),
    (HALF, .5, [('1 2', '3')], False, True, False, False),
    (RIGHT, 1.0, [('1 2', '3'), ('1 2', '4')], False, False, False, False),
    (RIGHT, 1.0, [('1 2', '4')], True, True, True, False),
    (HALF, .5, [('1 2', '4')], True, True, False, True),
    ('pass', 0.0, [('1 2', '')], False, False, False, False),
    ('', 0.0, [('1 2', '3')], False, False, False, False),
])
def test_agreement_ends_the_episode_and_golden_tests_decide_success(
    sandbox, program, rate, cases, last, done, success, trunc):
  environment = make(sandbox, max_turns=1 if last else 2)
  step = run_cases(environment, start(program=program, pass_rate=rate), *cases)
  assert (step.done, step.success, step.truncated) == (done, success, trunc)
  assert step.state.turn == 1
  for role in environment.roles:
    shown = echo_sandbox.prompt(environment, step.state, role)
    assert '7700' not in shown and 'reference' not in shown
