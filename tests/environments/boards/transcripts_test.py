"""Golden transcripts: all prompts and rewards of an episode.

  python -m tests.environments.boards.transcripts_test

writes the files again. Do so only to change the prompts, and then train
models/nano again.
"""

import dataclasses
import pathlib

import pytest

from environments import sandbox
from tests.environments.boards import games

FOLDER = pathlib.Path(__file__).parent / 'transcripts'

MAZE = {
    'task_id': 'maze 7', 'start': [0, 0], 'goal': [0, 4],
    'grid': ['..#.......', '..#.......', *['..........'] * 8]}
ROOM = {
    'task_id': 'room 7', 'player': [1, 1], 'boxes': [[2, 2]],
    'goals': [[4, 2]], 'grid': [
        '######', '#....#', '#....#', '#..#.#', '#....#', '######']}
GRID = games.CASES['sudoku'].task
GRID_9 = {'task_id': 'grid 9', 'board': [
    '53..7....', '6..195...', '.98....6.', '8...6...3', '4..8.3..1',
    '7...2...6', '.6....28.', '...419..5', '....8..79']}
SOLUTION = '[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]'
# One of three digits is a second 1 in its row.
THREE = '[[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]'

SOLUTION_9 = [[*map(int, row)] for row in (
    '534678912', '672195348', '198342567', '859761423', '426853791',
    '713924856', '961537284', '287419635', '345286179')]

# File -> game, options, team, task, and the replies of the roles in order.
TRANSCRIPTS = {
    'plan_path_pair': ('plan_path', {}, 'pair', MAZE, (
        'I try.\n```python\nprint(\'["R", "R", "R"]\')\n```',
        'No.\n#### ["D", "D", "R", "R", "L", "R"]',
        '```python\nprint("up")\n{}["x"]\n```\n',
        '#### ["U", "R", "R", "U", "U"]')),
    'plan_path_solo': ('plan_path', {}, 'solo', MAZE, (
        'I walk.\n#### ["D", "D", "R", "R"]', 'I stay.')),
    'plan_path_trio': ('plan_path', {}, 'trio', MAZE, (
        '```python\nprint(\'["R", "R", "R"]\')\n```',
        'I walk.\n#### ["D", "D", "R", "R", "R", "R", "U", "U"]',
        'Up is no way.\n'
        '#### ["U", "D", "D", "R", "R", "R", "R", "U", "U"]')),
    'sokoban_pair': ('sokoban', {}, 'pair', ROOM, (
        'I try.\n```python\nprint(\'["R", "D", "D"]\')\n```',
        'No.\n#### ["U", "R", "D"]', 'I wait.', '#### ["D"]')),
    'sokoban_solo': ('sokoban', {}, 'solo', ROOM, (
        'I push.\n#### ["U", "R", "D"]', 'I wait.')),
    # The advisor pushes the box to a wall, where it is stuck.
    'sokoban_trio': ('sokoban', {}, 'trio', ROOM, (
        'I wait.', '#### ["D", "R", "R", "R"]', '#### ["R", "D", "D"]')),
    'sudoku_pair': ('sudoku', {}, 'pair', GRID, (
        f'I try.\n```python\nprint({SOLUTION})\n```', f'#### {THREE}',
        '```python\nx\n```\n', f'#### {SOLUTION}')),
    'sudoku_solo': ('sudoku', {}, 'solo', GRID, (
        f'I try.\n#### {THREE}', f'#### {SOLUTION}')),
    'sudoku_trio': ('sudoku', {}, 'trio', GRID, (
        f'```python\nprint({SOLUTION})\n```', f'#### {THREE}',
        f'#### {SOLUTION}')),
    'sudoku_of_nine': ('sudoku', {'size': 9}, 'pair', GRID_9, (
        f'```python\nprint({SOLUTION})\n```',
        # A clue is changed.
        f'#### {[[1, 3, 4, 6, 7, 8, 9, 1, 2], *[[0] * 9] * 8]}',
        f'```python\nprint({SOLUTION_9})\n```', f'#### {SOLUTION_9}')),
}


@pytest.fixture(scope='module')
def programs():
  with sandbox.SandboxServer(num_slots=1) as server:
    yield sandbox.Sandbox(server.address)


def render(programs, game, options, team, task, answers):
  """Plays an episode to its end and returns its transcript."""
  case = games.CASES[game]
  environment = dataclasses.replace(
      case, options=case.options | options).make(team, sandbox=programs)
  state, lines = environment.reset(task), []
  for index, answer in enumerate(answers):
    role = environment.roles[index % len(environment.roles)]
    for message in environment.observe(state, role):
      if message['role'] == 'user' or message['content'] not in lines:
        lines += [f'--- {message["role"]}', message['content']]
    step = environment.step(state, {role: answer})
    terms = ''.join(
        f', {name} {value:.6g}' for name, value in step.reward_terms.items()
        if value)
    lines += [
        f'--- {role}', answer,
        f'--- {step.outcomes[role].value}: team {step.team_reward:g}, own '
        f'{step.local_rewards[role]:.6g}{terms}']
    for name in ('done', 'success', 'truncated'):
      lines[-1] += f', {name}' if getattr(step, name) else ''
    state = step.state
  assert step.done
  return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('name', TRANSCRIPTS)
def test_golden_transcript(programs, name):
  expected = (FOLDER / f'{name}.txt').read_text()
  assert render(programs, *TRANSCRIPTS[name]) == expected


if __name__ == '__main__':
  with sandbox.SandboxServer(num_slots=1) as running:
    for file, episode in TRANSCRIPTS.items():
      (FOLDER / f'{file}.txt').write_text(
          render(sandbox.Sandbox(running.address), *episode))
