"""Plan-Path: what the agents see, what a step does, and what it pays."""

import dataclasses
import itertools
import json
import pickle
import re

import numpy as np
import pytest

from environments import env_api
from environments import sandbox
from environments.boards.plan_path import env as plan_path
from environments.boards.plan_path import maze
from environments.boards.plan_path import plan_path_dataset_builder
from tests.environments import echo_sandbox
from tests.environments import transcripts

GRID = ['..#.......', '..#.......', *['..........'] * 8]
TASK = {
    'task_id': 'maze 7', 'grid': GRID, 'start': [0, 0], 'goal': [0, 4],
    'shortest_path': 8}
SOLUTION = 'DDRRRRUU'

WALK_TERMS = {'solved', 'progress', 'idle', 'illegal', 'malformed'}
PLAN_TERMS = {f'plan_{name}' for name in WALK_TERMS}


@pytest.fixture(scope='module')
def programs():
  limits = sandbox.Limits(cpu_seconds=0.5, wall_seconds=5.0)
  with sandbox.SandboxServer(num_slots=1) as server:
    yield sandbox.Sandbox(server.address, limits)


def make(programs=None, team='pair', reward='mixed', max_turns=2):
  return plan_path.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=programs)


def program(source):
  return f'I try.\n```python\n{source}\n```'


def printed(moves):
  """The tool agent's action that makes `Echo` print moves."""
  return program(json.dumps(list(moves)))


def answer(moves):
  return f'I walk.\n#### {json.dumps(list(moves))}'


def user_text(environment, state, role):
  return environment.observe(state, role)[1]['content']


def distance(a, b):
  return abs(a[0] - b[0]) + abs(a[1] - b[1])


# The golden transcript.

RULES = (
    'U is one row up, D down, L one column left, R right. # is a wall, A is '
    'you, G is the goal. A move into a wall or off the grid does nothing.\n')
REST = '..........\n' * 7
ANSWER_FORMAT = (
    'End with one line that holds #### and a JSON list of moves, such as '
    '#### ["U", "R"].')
SYSTEM = {
    'tool': (
        'You are the tool agent of a team that walks through a maze. Write '
        'one Python program in a ```python block. It reads the maze as JSON '
        'from stdin, {"grid": [rows], "position": [row, column], "goal": '
        '[row, column]}, and prints a JSON list of moves that leads to the '
        'goal, such as ["U", "R"]. The planner sees its output.'),
    'planner': (
        'You are the planner of a team that walks through a maze. The tool '
        'agent wrote a program that proposes moves. Check the proposal, then '
        'take it over or decide yourself. Your moves are walked. '
        + ANSWER_FORMAT),
    'solo': (
        'You walk through a maze alone. Your moves are walked. '
        + ANSWER_FORMAT),
    'advisor_1': (
        'You are an advisor of a team that walks through a maze. Propose '
        'moves; the judge decides. ' + ANSWER_FORMAT),
    'judge': (
        'You are the judge of a team that walks through a maze. Each of the '
        'others proposed moves. Take over a proposal or decide yourself. Your '
        'moves are walked. ' + ANSWER_FORMAT),
}
SYSTEM['tool_1'] = SYSTEM['tool'].replace('planner', 'judge')
FIRST = (
    RULES + 'A.#.G.....\n..#.......\n..........\n' + REST
    + 'Turn 1 of 2. Position: [0, 0]. Goal: [0, 4].')
SECOND = (
    RULES + '..#.G.....\n..#.......\n..A.......\n' + REST
    + 'Turn 2 of 2. Position: [2, 2]. Goal: [0, 4].')
PAIR = (
    ('tool', FIRST, 'I try.\n```python\nprint(\'["R", "R", "R"]\')\n```',
     0.0, 0.5 / 18 - 0.2 * 2 / 3, 'illegal_action'),
    ('planner',
     FIRST + '\nProgram of the tool agent:\n```python\n'
     'print(\'["R", "R", "R"]\')\n```\nOutput:\n["R", "R", "R"]\n'
     'Proposed moves: ["R", "R", "R"]',
     'No.\n#### ["D", "D", "R", "R", "L", "R"]', 0.0, 0.0, 'ok'),
    ('tool', SECOND, '```python\nprint("up")\n{}["x"]\n```\n', 0.0, -0.7,
     'program_error'),
    ('planner',
     SECOND + '\nProgram of the tool agent:\n```python\n'
     'print("up")\n{}["x"]\n```\nIt failed: KeyError: \'x\'\nOutput:\nup\n'
     'Proposed moves: none',
     '#### ["U", "R", "R", "U", "U"]', 1.0, 0.5 * 4 / 18 - 0.2 / 5,
     'illegal_action'),
)
SOLO = (
    ('solo', FIRST, 'I walk.\n#### ["D", "D", "R", "R"]', 0.0, 0.0, 'ok'),
    ('solo', SECOND, 'I stay.', 0.0, -0.7, 'parse_error'),
)
TRIO = (
    ('tool_1', FIRST, '```python\nprint(\'["R", "R", "R"]\')\n```', 0.0,
     0.5 / 18 - 0.2 * 2 / 3, 'illegal_action',
     {'plan_progress': 1 / 18, 'plan_illegal': -2 / 3}),
    ('advisor_1', FIRST,
     'I walk.\n#### ["D", "D", "R", "R", "R", "R", "U", "U"]', 0.0,
     1 + 0.5 * 4 / 18, 'ok', {'plan_solved': 1, 'plan_progress': 4 / 18}),
    ('judge',
     FIRST + '\ntool_1 proposed moves: ["R", "R", "R"]\n'
     'advisor_1 proposed moves: ["D", "D", "R", "R", "R", "R", "U", "U"]',
     'Up is no way.\n#### ["U", "D", "D", "R", "R", "R", "R", "U", "U"]', 1.0,
     0.5 * 4 / 18 - 0.2 / 9, 'illegal_action',
     {'solved': 1, 'progress': 4 / 18, 'illegal': -1 / 9}),
)


@pytest.mark.parametrize('team, transcript', [
    ('pair', PAIR), ('solo', SOLO), ('trio', TRIO)])
def test_golden_transcript(programs, team, transcript):
  """Edit these texts only with the prompts, and train models/nano anew."""
  transcripts.check(make(programs, team), TASK, transcript, SYSTEM)


def test_teams():
  assert make().roles == ('tool', 'planner')
  assert make().phases == (('tool',), ('planner',))
  assert make(team='solo').roles == ('solo',)
  assert make(team='solo').phases == (('solo',),)


def test_planner_is_told_of_a_missing_program():
  environment = make()
  state = environment.step(environment.reset(TASK), {'tool': 'Go!'}).state
  assert user_text(environment, state, 'planner') == (
      FIRST + '\nThe tool agent wrote no program.')


def test_prompts_hold_nothing_but_the_maze():
  """Neither the shortest path nor the task's name can be told from them."""
  other = {key: TASK[key] for key in ('grid', 'start', 'goal')}
  other['task_id'] = 'maze 8'
  for team, role in (('solo', 'solo'), ('pair', 'tool'), ('pair', 'planner')):
    environment = make(echo_sandbox.Echo(), team)
    seen = []
    for task in (TASK, other):
      state = environment.reset(task)
      if role == 'planner':
        state = environment.step(state, {'tool': printed('D')}).state
      seen.append(environment.observe(state, role))
    assert seen[0] == seen[1]


def test_examples_in_the_prompts_solve_no_task():
  tasks = plan_path_dataset_builder.make_splits({'test': 1000})['test']
  examples = {
      role: re.findall(r'\["[UDLR]".*?\]', SYSTEM[role]) for role in SYSTEM}
  assert all(examples.values())
  moves = {
      tuple(json.loads(e)) for found in examples.values() for e in found}
  solved = [
      task['task_id'] for task in tasks for path in moves
      if plan_path.walk(
          task['grid'], tuple(task['start']), tuple(task['goal']), path)[0]
      == tuple(task['goal'])]
  assert not solved


# Walking.


@pytest.mark.parametrize('moves, position, illegal, outcome', [
    ('', (0, 0), 0, 'no_effect'),
    ('R', (0, 1), 0, 'ok'),
    ('RL', (0, 0), 0, 'no_effect'),
    ('RR', (0, 1), 1 / 2, 'illegal_action'),  # A wall.
    ('RRD', (1, 1), 1 / 3, 'illegal_action'),  # Not the end of the walk.
    ('U', (0, 0), 1, 'no_effect'),  # Off the grid, on all four sides.
    ('LLL', (0, 0), 1, 'no_effect'),
    ('D' * 12, (9, 0), 3 / 12, 'illegal_action'),
    ('DD' + 'R' * 12, (2, 9), 3 / 14, 'illegal_action'),
    (SOLUTION, (0, 4), 0, 'ok'),
    (SOLUTION + 'UUULLL', (0, 4), 0, 'ok'),  # The goal ends it.
    ('DDRRRRUUU', (0, 4), 0, 'ok'),
    # What was walked is what counts, and not what stands behind the goal.
    ('U' + SOLUTION, (0, 4), 1 / 9, 'illegal_action'),
    ('U' + SOLUTION + 'D' * 90, (0, 4), 1 / 9, 'illegal_action'),
])
def test_walk(moves, position, illegal, outcome):
  environment = make(echo_sandbox.Echo(), team='solo')
  step = environment.step(environment.reset(TASK), {'solo': answer(moves)})
  assert step.state.board.position == position
  assert step.reward_terms['illegal'] == pytest.approx(-illegal)
  assert step.reward_terms['idle'] == -(position == (0, 0))
  assert step.outcomes['solo'] is env_api.Outcome(outcome)
  # The tool's proposal is tried in the same way, on a copy.
  pair = make(echo_sandbox.Echo())
  tried = pair.step(pair.reset(TASK), {'tool': printed(moves)})
  assert tried.state.board.position == (0, 0)
  assert tried.reward_terms == {
      f'plan_{name}': value for name, value in step.reward_terms.items()}
  assert tried.outcomes['tool'] is step.outcomes['solo']


@pytest.mark.parametrize('value', [
    '"UDLR"', '["u"]', '["UD"]', '["X"]', '[1]', '[["U"]]', '{"moves": []}',
    '[null]', '3', 'true', json.dumps(['U'] * 101)])
def test_what_is_no_list_of_moves(value):
  environment = make(team='solo')
  step = environment.step(
      environment.reset(TASK), {'solo': f'#### {value}'})
  assert step.state.board.position == (0, 0)
  assert step.outcomes['solo'] is env_api.Outcome.PARSE_ERROR
  assert step.reward_terms == {
      'solved': 0, 'progress': 0, 'idle': 0, 'illegal': 0, 'malformed': -1}


def test_a_hundred_moves_are_a_list():
  environment = make(team='solo')
  step = environment.step(
      environment.reset(TASK), {'solo': answer('DU' * 49 + 'DD')})
  assert step.outcomes['solo'] is env_api.Outcome.OK


@pytest.mark.parametrize('moves', [
    '', 'U', 'UUU', 'RL' * 50, 'DU' * 7, 'DRUL' * 9, 'DRRLLU', 'RRRL'])
@pytest.mark.parametrize('role', ['solo', 'tool'])
def test_standing_still_and_walking_in_circles_never_pay(moves, role):
  environment = make(echo_sandbox.Echo(), 'solo' if role == 'solo' else 'pair')
  action = (answer if role == 'solo' else printed)(moves)
  step = environment.step(environment.reset(TASK), {role: action})
  assert step.team_reward + step.local_rewards[role] <= 1e-12


def test_random_walks():
  """Progress telescopes; terms are bounded; only the goal is a success."""
  rng = np.random.default_rng(0)
  ends = set()
  for _ in range(200):
    task = {'task_id': 'x', **maze.random_task(rng)}
    environment = make(
        echo_sandbox.Echo(), reward='mixed', max_turns=int(rng.integers(1, 12)))
    start = state = environment.reset(task)
    total = {'progress': 0.0, 'planner': 0.0}
    for turn in itertools.count(1):
      moves = list(rng.choice(list('UDLR'), size=rng.integers(0, 30)))
      tried = environment.step(state, {'tool': printed(moves)})
      assert not (tried.done or tried.success or tried.truncated)
      assert tried.team_reward == 0.0
      assert dataclasses.replace(tried.state, proposals=()) == state
      walked = environment.step(tried.state, {'planner': answer(moves)})
      for step, names in ((tried, PLAN_TERMS), (walked, WALK_TERMS)):
        assert step.reward_terms.keys() == names
        assert all(-1 <= value <= 1 for value in step.reward_terms.values())
      state = walked.state
      total['progress'] += walked.reward_terms['progress']
      total['planner'] += walked.local_rewards['planner']
      assert state.turn == turn
      assert state.proposals == ()
      assert walked.success == (state.board.position == state.board.goal)
      assert walked.team_reward == tried.reward_terms['plan_solved']
      assert walked.team_reward == walked.success
      assert walked.truncated == (
          not walked.success and turn == environment.max_turns)
      assert walked.done == (walked.success or walked.truncated)
      if walked.done:
        break
    goal = start.board.goal
    nearer = (distance(start.board.position, goal)
              - distance(state.board.position, goal)) / 18
    assert total['progress'] == pytest.approx(nearer, abs=1e-9)
    assert total['planner'] <= 0.5 * nearer + 1e-9
    ends.add((walked.success, turn == environment.max_turns))
  assert ends == {(True, True), (True, False), (False, True)}


def test_success_in_the_last_turn_is_not_truncated():
  environment = make(team='solo', max_turns=1)
  step = environment.step(environment.reset(TASK), {'solo': answer(SOLUTION)})
  assert (step.done, step.success, step.truncated) == (True, True, False)
  step = environment.step(environment.reset(TASK), {'solo': answer('D')})
  assert (step.done, step.success, step.truncated) == (True, False, True)


@pytest.mark.parametrize('action, solved', [
    (SOLUTION, 1.0), ('DDRRRRU', 0.0), ('UUUU', 0.0), (None, 0.0)])
@pytest.mark.parametrize('reward', ['outcome', 'outcome_and_plans'])
def test_two_presets_see_nothing_but_the_goal(reward, action, solved):
  pair, solo = make(echo_sandbox.Echo(), reward=reward), make(
      team='solo', reward=reward)
  planned = solved if reward == 'outcome_and_plans' else 0.0
  tool = 'no program' if action is None else printed(action)
  walk = 'no answer' if action is None else answer(action)
  step = pair.step(pair.reset(TASK), {'tool': tool})
  assert (step.team_reward, step.local_rewards) == (0.0, {'tool': planned})
  step = pair.step(step.state, {'planner': walk})
  assert (step.team_reward, step.local_rewards) == (solved, {'planner': 0.0})
  step = solo.step(solo.reset(TASK), {'solo': walk})
  assert (step.team_reward, step.local_rewards) == (solved, {'solo': 0.0})


# Programs.


def test_program_reads_the_maze_from_stdin(programs):
  environment = make(programs)
  state = environment.reset(TASK)
  state = environment.step(state, {'tool': 'none'}).state
  state = environment.step(state, {'planner': answer('DD')}).state
  copy = program('import sys\nprint(sys.stdin.read())')
  report, = environment.step(state, {'tool': copy}).state.proposals
  assert json.loads(report.output) == {
      'grid': GRID, 'position': [2, 0], 'goal': [0, 4]}
  search = program(
      'import json, sys\nmaze = json.load(sys.stdin)\n'
      'row, column = maze["position"]\n'
      'right = ["R"] * (maze["goal"][1] - column)\n'
      'print("done:")\nprint(json.dumps(right + ["U"] * row))')
  step = environment.step(state, {'tool': search})
  assert step.outcomes['tool'] is env_api.Outcome.OK
  assert step.state.proposals[0].move == tuple('RRRRUU')
  assert step.reward_terms['plan_solved'] == 1.0
  assert step.local_rewards['tool'] == pytest.approx(1 + 0.5 * 6 / 18)


@pytest.mark.parametrize('action, outcome, error', [
    ('Let me think.', 'parse_error', ''),
    ('```python\nprint(1)', 'parse_error', ''),
    (program(''), 'parse_error', ''),
    (program('print("hello")'), 'parse_error', ''),
    (program('print(["U", "D"])'), 'parse_error', ''),
    (program('print("[\\"U\\"]\\nthat is it")'), 'parse_error', ''),
    (program('f('), 'program_error', 'SyntaxError'),
    (program('raise ValueError("no")'), 'program_error', 'ValueError: no'),
    (program('exit(3)'), 'program_error', ''),
    # What it printed before it failed is no proposal.
    (program('print("[]")\n1 / 0'), 'program_error', 'ZeroDivisionError'),
    (program('while True: pass'), 'timeout', ''),
    (program('print("[]", flush=True)\nwhile True: pass'), 'timeout', ''),
    (program('while True: print("x" * 999)'), 'resource_limit', ''),
    (program('x = [0] * 10**9'), 'resource_limit', ''),
])
def test_programs_without_a_proposal(programs, action, outcome, error):
  environment = make(programs)
  state = environment.reset(TASK)
  step = environment.step(state, {'tool': action})
  assert step.outcomes == {'tool': env_api.Outcome(outcome)}
  assert step.reward_terms == {
      'plan_solved': 0, 'plan_progress': 0, 'plan_idle': 0, 'plan_illegal': 0,
      'plan_malformed': -1}
  assert step.local_rewards == {'tool': pytest.approx(-0.7)}
  assert not step.done
  assert step.state.proposals[0].move is None
  assert step.state.proposals[0].error.startswith(error)
  assert dataclasses.replace(step.state, proposals=()) == state
  # However much it printed, the planner is shown a little.
  assert len(user_text(environment, step.state, 'planner')) < 2500


@pytest.mark.parametrize('printed, outcome, proposed', [
    ('["D"]', 'ok', '["D"]'), ('D', 'parse_error', 'none')])
def test_a_program_that_warns_has_not_failed(
    programs, printed, outcome, proposed):
  environment = make(programs)
  source = f"import sys\nprint('Mind!', file=sys.stderr)\nprint('{printed}')"
  step = environment.step(environment.reset(TASK), {'tool': program(source)})
  assert step.outcomes == {'tool': env_api.Outcome(outcome)}
  assert step.state.proposals[0].error == ''
  assert user_text(environment, step.state, 'planner') == (
      FIRST + f'\nProgram of the tool agent:\n```python\n{source}\n```\n'
      f'Output:\n{printed}\nProposed moves: {proposed}')


def test_a_sleeping_program(programs):
  impatient = dataclasses.replace(
      programs, limits=sandbox.Limits(wall_seconds=0.5))
  environment = make(impatient)
  step = environment.step(
      environment.reset(TASK), {'tool': program('import time\ntime.sleep(60)')})
  assert step.outcomes == {'tool': env_api.Outcome.TIMEOUT}
  assert step.local_rewards == {'tool': pytest.approx(-0.7)}


def test_a_broken_sandbox_is_not_the_models_fault(tmp_path):
  environment = make(sandbox.Sandbox(str(tmp_path / 'nobody')))
  step = environment.step(environment.reset(TASK), {'tool': printed('D')})
  assert step.outcomes == {'tool': env_api.Outcome.INFRASTRUCTURE}
  assert step.state.proposals[0].move is None
  assert not step.done


# The contract.


def test_steps_are_deterministic_and_picklable(programs):
  environment = make(programs)
  state = environment.reset(TASK)
  copy = pickle.loads(pickle.dumps(environment))
  assert copy == environment
  for role, action in (
      ('tool', program('print(\'["D", "D"]\')')), ('planner', answer('DD'))):
    before = pickle.dumps(state)
    step = environment.step(state, {role: action})
    assert pickle.dumps(state) == before
    assert copy.step(pickle.loads(before), {role: action}) == step
    assert pickle.loads(pickle.dumps(step)) == step
    state = step.state
    hash(state)  # Frozen through and through.
    for name in ('board', 'proposals'):
      with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(state, name, None)


@pytest.mark.parametrize('wrong, words', [
    ({'team': 'duo'},
     "environment.team='duo' is not one of ['pair', 'quintet', 'septet', "
     "'solo', 'trio']"),
    ({'reward': 'dense'},
     "environment.reward='dense' is not one of ['mixed', 'outcome', "
     "'outcome_and_plans']"),
    ({'max_turns': 0}, 'environment.max_turns=0: an episode needs at least 1'),
])
def test_make_environment_names_what_is_wrong(wrong, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    make(**wrong)
