"""Sokoban: what the agents see, what moves do, and what they pay."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

from environments import env_api
from environments import sandbox
from environments.boards import rewards
from environments.boards.sokoban import env as sokoban
from environments.boards.sokoban import room
from tests.environments import echo_sandbox
from tests.environments import transcripts

GRID = ('######', '#....#', '#....#', '#..#.#', '#....#', '######')
TASK = {
    'task_id': 'room 7', 'grid': GRID, 'player': [1, 1], 'boxes': [[2, 2]],
    'goals': [[4, 2]]}
RULES = (
    'U is one row up, D down, L one column left, R right. # is a wall, A is '
    'you, B a box, G a goal, * a box on a goal, + you on a goal. You push a '
    'box by walking into it; never two, never into a wall. A move that cannot '
    'be made does nothing.\n')
ANSWER_FORMAT = (
    'End with one line that holds #### and a JSON list of moves, such as '
    '#### ["U", "R"].')
SYSTEM = {
    'tool': (
        'You are the tool agent of a team that pushes boxes onto goals. Write '
        'one Python program in a ```python block. It reads the room as JSON '
        'from stdin, {"grid": [rows], "player": [row, column], "boxes": '
        '[[row, column], ...], "goals": [[row, column], ...]}, and prints a '
        'JSON list of moves that brings every box to a goal, such as '
        '["U", "R"]. The planner sees its output.'),
    'planner': (
        'You are the planner of a team that pushes boxes onto goals. The tool '
        'agent wrote a program that proposes moves. Check the proposal, then '
        'take it over or decide yourself. Your moves are made. '
        + ANSWER_FORMAT),
    'advisor_1': (
        'You are an advisor of a team that pushes boxes onto goals. Propose '
        'moves; the judge decides. ' + ANSWER_FORMAT),
    'judge': (
        'You are the judge of a team that pushes boxes onto goals. Each of the '
        'others proposed moves. Take over a proposal or decide yourself. Your '
        'moves are made. ' + ANSWER_FORMAT),
    'solo': (
        'You push boxes onto goals alone. Your moves are made. '
        + ANSWER_FORMAT),
}
SYSTEM['tool_1'] = SYSTEM['tool'].replace('planner', 'judge')
FIRST = (
    RULES + '######\n#A...#\n#.B..#\n#..#.#\n#.G..#\n######\n'
    'Turn 1 of 2. Player: [1, 1]. Boxes: [[2, 2]]. Goals: [[4, 2]].')
SECOND = (
    RULES + '######\n#....#\n#.A..#\n#.B#.#\n#.G..#\n######\n'
    'Turn 2 of 2. Player: [2, 2]. Boxes: [[3, 2]]. Goals: [[4, 2]].')
PAIR = (
    ('tool', FIRST, 'I try.\n```python\nprint(\'["R", "D", "D"]\')\n```', 0.0,
     1 + 0.5 * 2 / 10, 'ok'),
    ('planner',
     FIRST + '\nProgram of the tool agent:\n```python\n'
     'print(\'["R", "D", "D"]\')\n```\nOutput:\n["R", "D", "D"]\n'
     'Proposed moves: ["R", "D", "D"]',
     # The wall above is no way.
     'No.\n#### ["U", "R", "D"]', 0.0, 0.5 / 10 - 0.2 / 3, 'illegal_action'),
    ('tool', SECOND, 'I wait.', 0.0, -0.7, 'parse_error'),
    ('planner', SECOND + '\nThe tool agent wrote no program.',
     '#### ["D"]', 1.0, 0.5 / 10, 'ok'),
)
SOLO = (
    ('solo', FIRST, 'I push.\n#### ["U", "R", "D"]', 0.0, 0.5 / 10 - 0.2 / 3,
     'illegal_action', {'progress': 1 / 10, 'illegal': -1 / 3}),
    ('solo', SECOND, 'I wait.', 0.0, -0.7, 'parse_error', {'malformed': -1}),
)
TRIO = (
    ('tool_1', FIRST, 'I wait.', 0.0, -0.7, 'parse_error',
     {'plan_malformed': -1}),
    # To the wall, from where the box never comes back.
    ('advisor_1', FIRST, '#### ["D", "R", "R", "R"]', 0.0,
     -0.5 * 2 / 10 - 0.2 / 4, 'illegal_action',
     {'plan_progress': -2 / 10, 'plan_illegal': -1 / 4, 'plan_deadlock': -1}),
    ('judge',
     FIRST + '\ntool_1 proposed moves: none\n'
     'advisor_1 proposed moves: ["D", "R", "R", "R"]',
     '#### ["R", "D", "D"]', 1.0, 0.5 * 2 / 10, 'ok',
     {'solved': 1, 'progress': 2 / 10}),
)


def make(programs=None, team='pair', reward='mixed', max_turns=2):
  return sokoban.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=programs)


def move(environment, moves, state=None):
  """The single agent's step with moves."""
  state = state or environment.reset(TASK)
  return environment.step(
      state, {'solo': f'#### {json.dumps(list(moves))}'})


@pytest.mark.parametrize('team, transcript', [
    ('pair', PAIR), ('solo', SOLO), ('trio', TRIO)])
def test_golden_transcript(team, transcript):
  """Edit these texts only with the prompts, and train models/nano anew."""
  with sandbox.SandboxServer(num_slots=1) as server:
    transcripts.check(
        make(sandbox.Sandbox(server.address), team), TASK, transcript, SYSTEM)


@pytest.mark.parametrize('moves, player, boxes, illegal', [
    ('', (1, 1), ((2, 2),), 0),
    ('U', (1, 1), ((2, 2),), 1),  # A wall.
    ('RD', (2, 2), ((3, 2),), 0),  # A push.
    ('DR', (2, 2), ((2, 3),), 0),
    ('DRR', (2, 3), ((2, 4),), 0),
    ('DRRR', (2, 3), ((2, 4),), 1 / 4),  # Into a wall.
    ('RDD', (3, 2), ((4, 2),), 0),
    ('RDDDDUUU', (3, 2), ((4, 2),), 0),  # Solved is the end.
    ('URDDUUUU', (3, 2), ((4, 2),), 1 / 4),  # Of four that were made.
])
def test_moves(moves, player, boxes, illegal):
  environment = make(echo_sandbox.Echo(), team='solo')
  step = move(environment, moves)
  assert (step.state.board.player, step.state.board.boxes) == (player, boxes)
  assert step.reward_terms['illegal'] == pytest.approx(-illegal)
  assert step.reward_terms['idle'] == -(moves in ('', 'U'))
  assert step.success == (boxes == ((4, 2),))
  # The tool's proposal is tried in the same way, on a copy.
  pair = make(echo_sandbox.Echo())
  tried = pair.step(pair.reset(TASK), {
      'tool': f'```python\n{json.dumps(list(moves))}\n```'})
  assert tried.state.board == pair.reset(TASK).board
  assert tried.reward_terms == {
      f'plan_{name}': value for name, value in step.reward_terms.items()}


def test_two_boxes_are_never_pushed_and_any_goal_will_do():
  environment = make(team='solo')
  task = TASK | {
      'player': [4, 1], 'boxes': [[4, 2], [4, 3]], 'goals': [[1, 2], [1, 1]]}
  state = environment.reset(task)
  assert state.board.goals == ((1, 1), (1, 2))
  step = move(environment, 'R', state)
  assert step.state.board == state.board
  assert step.outcomes['solo'] is env_api.Outcome.NO_EFFECT
  assert step.reward_terms['illegal'] == -1
  solved = dataclasses.replace(state, board=dataclasses.replace(
      state.board, boxes=((1, 1), (1, 2))))
  assert environment.game.solved(solved.board)


@pytest.mark.parametrize('team', ['solo', 'pair'])
def test_two_boxes_to_success(team):
  # Bite: one box on a goal that ends the episode, progress as of one box.
  rng = np.random.default_rng(0)
  environment = make(echo_sandbox.Echo(), team, 'oracle')
  *tools, decides = environment.roles
  for _ in range(30):
    task = {'task_id': '', **room.random_task(rng, num_boxes=2)}
    moves = room.solve(*(
        task[name] for name in ('grid', 'player', 'boxes', 'goals')))
    middle = len(moves) // 2
    state, total = environment.reset(task), 0.0
    for solved, own in ((False, moves[:middle]), (True, moves[middle:])):
      answers = {tool: f'```python\n{json.dumps(own)}\n```' for tool in tools}
      for role, answer in (answers | {
          decides: f'#### {json.dumps(own)}'}).items():
        step = environment.step(state, {role: answer})
        state = step.state
        terms = {
            name.removeprefix('plan_'): value
            for name, value in step.reward_terms.items()}
        assert all(-1 <= value <= 1 for value in terms.values())
        assert terms.items() >= {
            'solved': solved, 'idle': 0, 'illegal': 0, 'malformed': 0,
            'deadlock': 0}.items()
        assert step.outcomes == {role: env_api.Outcome.OK}
      assert (step.team_reward, step.success, step.done) == (solved,) * 3
      assert not step.truncated
      total += terms['progress']
    assert total == pytest.approx(
        room.distance(task['boxes'], task['goals']) / 20)


def test_what_stands_on_a_goal_is_shown():
  environment = make(team='solo')
  board = environment.reset(TASK | {
      'player': [4, 2], 'boxes': [[2, 2], [3, 1]],
      'goals': [[4, 2], [3, 1]]}).board
  assert environment.game.show(board) == (
      '######\n#....#\n#.B..#\n#*.#.#\n#.+..#\n######')


def test_the_oracle_term_counts_in_its_preset_alone():
  # The box goes into a corner: it can never come back.
  task = TASK | {'boxes': [[1, 3]], 'player': [1, 2]}
  paid = {}
  for reward in sokoban.REWARDS:
    environment = make(team='solo', reward=reward)
    step = move(environment, 'R', environment.reset(task))
    assert step.state.board.boxes == ((1, 4),)
    assert step.reward_terms['deadlock'] == -1
    paid[reward] = step.local_rewards['solo']
  assert paid['outcome'] == 0
  assert paid['oracle'] == pytest.approx(paid['mixed'] - 0.2)
  assert make().weights == rewards.REWARDS['mixed']


def test_the_oracle_term_of_a_proposal_counts_too():
  task = TASK | {'boxes': [[1, 3]], 'player': [1, 2]}
  paid = {}
  for reward in sokoban.REWARDS:
    environment = make(echo_sandbox.Echo(), reward=reward)
    step = environment.step(
        environment.reset(task), {'tool': '```python\n["R"]\n```'})
    assert step.reward_terms['plan_deadlock'] == -1
    paid[reward] = step.local_rewards['tool']
  assert paid['outcome'] == 0
  assert paid['oracle'] == pytest.approx(paid['mixed'] - 0.2)


@pytest.mark.parametrize('moves', ['', 'U', 'RLRL', 'RDULRDUL', 'DU' * 9])
def test_coming_back_never_pays(moves):
  environment = make(team='solo')
  step = move(environment, moves, environment.reset(TASK | {
      'boxes': [[4, 4]]}))
  assert step.team_reward + step.local_rewards['solo'] <= 1e-12


@pytest.mark.parametrize('value', [
    '"UDLR"', '["u"]', '["UD"]', '["X"]', '[1]', '[["U"]]', '{"moves": []}',
    '[null]', '3', 'true', json.dumps(['U'] * 101)])
def test_what_is_no_list_of_moves(value):
  environment = make(team='solo')
  step = environment.step(environment.reset(TASK), {'solo': f'#### {value}'})
  assert step.state.board == environment.reset(TASK).board
  assert step.outcomes['solo'] is env_api.Outcome.PARSE_ERROR
  assert step.reward_terms['malformed'] == -1


def test_random_walks():
  """Progress telescopes; terms are bounded; only the checker gives success."""
  rng = np.random.default_rng(0)
  environment = make(team='solo', max_turns=6)
  ends = set()
  for _ in range(200):
    task = {'task_id': '', **room.random_task(rng)}
    first = state = environment.reset(task)
    total = 0.0
    for turn in range(6):
      step = move(environment, rng.choice(list('UDLR'), 12), state)
      state = step.state
      assert all(-1 <= value <= 1 for value in step.reward_terms.values())
      assert step.success == (state.board.boxes == state.board.goals)
      assert step.truncated == (not step.success and turn == 5)
      assert step.done == (step.success or step.truncated)
      total += step.reward_terms['progress']
      if step.done:
        break
    nearer = (
        room.distance(first.board.boxes, first.board.goals)
        - room.distance(state.board.boxes, state.board.goals))
    assert total == pytest.approx(nearer / 10)
    ends.add(step.success)
  assert ends == {True, False}


@pytest.mark.parametrize('num_boxes, num', [(1, 1000), (2, 50)])
def test_the_example_solves_no_task(num_boxes, num):
  rng = np.random.default_rng(1)
  environment = make(team='solo')
  moves = json.loads(environment.game.words.example)
  assert not any(
      move(environment, moves, environment.reset(
          {'task_id': '', **room.random_task(rng, num_boxes)})).success
      for _ in range(num))


def test_prompts_hold_nothing_but_the_room():
  environment = make(team='solo')
  other = TASK | {'task_id': 'room 8', 'pushes': 2, 'moves': 3}
  assert environment.observe(environment.reset(TASK), 'solo') == (
      environment.observe(environment.reset(other), 'solo'))


def test_steps_are_deterministic_and_picklable():
  environment = make(team='solo')
  copy = pickle.loads(pickle.dumps(environment))
  assert copy == environment
  state = environment.reset(TASK)
  step = move(environment, 'RDD', state)
  assert move(copy, 'RDD', pickle.loads(pickle.dumps(state))) == step
  hash(step.state)
  with pytest.raises(dataclasses.FrozenInstanceError):
    state.board.player = (0, 0)
