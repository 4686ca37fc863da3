"""Golden transcripts: all prompts and rewards of an episode.

A file holds the replies of the roles and everything that the environment made
of them.

  python -m tests.environments.boards.transcripts_test

plays the replies again and rewrites the files. Do so only to change the
prompts, and then train models/nano again.
"""

import dataclasses
import pathlib
import re

import pytest

from environments import sandbox
from tests.environments.boards import games

FOLDER = pathlib.Path(__file__).parent / 'transcripts'

# Game -> task.
TASKS = {
    'plan_path': {
        'task_id': 'maze 7', 'start': [0, 0], 'goal': [0, 4],
        'grid': ['..#.......', '..#.......', *['..........'] * 8]},
    'sokoban': {
        'task_id': 'room 7', 'player': [1, 1], 'boxes': [[2, 2]],
        'goals': [[4, 2]], 'grid': [
            '######', '#....#', '#....#', '#..#.#', '#....#', '######']},
    'sudoku': games.CASES['sudoku'].task,
    'sudoku_9x9': {'task_id': 'grid 9', 'board': [
        '53..7....', '6..195...', '.98....6.', '8...6...3', '4..8.3..1',
        '7...2...6', '.6....28.', '...419..5', '....8..79']},
}
NAMES = sorted(path.stem for path in FOLDER.glob('*.txt'))


@pytest.fixture(scope='module')
def programs():
  with sandbox.SandboxServer(num_slots=1) as server:
    yield sandbox.Sandbox(server.address)


def play_again(programs, name):
  """Plays the replies of a transcript and returns the new transcript."""
  task_name, team = name.rsplit('_', 1)
  case = games.CASES[task_name.removesuffix('_9x9')]
  if task_name.endswith('_9x9'):
    case = dataclasses.replace(case, options={'size': 9})
  environment = case.make(team, sandbox=programs)
  replies = re.findall(
      rf'^--- (?:{"|".join(environment.roles)})\n(.*?)\n(?=---)',
      (FOLDER / f'{name}.txt').read_text(), re.MULTILINE | re.DOTALL)
  state, lines = environment.reset(TASKS[task_name]), []
  for index, reply in enumerate(replies):
    role = environment.roles[index % len(environment.roles)]
    for message in environment.observe(state, role):
      if message['role'] == 'user' or message['content'] not in lines:
        lines += [f'--- {message["role"]}', message['content']]
    step = environment.step(state, {role: reply})
    terms = ''.join(
        f', {name} {value:.6g}' for name, value in step.reward_terms.items()
        if value)
    lines += [
        f'--- {role}', reply,
        f'--- {step.outcomes[role].value}: team {step.team_reward:g}, local '
        f'{step.local_rewards[role]:.6g}{terms}']
    for flag in ('done', 'success', 'truncated'):
      lines[-1] += f', {flag}' if getattr(step, flag) else ''
    state = step.state
  assert step.done
  return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('name', NAMES)
def test_golden_transcript(programs, name):
  assert play_again(programs, name) == (FOLDER / f'{name}.txt').read_text()


if __name__ == '__main__':
  with sandbox.SandboxServer(num_slots=1) as running:
    for file in NAMES:
      (FOLDER / f'{file}.txt').write_text(
          play_again(sandbox.Sandbox(running.address), file))
