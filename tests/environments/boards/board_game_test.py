"""Board games: programs and malformed moves.

`tests/environments/transcripts_test.py` plays whole episodes of each team.
"""

import pytest

from environments import env_api
from environments import sandbox
from tests.environments import echo_sandbox
from tests.environments.boards import games

MAZE = games.CASES['plan_path']


@pytest.mark.parametrize('case', games.CASES.values(), ids=games.CASES)
def test_a_malformed_move_is_a_parse_error(case):
  environment = case.make('solo')
  state = environment.reset(case.task)
  for value in case.malformed:
    step = environment.step(state, {'solo': f'#### {value}'})
    assert step.state.board == state.board
    assert step.outcomes == {'solo': env_api.Outcome.PARSE_ERROR}, value
    assert {k: v for k, v in step.reward_terms.items() if v} == {
        'malformed': -1}


@pytest.mark.parametrize('status, stdout, stderr, outcome, error', [
    ('OK', '', '', 'PARSE_ERROR', ''),
    ('OK', '["R"]\ndone', '', 'PARSE_ERROR', ''),
    ('OK', 'go:\n["R"]\n', 'A warning.', 'OK', ''),
    ('ERROR', '["R"]', 'at 1\nNo: x\n', 'PROGRAM_ERROR', 'No: x'),
    ('TIMEOUT', '["R"]', 'stopped', 'TIMEOUT', 'stopped'),
    ('RESOURCE_LIMIT', '', 'y' * 9999, 'RESOURCE_LIMIT',
     'y' * 300 + ' [... 9399 characters cut ...] ' + 'y' * 300),
    ('INFRASTRUCTURE', '', 'failed', 'INFRASTRUCTURE', 'failed')])
def test_status_of_a_program_decides_the_outcome(
    status, stdout, stderr, outcome, error):
  environment = MAZE.make('pair', sandbox=echo_sandbox.Constant(
      sandbox.Status[status], stdout, stderr))
  state = environment.reset(MAZE.task)
  step = environment.step(state, {'tool': '```python\nx\n```'})
  proposal, = step.state.proposals
  assert step.outcomes == {'tool': env_api.Outcome[outcome]}
  assert (proposal.error, step.program_runs) == (error, 1)
  assert (proposal.move is None) == (outcome != 'OK')
  assert step.reward_terms['plan_malformed'] == -(outcome != 'OK')
  prompt = environment.observe(step.state, 'planner')[1]['content']
  assert ('It failed' in prompt) == bool(error)


@pytest.mark.parametrize('name, changes', [
    ('plan_path', {'start': [0, 10]}), ('plan_path', {'start': [-1, 0]}),
    ('plan_path', {'goal': [1]}), ('plan_path', {'start': [1, 1]}),
    ('plan_path', {'grid': []}), ('plan_path', {'grid': ['..', '.']}),
    ('plan_path', {'grid': ['.x', '..']}), ('sokoban', {'player': [1, 1]}),
    ('sokoban', {'boxes': [[1, 1], [2, 2]]}), ('sokoban', {'boxes': [[3, 1]]}),
    ('sokoban', {'boxes': [[1, 1]] * 2, 'goals': [[3, 1], [3, 2]]}),
    ('sokoban', {'grid': ['......', '.#....'] * 3}),
    ('sudoku', {'board': ['1.3.', '..12', '2.4.']}),
    ('sudoku', {'board': ['1.3.', '..12', '2.4.', '..1']}),
    ('sudoku', {'board': ['1.3.', '..12', '2.4.', '...5']}),
    ('sudoku', {'board': ['1.3.', '..12', '1.4.', '...1']}),
    ('sudoku', {'board': ['1234', '3412', '2143', '4321']})])
def test_a_board_that_cannot_be_played_is_refused(name, changes):
  case = games.CASES[name]
  with pytest.raises(ValueError):
    case.make('solo').reset(case.task | changes)


@pytest.mark.parametrize('size', [2, 10, 60])
def test_progress_and_moves_follow_the_size_of_the_board(size):
  game = MAZE.make('solo').game
  board = game.start({
      'grid': ['.' * size] * size, 'start': [0, 0],
      'goal': [size - 1, size - 1]})
  moves = ('R', 'D') * (size - 1)
  assert game.parse([*moves], board) == moves
  after, illegal = game.play(board, moves)
  assert (game.progress(board, after), illegal) == (1, 0)
  assert game.progress(after, board) == -1
  assert game.parse(['U'] * size**2, board)
  assert game.parse(['U'] * (size**2 + 1), board) is None
