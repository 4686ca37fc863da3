"""Sudoku: what the agents see, what a grid does, and what it pays."""

import dataclasses
import json
import pickle
import re

import numpy as np
import pytest

from environments import env_api
from environments import sandbox
from environments.boards.sudoku import env as sudoku
from environments.boards.sudoku import grid
from tests.environments import transcripts

CLUES = ('1.3.', '..12', '2.4.', '...1')
SOLUTION = ('1234', '3412', '2143', '4321')
TASK = {'task_id': 'grid 7', 'board': CLUES, 'solution': SOLUTION}
RULES = (
    'Every row, every column and every 2x2 box must hold each digit from 1 to '
    '4 once. A dot is a blank cell. A digit that breaks a rule or a clue is '
    'left out.\n')
ANSWER_FORMAT = (
    'End with one line that holds #### and a JSON list of rows, 0 for blank, '
    'such as #### [[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]].')
SYSTEM = {
    'tool': (
        'You are the tool agent of a team that fills a Sudoku grid. Write one '
        'Python program in a ```python block. It reads the clues as JSON from '
        'stdin, {"clues": [rows of digits, 0 for blank]}, and prints the '
        'filled grid as a JSON list of rows, such as [[1, 2, 3, 4], '
        '[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]. The planner sees its '
        'output.'),
    'planner': (
        'You are the planner of a team that fills a Sudoku grid. The tool '
        'agent wrote a program that proposes a grid. Check the proposal, then '
        'take it over or decide yourself. Your grid is written onto the clues. '
        + ANSWER_FORMAT),
    'advisor_1': (
        'You are an advisor of a team that fills a Sudoku grid. Propose a '
        'grid; the judge decides. ' + ANSWER_FORMAT),
    'judge': (
        'You are the judge of a team that fills a Sudoku grid. Each of the '
        'others proposed a grid. Take over a proposal or decide yourself. Your '
        'grid is written onto the clues. ' + ANSWER_FORMAT),
    'solo': (
        'You fill a Sudoku grid alone. Your grid is written onto the clues. '
        + ANSWER_FORMAT),
}
SYSTEM['tool_1'] = SYSTEM['tool'].replace('planner', 'judge')
FIRST = RULES + '1.3.\n..12\n2.4.\n...1\nTurn 1 of 2. Nothing is filled in.'
SECOND = (
    RULES + '1.3.\n..12\n2.4.\n...1\nTurn 2 of 2. Filled in by the last grid:\n'
    '1234\n..12\n2.4.\n...1')
PRINTS = 'print([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]])'
PAIR = (
    ('tool', FIRST, f'I try.\n```python\n{PRINTS}\n```', 0.0, 1.5, 'ok'),
    ('planner',
     FIRST + '\nProgram of the tool agent:\n```python\n' + PRINTS
     + '\n```\nOutput:\n'
     '[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]\n'
     'Proposed grid: [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]',
     # One of three digits is a second 1 in its row.
     '#### [[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]', 0.0,
     0.5 * 2 / 9 - 0.2 / 3, 'illegal_action'),
    ('tool', SECOND, '```python\nx\n```\n', 0.0, -0.7, 'program_error'),
    ('planner',
     SECOND + '\nProgram of the tool agent:\n```python\nx\n```\nIt failed: '
     "NameError: name 'x' is not defined\nOutput:\n\nProposed grid: none",
     '#### [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]', 1.0,
     0.5 * 7 / 9, 'ok'),
)
SOLO = (
    ('solo', FIRST,
     'I try.\n#### [[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]',
     0.0, 0.5 * 2 / 9 - 0.2 / 3, 'illegal_action',
     {'progress': 2 / 9, 'illegal': -1 / 3}),
    ('solo', SECOND,
     '#### [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]', 1.0,
     0.5 * 7 / 9, 'ok', {'solved': 1, 'progress': 7 / 9}),
)
TRIO = (
    ('tool_1', FIRST, f'```python\n{PRINTS}\n```', 0.0, 1.5, 'ok',
     {'plan_solved': 1, 'plan_progress': 1}),
    # A second 1 in its row, as above.
    ('advisor_1', FIRST,
     '#### [[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]', 0.0,
     0.5 * 2 / 9 - 0.2 / 3, 'illegal_action',
     {'plan_progress': 2 / 9, 'plan_illegal': -1 / 3}),
    ('judge',
     FIRST + '\ntool_1 proposed grid: '
     '[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]\n'
     'advisor_1 proposed grid: '
     '[[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]',
     '#### [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]', 1.0, 0.5,
     'ok', {'solved': 1, 'progress': 1}),
)

# 51 cells are blank, 23 of them in the first four rows.
CLUES_9 = (
    '53..7....', '6..195...', '.98....6.', '8...6...3', '4..8.3..1',
    '7...2...6', '.6....28.', '...419..5', '....8..79')
SOLUTION_9 = (
    '534678912', '672195348', '198342567', '859761423', '426853791',
    '713924856', '961537284', '287419635', '345286179')
FOUR_ROWS = (*SOLUTION_9[:4], *CLUES_9[4:])
FIVE_ROWS = (*SOLUTION_9[:5], *CLUES_9[5:])
TASK_9 = {'task_id': 'grid 9', 'board': CLUES_9, 'solution': SOLUTION_9}
EXAMPLE = '[[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]'
EXAMPLE_9 = (
    '[[1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 0, 0, 0, 0, 0], '
    '[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0], '
    '[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0], '
    '[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0], '
    '[0, 0, 0, 0, 0, 0, 0, 0, 0]]')
SYSTEM_9 = {
    role: message.replace(EXAMPLE, EXAMPLE_9)
    for role, message in SYSTEM.items()}
BOARD_9 = (
    'Every row, every column and every 3x3 box must hold each digit from 1 to '
    '9 once. A dot is a blank cell. A digit that breaks a rule or a clue is '
    'left out.\n'
    '53..7....\n6..195...\n.98....6.\n8...6...3\n4..8.3..1\n7...2...6\n'
    '.6....28.\n...419..5\n....8..79\n')
FIRST_9 = BOARD_9 + 'Turn 1 of 2. Nothing is filled in.'
SECOND_9 = (
    BOARD_9 + 'Turn 2 of 2. Filled in by the last grid:\n'
    '534678912\n672195348\n198342567\n859761423\n4..8.3..1\n7...2...6\n'
    '.6....28.\n...419..5\n....8..79')
FOUR_SHOWN = (
    '[[5, 3, 4, 6, 7, 8, 9, 1, 2], [6, 7, 2, 1, 9, 5, 3, 4, 8], '
    '[1, 9, 8, 3, 4, 2, 5, 6, 7], [8, 5, 9, 7, 6, 1, 4, 2, 3], '
    '[4, 0, 0, 8, 0, 3, 0, 0, 1], [7, 0, 0, 0, 2, 0, 0, 0, 6], '
    '[0, 6, 0, 0, 0, 0, 2, 8, 0], [0, 0, 0, 4, 1, 9, 0, 0, 5], '
    '[0, 0, 0, 0, 8, 0, 0, 7, 9]]')
PAIR_9 = (
    ('tool', FIRST_9, f'I try.\n```python\nprint({FOUR_SHOWN})\n```', 0.0,
     0.5 * 23 / 51, 'ok', {'plan_progress': 23 / 51}),
    ('planner',
     FIRST_9 + '\nProgram of the tool agent:\n```python\n'
     f'print({FOUR_SHOWN})\n```\nOutput:\n{FOUR_SHOWN}\n'
     f'Proposed grid: {FOUR_SHOWN}',
     # A clue is changed.
     '#### ' + FOUR_SHOWN.replace('[[5', '[[1'), 0.0,
     0.5 * 23 / 51 - 0.2 / 24, 'illegal_action',
     {'progress': 23 / 51, 'illegal': -1 / 24}),
    ('tool', SECOND_9, 'I wait.', 0.0, -0.7, 'parse_error',
     {'plan_malformed': -1}),
    ('planner', SECOND_9 + '\nThe tool agent wrote no program.',
     f'#### {[[*map(int, row)] for row in SOLUTION_9]}', 1.0, 0.5 * 28 / 51,
     'ok', {'solved': 1, 'progress': 28 / 51}),
)


def make(programs=None, team='pair', reward='mixed', max_turns=2, size=4):
  return sudoku.make_environment(
      team=team, max_turns=max_turns, reward=reward, sandbox=programs,
      size=size)


def rows(board):
  return [[int(cell) if cell != '.' else 0 for cell in row] for row in board]


def fill(environment, board, state=None):
  """The single agent's step with a grid."""
  state = state or environment.reset(TASK)
  return environment.step(
      state, {'solo': f'#### {json.dumps(rows(board))}'})


@pytest.fixture(scope='module')
def programs():
  with sandbox.SandboxServer(num_slots=1) as server:
    yield sandbox.Sandbox(server.address)


@pytest.mark.parametrize('team, transcript', [
    ('pair', PAIR), ('solo', SOLO), ('trio', TRIO)])
def test_golden_transcript(programs, team, transcript):
  """Edit these texts only with the prompts, and train models/nano anew."""
  transcripts.check(make(programs, team), TASK, transcript, SYSTEM)


def test_golden_transcript_of_a_grid_of_nine(programs):
  assert EXAMPLE_9 in SYSTEM_9['tool'] and EXAMPLE_9 in SYSTEM_9['planner']
  transcripts.check(make(programs, size=9), TASK_9, PAIR_9, SYSTEM_9)


@pytest.mark.parametrize('last, filled, outcome, terms', [
    pytest.param(
        SOLUTION_9, SOLUTION_9, 'ok', (1, 28 / 51, 0, 0, 0), id='solved'),
    pytest.param(
        FOUR_ROWS, FOUR_ROWS, 'no_effect', (0, 0, -1, 0, 0), id='the same'),
    pytest.param(
        FIVE_ROWS, FIVE_ROWS, 'ok', (0, 5 / 51, 0, 0, 0), id='truncated'),
    pytest.param(
        ('134678912', *FIVE_ROWS[1:]), FIVE_ROWS, 'illegal_action',
        (0, 5 / 51, 0, -1 / 29, 0), id='a clue changed'),
    pytest.param(
        SOLUTION_9[:8], FOUR_ROWS, 'parse_error', (0, 0, 0, 0, -1),
        id='eight rows')])
def test_a_pair_in_a_grid_of_nine(programs, last, filled, outcome, terms):
  # Bite: digits up to 4, a malformed grid that empties the board or is taken, a
  # clue that is written over, an episode that goes on after its turns.
  environment = make(programs, size=9)
  state = environment.reset(TASK_9)
  for board in (FOUR_ROWS, last):
    step = environment.step(
        state, {'tool': f'```python\nprint({rows(SOLUTION_9)})\n```'})
    assert step.reward_terms['plan_solved'] == 1
    assert step.state.board == state.board and not step.done
    assert environment.observe(step.state, 'planner')[1]['content'].endswith(
        f'\nProposed grid: {rows(SOLUTION_9)}')
    step = environment.step(step.state, {'planner': f'#### {rows(board)}'})
    if state.turn == 0:
      assert not step.done
      assert step.reward_terms['progress'] == pytest.approx(23 / 51)
    state = step.state
  success, progress, idle, illegal, malformed = terms
  assert state.board.filled == filled
  assert (step.done, step.success, step.truncated) == (
      True, success, not success)
  assert step.team_reward == success
  assert step.outcomes == {'planner': env_api.Outcome(outcome)}
  assert step.reward_terms == pytest.approx({
      'solved': success, 'progress': progress, 'idle': idle,
      'illegal': illegal, 'malformed': malformed})


def test_a_grid_is_written_onto_the_clues():
  environment = make(team='solo', max_turns=3)
  step = fill(environment, ('1234', '....', '....', '....'))
  assert step.state.board.filled == ('1234', '..12', '2.4.', '...1')
  assert step.reward_terms == {
      'solved': 0, 'progress': pytest.approx(2 / 9), 'idle': 0, 'illegal': 0,
      'malformed': 0}
  # In the place of what the last one wrote: progress may fall.
  step = fill(environment, ('....', '....', '....', '4...'), step.state)
  assert step.state.board.filled == ('1.3.', '..12', '2.4.', '4..1')
  assert step.reward_terms['progress'] == pytest.approx(-1 / 9)
  step = fill(environment, SOLUTION, step.state)
  assert (step.success, step.done, step.truncated) == (True, True, False)
  assert step.team_reward == 1


@pytest.mark.parametrize('board, filled, illegal', [
    # A clue is not changed.
    (('2...', '....', '....', '....'), CLUES, 1),
    # Twice in a row, a column, a box.
    (('.1..', '....', '....', '....'), CLUES, 1),
    (('....', '1...', '....', '....'), CLUES, 1),
    (('....', '.1..', '....', '....'), CLUES, 1),
    # The first of two that exclude each other stays.
    (('.2..', '.2..', '....', '....'), ('123.', '..12', '2.4.', '...1'), 1 / 2),
    # Clues that are said again are nothing.
    (CLUES, CLUES, 0),
])
def test_illegal_digits_are_left_out(board, filled, illegal):
  step = fill(make(team='solo'), board)
  assert step.state.board.filled == filled
  assert step.reward_terms['illegal'] == pytest.approx(-illegal)
  unchanged = filled == CLUES
  assert step.reward_terms['idle'] == -unchanged
  assert step.outcomes['solo'] is (
      env_api.Outcome.NO_EFFECT if unchanged
      else env_api.Outcome.ILLEGAL_ACTION)


def test_nothing_is_written_behind_the_solution():
  # The last blank cell of the clues is that before their last 1.
  environment = make(team='solo')
  step = fill(environment, (*SOLUTION[:3], '4322'))
  assert step.success
  assert step.reward_terms['illegal'] == 0
  assert step.outcomes['solo'] is env_api.Outcome.OK
  # A digit that is wrong before it counts.
  step = fill(environment, ('2234', *SOLUTION[1:]))
  assert step.success
  assert step.reward_terms['illegal'] == pytest.approx(-1 / 10)
  assert step.outcomes['solo'] is env_api.Outcome.ILLEGAL_ACTION


@pytest.mark.parametrize('value', [
    '[]', '[[1, 2, 3, 4]]', '{}', '"1234"', '1234', 'true',
    '[[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]',
    '[1, 2, 3, 4]', '["1234", "1234", "1234", "1234"]',
    '[[5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]',
    '[[-1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]',
    '[[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]',
    '[[true, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]',
    '[[null, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]'])
def test_what_is_no_grid(value):
  environment = make(team='solo')
  step = environment.step(
      environment.reset(TASK), {'solo': f'#### {value}'})
  assert step.state.board.filled == CLUES
  assert step.outcomes['solo'] is env_api.Outcome.PARSE_ERROR
  assert step.reward_terms == {
      'solved': 0, 'progress': 0, 'idle': 0, 'illegal': 0, 'malformed': -1}


def test_a_full_grid_that_breaks_a_clue_never_wins():
  """With the authors' checker the grid of an example solved every task."""
  environment = make(team='solo', max_turns=1)
  step = fill(environment, ('2143', '4321', '1234', '3412'))
  assert grid.is_solution(['....'] * 4, ('2143', '4321', '1234', '3412'))
  assert (step.success, step.truncated) == (False, True)


def test_the_grid_of_the_example_solves_no_task():
  rng = np.random.default_rng(0)
  example, = set(re.findall(r'\[\[.*?\]\]', str(SYSTEM)))
  for size, num in ((4, 1000), (9, 20)):
    environment = make(team='solo', size=size, max_turns=1)
    words = environment.game.words
    assert size != 4 or words.example == example
    for _ in range(num):
      state = environment.reset({'task_id': '', **grid.random_task(rng, size)})
      step = environment.step(state, {'solo': f'#### {words.example}'})
      assert step.outcomes['solo'] is not env_api.Outcome.PARSE_ERROR
      assert not step.success


def test_random_grids():
  """Boards stay legal, progress telescopes, terms are bounded."""
  rng = np.random.default_rng(0)
  for _ in range(100):
    task = {'task_id': '', **grid.random_task(rng, 4)}
    environment = make(team='solo', max_turns=5)
    state, total = environment.reset(task), 0.0
    for turn in range(5):
      digits = rng.integers(0, 5, (4, 4)).tolist()
      step = environment.step(state, {'solo': f'#### {digits}'})
      state = step.state
      assert grid.is_legal(task['board'], state.board.filled)
      assert all(-1 <= value <= 1 for value in step.reward_terms.values())
      assert step.success == (list(state.board.filled) == task['solution'])
      assert step.truncated == (not step.success and turn == 4)
      total += step.reward_terms['progress']
      if step.done:
        break
    assert total == pytest.approx(
        grid.progress(task['board'], state.board.filled))


def test_prompts_hold_nothing_of_the_solution():
  environment = make(team='solo')
  other = {'task_id': 'grid 8', 'board': CLUES, 'solution': ('....',) * 4}
  assert environment.observe(environment.reset(TASK), 'solo') == (
      environment.observe(environment.reset(other), 'solo'))


def test_program_reads_the_clues_from_stdin(programs):
  environment = make(programs)
  step = environment.step(environment.reset(TASK), {
      'tool': '```python\nprint(input())\n```'})
  report, = step.state.proposals
  assert json.loads(report.output) == {'clues': rows(CLUES)}


def test_steps_are_deterministic_and_picklable():
  environment = make(team='solo')
  copy = pickle.loads(pickle.dumps(environment))
  assert copy == environment
  state = environment.reset(TASK)
  step = fill(environment, SOLUTION, state)
  assert fill(copy, SOLUTION, pickle.loads(pickle.dumps(state))) == step
  hash(step.state)
  with pytest.raises(dataclasses.FrozenInstanceError):
    state.board.filled = SOLUTION


def test_a_size_that_is_none_and_a_task_of_another_size():
  with pytest.raises(ValueError, match=r'options.size=5: expected 4 or 9'):
    make(size=5)
  with pytest.raises(ValueError, match="'grid 7' has 4 rows, but .*size=9"):
    make(size=9).reset(TASK)
