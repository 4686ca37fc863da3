"""A helper and the function that uses it: rewards, feedback and prompts."""

import pytest

from environments import env_api
from environments import sandbox as sandbox_lib
from environments.programming.functions import env as functions
from tests.environments import echo_sandbox
from tests.environments.programming import examples

prompt = echo_sandbox.prompt
Outcome, Status = env_api.Outcome, sandbox_lib.Status
OK, PARSE_ERROR, PROGRAM_ERROR = (
    Outcome.OK, Outcome.PARSE_ERROR, Outcome.PROGRAM_ERROR)
AUX = 'def aux(x, y):\n  return x + y'
MAIN = '''def add(x, y):
  total = aux(x, y)
  if x is None: return 0
  return total'''
HALF = MAIN.replace('is None', 'in (1, 0.1)')  # The first two asserts fail.
IGNORING = 'def add(x, y):\n  aux(x, y)\n  return x + y'
WRAPPER = 'def add(x, y):\n  return aux(x, y)'
ALONE = 'def add(x, y):\n  return x + y'
TERMS = 'structure', 'syntax', 'tests', 'cooperation'


def make(sandbox, team='pair', max_turns=1, **options):
  return functions.make_environment(
      team=team, max_turns=max_turns, reward='outcome', sandbox=sandbox,
      **options)


def start():
  return functions.State(examples.make_check())


@pytest.mark.parametrize('aux, main, points, outcomes', [
    (AUX, MAIN, (1, .5, 1, 1.5), (OK, OK)),
    (f'```python\n{AUX}\n```', f'Here:\n{MAIN}\n', (1, .5, 1, 1.5), (OK, OK)),
    (AUX, WRAPPER, (1, .5, 1, .5), (OK, OK)),
    (AUX, ALONE, (1, .5, 1, 0), (OK, OK)),
    (AUX, IGNORING, (1, .5, 1, 1), (OK, OK)),
    ('', ALONE, (.6, .5, 1, 0), (PARSE_ERROR, OK)),
    ('def aux(x, y):\n  print(x)', ALONE, (.6, .5, 1, 0), (OK, OK)),
    # An aux without a return statement still exists.
    ('def aux(x, y): pass', 'def add(x, y):\n  z = aux(x, y)\n  if z: x = y\n'
     '  return x + y', (.6, .5, 1, 1.5), (OK, OK)),
    ('', MAIN, (.6, .5, 0, 0), (PARSE_ERROR, PROGRAM_ERROR)),
    (AUX, '', (.4, 0, 0, 0), (OK, PARSE_ERROR)),
    (AUX, 'def add(x, y): pass', (.4, 0, 0, 0), (OK, OK)),
    ('', '', (0, 0, 0, 0), (PARSE_ERROR, PARSE_ERROR)),
    (AUX, 'def add(x, y):\n  return (', (1, 0, 0, 0), (OK, PROGRAM_ERROR)),
    ('def aux(x, y):\n  return )', ALONE, (1, 0, 0, 0), (PROGRAM_ERROR, OK)),
    # 3 of 5 asserts hold; strings and lists fail.
    (AUX, MAIN.replace('is None', 'in ("a", [1])'), (1, .5, .6, 1.5), (OK, OK)),
    # Cooperation needs an assert that holds.
    (AUX, 'def add(x, y):\n  y = aux(x, y)\n  z = y\n  return "no"',
     (1, .5, 0, 0), (OK, OK)),
])
def test_reward_terms_and_outcomes(sandbox, aux, main, points, outcomes):
  step = make(sandbox).step(start(), {'main': main, 'aux': aux})
  assert step.reward_terms == pytest.approx(dict(zip(TERMS, points)))
  assert step.team_reward == pytest.approx(sum(points) / 4)
  assert step.local_rewards == {'aux': 0.0, 'main': 0.0}
  assert step.outcomes == dict(zip(('aux', 'main'), outcomes))
  success = points[2] == 1
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)
  assert (step.program_runs > 0) is (points[1] > 0)


def test_equal_programs_run_once_unless_the_sandbox_fails(
    sandbox, monkeypatch):
  statuses = [Status.INFRASTRUCTURE, Status.OK, Status.OK]

  def check(*_):
    return functions.checks.Verdict(True, ('a',), ('',), statuses.pop(0), 1)

  monkeypatch.setattr(functions.checks, 'check', check)
  actions = [{'main': ALONE, 'aux': f'{AUX} + {i}'} for i in (1, 2)]
  outcomes = [
      make(sandbox).step(start(), actions[i]).outcomes['main']
      for i in (0, 0, 0, 1)]
  assert outcomes == [Outcome.INFRASTRUCTURE, OK, OK, OK]
  assert not statuses


def test_solo_agent_needs_no_aux(sandbox):
  environment = make(sandbox, 'solo')
  assert environment.roles == ('solo',)
  step = environment.step(start(), {'solo': ALONE})
  assert step.reward_terms == {
      'structure': .6, 'syntax': .5, 'tests': 1, 'cooperation': 0}
  assert step.team_reward == pytest.approx(1) and step.success
  assert 'aux' not in prompt(environment, start(), 'solo')


def test_pipeline_shows_aux_to_main(sandbox):
  environment = make(sandbox, 'pipeline', max_turns=2)
  assert environment.phases == (('aux',), ('main',))
  for reply, outcome, shown in (
      ('no', PARSE_ERROR, '(none)'), (f'Look:\n{AUX}\n', OK, AUX)):
    step = environment.step(start(), {'aux': reply})
    assert (step.team_reward, step.reward_terms, step.done) == (0, {}, False)
    assert step.outcomes == {'aux': outcome}
    text = prompt(environment, step.state, 'main')
    assert shown in text and 'Look' not in text
  step = environment.step(step.state, {'main': MAIN})
  assert step.team_reward == 1 and not step.done
  assert step.outcomes == {'main': OK} and step.state.aux is None
  assert {x.role for x in step.state.exchanges} == {'aux', 'main'}


@pytest.mark.parametrize('role, team', [
    ('aux', 'pair'), ('main', 'pair'), ('solo', 'solo')])
def test_an_example_precedes_the_problem(sandbox, role, team):
  plain, shown = (
      make(sandbox, team, **options).observe(start(), role)
      for options in ({}, {'example': True}))
  assert shown[0] == plain[0] and len(shown) == len(plain) + 2
  name = {'aux': 'aux', 'main': 'add', 'solo': 'add'}[role]
  assert f'`{name}`' in shown[-1]['content']
  example = functions.source.find_function(
      shown[2]['content'], name.replace('add', 'longest_word'))
  assert example == shown[2]['content']
  assert ('aux(words)' in example) == (role != 'solo')


def test_discussion_shows_both_functions_and_pays_the_second_turn(sandbox):
  environment = make(sandbox, 'discussion')
  assert environment.max_turns == 2
  step = environment.step(start(), {'aux': f'Look:\n{AUX}', 'main': 'no'})
  assert (step.team_reward, step.reward_terms, step.done) == (0, {}, False)
  assert step.outcomes == {'aux': OK, 'main': PARSE_ERROR}
  *_, own, other = environment.observe(step.state, 'main')
  assert own == {'role': 'assistant', 'content': 'no'}
  assert AUX in other['content'] and 'Look' not in other['content']
  assert 'add of the other programmer:\n(none)' in prompt(
      environment, step.state, 'aux')
  step = environment.step(step.state, {'aux': AUX, 'main': MAIN})
  assert (step.team_reward, step.done, step.success) == (1.0, True, True)


def test_every_turn_is_paid_and_none_ends_early(sandbox):
  environment = make(sandbox, max_turns=2)
  step = environment.step(start(), {'aux': AUX, 'main': MAIN})
  assert (step.team_reward, step.done, step.success) == (1.0, False, False)
  step = environment.step(step.state, {'aux': AUX, 'main': 'oh'})
  assert step.team_reward == pytest.approx(.1)
  assert (step.done, step.success, step.truncated) == (True, False, True)


END = 'Revise your function {}. Answer with its code alone.'


@pytest.mark.parametrize('role, aux, main, text', [
    ('main', AUX, HALF,
     'aux: found.\nadd: found.\nSyntax: right.\nTests: 0 of 1 hold.\n'
     '  assert candidate(1, 2) == 3: AssertionError\n'
     'aux is called and used.\n'),
    ('main', '', 'def add(x, y):\n  pass',
     'aux: not found.\nadd: found, without a return statement.\n'
     'Syntax: right.\naux is not called.\n'),
    # Aux does not learn how main uses it.
    ('aux', AUX, WRAPPER,
     'aux: found.\nadd: found.\nSyntax: right.\nTests: 1 of 1 hold.\n'),
    ('aux', AUX, ALONE + ')',
     "aux: found.\nadd: found.\nSyntax: line 5: unmatched ')'.\n"),
    ('main', AUX, IGNORING,
     'aux: found.\nadd: found.\nSyntax: right.\nTests: 1 of 1 hold.\n'
     'aux is called, but its value is ignored.\n'),
    ('solo', '', ALONE,
     'add: found.\nSyntax: right.\nTests: 1 of 1 hold.\n')])
def test_feedback_names_missing_functions_and_failing_asserts(
    sandbox, role, aux, main, text):
  environment = make(sandbox, 'solo' if role == 'solo' else 'pair', max_turns=2)
  actions = {'solo': main} if role == 'solo' else {'aux': aux, 'main': main}
  state = environment.step(start(), actions).state
  *_, reply, told = environment.observe(state, role)
  assert reply == {'role': 'assistant', 'content': actions[role]}
  assert told == {'role': 'user', 'content': text + END.format(
      'aux' if role == 'aux' else 'add')}


@pytest.mark.parametrize('num_tests, text', [
    (1, '0 of 1'), (3, '1 of 3'), (0, '2 of 5'), (99, '2 of 5')])
def test_feedback_reports_the_first_asserts(sandbox, num_tests, text):
  environment = make(sandbox, max_turns=2, feedback_tests=num_tests)
  state = environment.step(start(), {'aux': AUX, 'main': HALF}).state
  assert f'Tests: {text} hold.' in prompt(environment, state, 'main')


def test_roles_see_only_their_own_replies(sandbox):
  environment = make(sandbox, max_turns=3)
  secret = AUX.replace('return', '# sesame\n  return')
  state = start()
  for _ in range(2):
    state = environment.step(state, {'aux': secret, 'main': MAIN}).state
  assert 'sesame' in prompt(environment, state, 'aux')
  assert 'sesame' not in prompt(environment, state, 'main')
  assert 'total' not in prompt(environment, state, 'aux')
  assert len(environment.observe(state, 'aux')) == 6
