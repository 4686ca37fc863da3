"""A team that solves problems: who sees what, what is paid, when it ends."""

import dataclasses
import pickle

import pytest

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.math_problems import env as maths
from environments.math_problems import grader
from environments.math_problems import rewards
from tests.environments import echo_sandbox

OK, PARSE_ERROR = env_api.Outcome.OK, env_api.Outcome.PARSE_ERROR
TASK = {'task_id': 'aime24/test/7', 'problem': 'What is six times seven?',
        'answer': '42'}
STATUS = sandbox_lib.Status


def program(source='print(6 * 7)'):
  return f'I compute it.\n```python\n{source}\n```'


def make(stdout='42\n', status=STATUS.OK, stderr='', team='pair',
         reward='mixed', max_turns=4):
  environment = maths.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=None)
  return dataclasses.replace(
      environment,
      sandbox=echo_sandbox.Constant(status, stdout, stderr))


def play(environment, *actions, task=TASK):
  """The steps of an episode; a text for each role in turn."""
  state, steps = environment.reset(task), []
  for i, action in enumerate(actions):
    role = environment.roles[i % len(environment.roles)]
    steps.append(environment.step(state, {role: action}))
    state = steps[-1].state
  return steps


def prompt(environment, state, role):
  return '\n'.join(
      message['content'] for message in environment.observe(state, role))


def test_two_right_answers_that_agree_end_the_episode():
  tool, reasoner = play(make(), program(), r'\boxed{42}')
  assert (tool.team_reward, tool.local_rewards) == (0, {'tool': 1})
  assert tool.reward_terms == {'ran': 1, 'printed': 1, 'output_right': 1}
  assert not tool.done and tool.program_runs == 1
  assert (reasoner.team_reward, reasoner.local_rewards) == (1, {'reasoner': 1})
  assert reasoner.reward_terms == {'solved': 1, 'boxed': 1, 'right': 1}
  assert reasoner.done and reasoner.success and not reasoner.truncated
  assert tool.outcomes == {'tool': OK}
  assert reasoner.outcomes == {'reasoner': OK}


def test_a_reader_is_shown_all_attempts():
  environment = make('41\n')
  *_, last = play(environment, program(), r'No: \boxed{42}', program('1 / 0'))
  assert environment.show(last.state) == {
      'problem': TASK['problem'], 'gold answer': '42',
      'turn 1, tool: program': 'print(6 * 7)\n',
      'turn 1, tool: output': '41\n', 'turn 1, tool: answer': '41',
      'turn 1, reasoner: text': r'No: \boxed{42}',
      'turn 1, reasoner: answer': '42',
      'turn 2, tool: program': '1 / 0\n', 'turn 2, tool: output': '41\n',
      'turn 2, tool: answer': '41'}


def test_agreement_is_no_success():
  tool, reasoner = play(make('41\n'), program(), r'\boxed{41}')
  assert tool.local_rewards['tool'] == pytest.approx(.2)
  assert reasoner.done and not reasoner.success and not reasoner.truncated
  assert reasoner.team_reward == 0
  assert reasoner.local_rewards['reasoner'] == pytest.approx(.2)


def test_a_right_answer_that_nobody_agrees_with_goes_on():
  environment = make('41\n', max_turns=2)
  steps = play(environment, *[program(), r'\boxed{42}'] * 2)
  assert [step.done for step in steps] == [False, False, False, True]
  assert [step.team_reward for step in steps] == [0, 0, 0, 1]
  assert steps[-1].success and not steps[-1].truncated
  assert [step.state.turn for step in steps] == [0, 1, 1, 2]


def test_wrong_answers_until_the_turns_run_out():
  *_, last = play(make('41\n', max_turns=2), *[program(), r'\boxed{1}'] * 2)
  assert last.done and last.truncated and not last.success


def test_answers_of_different_form_agree():
  *_, last = play(
      make('0.5\n'), program(), r'\boxed{\frac{1}{2}}',
      task=TASK | {'answer': '2^{-1}'})
  assert last.done and last.success


def test_what_was_right_before_is_not_paid_again():
  """Disagreeing for four turns pays no more than agreeing at once."""
  environment = make('41\n')
  steps = play(environment, *[program(), r'\boxed{42}'] * 4)
  paid = [step.local_rewards.get('reasoner', 0) for step in steps]
  assert paid == [0, 1, 0, 0, 0, 0, 0, 0]
  assert sum(step.team_reward for step in steps) == 1


def test_what_is_lost_is_paid_back():
  steps = play(
      make('41\n'), program(), r'\boxed{42}', program(), 'I do not know.')
  assert [step.local_rewards.get('reasoner') for step in steps] == [
      None, 1, None, -1]


@pytest.mark.parametrize('action, quality, outcome', [
    (r'\boxed{42}', 1, OK), (r'\boxed{41}', .2, OK),
    (r'\boxed{}', 0, PARSE_ERROR), (r'\boxed{ }', 0, PARSE_ERROR),
    ('42', 0, PARSE_ERROR), ('', 0, PARSE_ERROR),
    (r'<think>\boxed{42}', 0, PARSE_ERROR),
    (r'\boxed{9^{9^{9^{9}}}}', .2, env_api.Outcome.TIMEOUT)])
def test_what_a_reasoner_is_paid(action, quality, outcome):
  *_, step = play(make('41\n'), program(), action)
  assert step.local_rewards['reasoner'] == pytest.approx(quality)
  assert step.outcomes == {'reasoner': outcome}


@pytest.mark.parametrize('stdout, quality, outcome', [
    ('42\n', 1, OK), ('6*7 =\n42', 1, OK), ('42.0', 1, OK), ('[42]', 1, OK),
    ('41', .2, OK), ('(1, 2)', .2, OK), ('Fraction(1, 2)', .2, OK),
    ('six', .1, PARSE_ERROR), ('', 0, PARSE_ERROR), ('\n\n', 0, PARSE_ERROR),
    ('the answer is 42', .1, PARSE_ERROR), ('4' * 300, .1, PARSE_ERROR),
    ('__import__("os").getpid()', .1, PARSE_ERROR)])
def test_what_a_tool_is_paid(stdout, quality, outcome):
  step, = play(make(stdout), program())
  assert step.local_rewards['tool'] == pytest.approx(quality)
  assert step.outcomes == {'tool': outcome}


@pytest.mark.parametrize('status, outcome', [
    (STATUS.ERROR, env_api.Outcome.PROGRAM_ERROR),
    (STATUS.TIMEOUT, env_api.Outcome.TIMEOUT),
    (STATUS.RESOURCE_LIMIT, env_api.Outcome.RESOURCE_LIMIT),
    (STATUS.INFRASTRUCTURE, env_api.Outcome.INFRASTRUCTURE)])
def test_a_program_that_fails_is_paid_nothing(status, outcome):
  environment = make('42\n', status, 'Traceback\nZeroDivisionError: by zero')
  step, = play(environment, program())
  assert step.local_rewards == {'tool': 0}
  assert step.outcomes == {'tool': outcome}
  assert 'It failed: ZeroDivisionError: by zero' in prompt(
      environment, step.state, 'reasoner')


def test_writing_to_stderr_is_no_failure():
  step, = play(make(stderr='a warning'), program())
  assert step.local_rewards == {'tool': 1}


@pytest.mark.parametrize('reply', [
    '', 'print(42)', '```python\nprint(42)', '```python\n \n```'])
def test_no_program(reply):
  environment = make()
  step, = play(environment, reply)
  assert step.local_rewards == {'tool': 0}
  assert step.outcomes == {'tool': PARSE_ERROR} and step.program_runs == 0
  assert 'wrote no program' in prompt(environment, step.state, 'reasoner')
  # Without its answer there is nothing to agree with.
  after = environment.step(step.state, {'reasoner': r'\boxed{42}'})
  assert not after.done and after.local_rewards == {'reasoner': 1}


def test_doing_nothing_pays_least():
  for environment, tries in (
      (make(), [program(), program('print(')]),
      (make(team='tool', max_turns=1), [program(), program('print(')]),
      (make(team='solo', max_turns=1), [r'\boxed{42}', r'\boxed{0}'])):
    nothing, = play(environment, '')
    role, = nothing.local_rewards
    for action in tries:
      step, = play(environment, action)
      assert step.local_rewards[role] > nothing.local_rewards[role] == 0


def test_outcome_pays_nobody_but_by_the_checker():
  steps = play(make(reward='outcome'), program(), r'\boxed{42}')
  assert [step.local_rewards for step in steps] == [
      {'tool': 0}, {'reasoner': 0}]
  assert [step.team_reward for step in steps] == [0, 1]
  assert steps[0].reward_terms['output_right'] == 1  # Logged, not paid.


def test_the_tool_is_paid_for_its_own_answer():
  """The released code adds the reasoner's last reward to the tool's."""
  steps = play(make('41\n'), program(), r'\boxed{42}', program())
  assert steps[2].local_rewards == {'tool': 0}


def test_weights_of_a_role_add_up_to_one():
  for role, weights in rewards.REWARDS['mixed'].items():
    assert sum(weights.values()) == pytest.approx(1), role


def test_a_grader_that_fails_is_no_wrong_answer(monkeypatch):
  environment = make()
  monkeypatch.setattr(
      grader, 'grade', lambda answer, gold: grader.Verdict.FAILED)
  for step in play(environment, program(), r'\boxed{42}'):
    assert list(step.outcomes.values()) == [env_api.Outcome.INFRASTRUCTURE]


def test_the_reasoner_sees_the_program_of_its_turn():
  environment = make()
  step, = play(environment, program('print(6 * 7)  # six'))
  shown = prompt(environment, step.state, 'reasoner')
  assert 'print(6 * 7)  # six' in shown and 'Output:\n42' in shown
  assert 'Turn 1 of 4.' in shown and TASK['problem'] in shown


def test_later_turns_see_what_was_done():
  environment = make('41\n')
  steps = play(environment, program(), r'I think \boxed{42}.', program())
  tool = prompt(environment, steps[1].state, 'tool')
  assert 'print(6 * 7)' in tool and r'I think \boxed{42}.' in tool
  assert 'The answers were not the same.' in tool and 'Turn 2 of 4.' in tool
  reasoner = prompt(environment, steps[2].state, 'reasoner')
  assert reasoner.count('print(6 * 7)') == 2


def test_of_turns_before_the_last_only_answers_are_seen():
  environment = make('41\n')
  steps = play(environment, *[program(), r'I think \boxed{42}.'] * 2, program())
  shown = prompt(environment, steps[-1].state, 'reasoner')
  assert shown.count(r'I think \boxed{42}.') == 1
  assert shown.count('The reasoner answered 42.') == 2
  assert shown.count('The program printed 41.') == 1
  assert shown.count('print(6 * 7)') == 2


def test_prompts_stay_short():
  environment = make('1' * 60_000)
  long = 'x' * 50_000
  steps = play(environment, *[program(f'# {long}'), f'{long}\\boxed{{1}}'] * 3)
  assert len(prompt(environment, steps[-1].state, 'tool')) < 8_000


def test_no_prompt_has_the_gold_answer():
  environment = make('41\n')
  task = TASK | {'answer': '987654321'}
  for step in play(environment, *[program(), r'\boxed{1}'] * 3, task=task):
    for role in environment.roles:
      assert '987654321' not in prompt(environment, step.state, role)


def test_solo_ends_when_it_repeats_its_answer():
  environment = make(team='solo', max_turns=4)
  assert environment.phases == (('solo',),)
  steps = play(environment, r'\boxed{41}', r'\boxed{42}', r'\boxed{42.0}')
  assert [step.done for step in steps] == [False, False, True]
  assert steps[-1].success
  assert 'Check your answer' in prompt(environment, steps[0].state, 'solo')
  step, = play(make(team='solo', max_turns=1), r'\boxed{42}')
  assert step.done and step.success
  assert 'Turn' not in prompt(
      make(team='solo', max_turns=1), environment.reset(TASK), 'solo')


@pytest.mark.parametrize('stdout, is_right', [('42\n', True), ('41\n', False)])
def test_alone_the_tool_answers_with_what_its_program_prints(stdout, is_right):
  alone, pair = make(stdout, team='tool'), make(stdout)
  assert alone.phases == (('tool',),)
  start = alone.reset(TASK)
  assert alone.observe(start, 'tool') == pair.observe(start, 'tool')
  steps = play(alone, program(), program('print(42)'))
  assert [step.done for step in steps] == [False, True]
  assert [step.team_reward for step in steps] == [0, is_right]
  assert steps[1].success is is_right and not steps[1].truncated
  assert steps[1].program_runs == 1
  assert steps[0].local_rewards == {'tool': 1.0 if is_right else 0.2}
  assert steps[1].reward_terms['solved'] == is_right
  seen = prompt(alone, steps[0].state, 'tool')
  assert 'print(6 * 7)' in seen and 'Check your answer' in seen
  step, = play(make(stdout, team='tool', max_turns=1), '')
  assert step.done and step.truncated and not step.success


def test_who_writes_programs_needs_a_sandbox():
  for team in ('pair', 'tool'):
    with pytest.raises(ValueError, match='sandbox=None, but tools write'):
      dataclasses.replace(make(team=team), sandbox=None).reset(TASK)
  dataclasses.replace(make(team='solo'), sandbox=None).reset(TASK)


def test_candidates_are_tried_from_one_state():
  environment = make()
  state = environment.reset(TASK)
  before = pickle.dumps(state)
  first = environment.step(state, {'tool': program()})
  environment.step(state, {'tool': ''})
  assert pickle.dumps(state) == before
  assert environment.step(state, {'tool': program()}) == first
  assert pickle.loads(pickle.dumps((environment, first))) == (
      environment, first)


def test_the_sandbox_gets_the_time_limit():
  sandbox = sandbox_lib.Sandbox('somewhere')
  environment = maths.make_environment(
      team='pair', max_turns=4, reward='mixed', sandbox=sandbox,
      program_seconds=7.0)
  assert environment.sandbox.limits == sandbox.limits._replace(
      cpu_seconds=7.0, wall_seconds=10.5)


@pytest.mark.parametrize('given, words', [
    ({'team': 'trio'}, 'environment.team='), ({'max_turns': 0}, 'at least 1'),
    ({'reward': 'dense'}, 'environment.reward=')])
def test_bad_arguments(given, words):
  with pytest.raises(ValueError, match=words):
    maths.make_environment(**{
        'team': 'pair', 'max_turns': 4, 'reward': 'mixed', 'sandbox': None,
        **given})


def test_a_real_program():
  with sandbox_lib.SandboxServer(num_slots=1) as server:
    environment = maths.make_environment(
        team='pair', max_turns=1, reward='mixed',
        sandbox=sandbox_lib.Sandbox(server.address))
    steps = play(
        environment, program(
            'from fractions import Fraction\nprint(str(Fraction(84, 2)))'),
        r'\boxed{42}')
  assert steps[-1].success
