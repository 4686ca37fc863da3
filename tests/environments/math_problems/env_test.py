"""Mathematics: rewards and outcomes; `transcripts_test.py` plays episodes."""

import dataclasses

import pytest

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.math_problems import env as maths
from environments.math_problems import grader
from tests.environments import echo_sandbox

prompt = echo_sandbox.prompt
Outcome = env_api.Outcome
OK, PARSE_ERROR = Outcome.OK, Outcome.PARSE_ERROR
TASK = {'task_id': 'aime24/test/7', 'problem': 'What is six times seven?',
        'answer': '42'}


def program(source='print(6 * 7)'):
  return f'I compute it.\n```python\n{source}\n```'


def make(stdout='42\n', stderr='', reward='mixed'):
  environment = maths.make_environment(
      team='pair', max_turns=4, reward=reward, sandbox=None)
  return dataclasses.replace(environment, sandbox=echo_sandbox.Constant(
      sandbox_lib.Status.OK, stdout, stderr))


def play(environment, *actions, task=TASK):
  """Returns the steps of an episode, one action per role in turn."""
  state, steps = environment.reset(task), []
  for i, action in enumerate(actions):
    role = environment.roles[i % len(environment.roles)]
    steps.append(environment.step(state, {role: action}))
    state = steps[-1].state
  return steps


@pytest.mark.parametrize('action, quality, outcome', [
    (r'\boxed{42}', 1, OK), (r'\boxed{41}', .2, OK),
    (r'\boxed{}', 0, PARSE_ERROR), (r'\boxed{ }', 0, PARSE_ERROR),
    ('42', 0, PARSE_ERROR), (r'<think>\boxed{42}', 0, PARSE_ERROR),
    (r'\boxed{X}', .2, OK),
    (rf'\boxed{{{"9" * (grader.MAX_LETTERS + 1)}}}', .2, Outcome.TIMEOUT)])
def test_reasoner_reward_and_outcome(action, quality, outcome):
  *_, step = play(make('41\n'), program(), action)
  assert step.local_rewards['reasoner'] == pytest.approx(quality)
  assert step.outcomes == {'reasoner': outcome}


def test_the_example_of_the_request_is_no_box():
  environment = dataclasses.replace(make('41\n'), request=True)
  *_, step = play(environment, program(), r'The answer is \boxed{X}.')
  assert step.local_rewards['reasoner'] == 0
  assert step.outcomes == {'reasoner': PARSE_ERROR}


@pytest.mark.parametrize('stdout, quality, outcome', [
    ('6*7 =\n42', 1, OK), ('42.0', 1, OK), ('[42]', 1, OK), ('41', .2, OK),
    ('(1, 2)', .2, OK), ('Fraction(1, 2)', .2, OK), ('\n\n', 0, PARSE_ERROR),
    ('the answer is 42', .1, PARSE_ERROR), ('4' * 300, .1, PARSE_ERROR),
    ('__import__("os").getpid()', .1, PARSE_ERROR)])
def test_tool_reward_and_outcome(stdout, quality, outcome):
  step, = play(make(stdout, stderr='a warning'), program())
  assert step.local_rewards['tool'] == pytest.approx(quality)
  assert step.outcomes == {'tool': outcome}


@pytest.mark.parametrize('printed, gold', [
    ('2 - sqrt(3)', r'2-\sqrt3'), ('2 + 3*I', '2+3i'), ('-oo', r'-\infty'),
    ('exp(2)/2', r'\frac{e^2}{2}'), ('log(2)*cos(1)', r'\ln 2\cos 1'),
    ('[1, 2]', '1,2'), ('{1, 2}', '1,2'), ('[1, 2] + [3]', '[1, 2] + [3]'),
    ('E/2', r'\frac e2'), ('(1+2j)', '1+2i')])
def test_values_that_sympy_prints_are_graded(printed, gold):
  for answer, is_right in ((gold, True), ('42', False)):
    step, = play(make(printed), program(), task=TASK | {'answer': answer})
    assert step.reward_terms['output_right'] == is_right


@pytest.mark.parametrize('answer', [42, None, ' '])
def test_answers_without_text_are_refused(answer):
  with pytest.raises(ValueError, match='expected a text such as "42"'):
    make().reset(TASK | {'answer': answer})


def test_outcome_preset_pays_only_the_checker():
  steps = play(make(reward='outcome'), program(), r'\boxed{42}')
  assert [step.local_rewards for step in steps] == [
      {'tool': 0}, {'reasoner': 0}]
  assert [step.team_reward for step in steps] == [0, 1]
  assert steps[0].reward_terms['output_right'] == 1  # Logged, not paid.


def test_failed_grader_is_an_infrastructure_failure(monkeypatch):
  environment = make()
  monkeypatch.setattr(
      grader, 'grade', lambda answer, gold: grader.Verdict.FAILED)
  for step in play(environment, program(), r'\boxed{42}'):
    assert list(step.outcomes.values()) == [Outcome.INFRASTRUCTURE]


def test_prompts_are_bounded_and_never_show_the_gold_answer():
  environment, long = make('1' * 60_000), 'x' * 50_000
  task = TASK | {'answer': '987654321'}
  steps = play(
      environment, *[program(f'# {long}'), f'{long}\\boxed{{1}}'] * 3,
      task=task)
  for step in steps:
    for role in environment.roles:
      shown = prompt(environment, step.state, role)
      assert task['answer'] not in shown
      assert len(shown) < 8_000


def test_program_seconds_set_both_time_limits():
  environment = maths.make_environment(
      team='pair', max_turns=1, reward='mixed',
      sandbox=sandbox_lib.Sandbox('/nowhere'), program_seconds=7.0)
  limits = environment.sandbox.limits
  assert (limits.cpu_seconds, limits.wall_seconds) == (7.0, 10.5)
