"""Golden transcripts: all prompts and rewards of an episode.

Each step is also repeated on pickled copies, as worker processes do.

A file holds the replies of the roles, everything that the environment made of
them, and what viewers see at the end.

  python -m tests.environments.transcripts_test

plays the replies again and rewrites the files. Do so only to change the
prompts, and then train the models of `models/` again.
"""

import dataclasses
import pathlib
import pickle
import re

import pytest

from environments import sandbox as sandbox_lib
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from environments.depot import env as depot
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from environments.writing import env as writing
from tests.environments.programming import examples

FOLDER = pathlib.Path(__file__).parent / 'transcripts'
_POST = {
    'task_id': 'post 7', 'text': 'My cat ate the cake and my sister laughs.'}
_PROBLEM = {
    'task_id': 'problem 7', 'problem': 'What is six times seven?',
    'answer': '42'}
_ORDERS = {'task_id': 'orders 7', 'orders': [1000, 6000, 9000]}
_FUNCTION = dataclasses.asdict(examples.make_check())
# The golden numbers occur in no program or case of the transcripts.
_CONTEST = dataclasses.asdict(examples.make(
    [(f'{i} 77001', [f'{i + 77001}']) for i in (1, 2, 3, 4)],
    reference='a, b = map(int, input().split())\nprint(a + b)'))
_CALL = dataclasses.asdict(examples.make(
    [((1, 2), [3]), ((2, 2), [4])], entry_point='add',
    starter_code='class Solution:\n  def add(self, a, b):\n',
    reference='def add(a, b): return a + b'))
_ONE_TURN = {'max_turns': 1, 'reward': 'outcome'}
# Folder -> module, task and options; a file is named after its team. Some
# fields of a task, such as a solution, must not be in any prompt.
EXAMPLES = {
    'plan_path': (plan_path, {
        'task_id': 'maze 7', 'start': [0, 0], 'goal': [0, 4],
        'shortest_path': 8,
        'grid': ['..#.......', '..#.......', *['..........'] * 8]}, {}),
    'sokoban': (sokoban, {
        'task_id': 'room 7', 'player': [1, 1], 'boxes': [[2, 2]],
        'goals': [[4, 2]], 'pushes': 2, 'moves': 3, 'grid': [
            '######', '#....#', '#....#', '#..#.#', '#....#', '######']}, {}),
    'sudoku': (sudoku, {
        'task_id': 'grid', 'board': ['1.3.', '..12', '2.4.', '...1'],
        'solution': ['1234', '3412', '2143', '4321'], 'kind': 'kind 7'},
        {'size': 4}),
    'sudoku_9x9': (sudoku, {
        'task_id': 'grid 9', 'board': [
            '53..7....', '6..195...', '.98....6.', '8...6...3', '4..8.3..1',
            '7...2...6', '.6....28.', '...419..5', '....8..79']}, {'size': 9}),
    'maths': (maths, _PROBLEM, {'max_turns': 4}),
    **dict.fromkeys(
        ('maths_wrong_agreement', 'maths_truncated'), (maths, _PROBLEM, {})),
    'maths_request': (maths, _PROBLEM, {'request': True}),
    'contests': (contests, _CONTEST, {'max_turns': 3}),
    'contests_call': (contests, _CALL, {'max_turns': 3}),
    'functions': (functions, _FUNCTION, {'reward': 'outcome'}),
    'functions_four_turns': (
        functions, _FUNCTION, {'max_turns': 4, 'reward': 'outcome'}),
    'functions_example': (functions, _FUNCTION, _ONE_TURN | {'example': True}),
    'depot': (depot, _ORDERS, {'num_orders': 2}),
    'depot_boost': (depot, _ORDERS, {
        'max_turns': 3, 'reward': 'boost', 'num_orders': 3, 'prompt_limit': 2}),
    'depot_at_once': (
        depot, _ORDERS, {'max_turns': 1, 'reward': 'boost', 'num_orders': 3}),
    'arxiv': (writing, _POST, _ONE_TURN | {'kind': 'arxiv_a'}),
    'factbook': (writing, _POST, _ONE_TURN | {'kind': 'factbook'}),
    **dict.fromkeys(('tldr', 'tldr_no_text'), (
        writing, _POST, _ONE_TURN | {'kind': 'tldr'})),
    'tldr_two_turns': (writing, _POST, {'reward': 'outcome', 'kind': 'tldr'}),
}
NAMES = sorted(
    f'{path.parent.name}/{path.stem}' for path in FOLDER.glob('*/*.txt'))


def play_again(sandbox, name):
  """Plays the replies of a transcript and returns the new transcript."""
  folder, team = name.split('/')
  module, task, options = EXAMPLES[folder]
  environment = module.make_environment(
      team=team, sandbox=sandbox,
      **{'max_turns': 2, 'reward': 'mixed'} | options)
  replies = iter(re.findall(
      rf'^--- (?:{"|".join(environment.roles)})\n(.*?)\n(?=---)',
      (FOLDER / f'{name}.txt').read_text(), re.MULTILINE | re.DOTALL))
  copy = pickle.loads(pickle.dumps(environment))
  state, lines = environment.reset(task), []
  for phase in environment.phases * environment.max_turns:
    actions = {}
    for role in phase:
      for message in environment.observe(state, role):
        if message['role'] == 'user' or message['content'] not in lines:
          lines += [f'--- {message["role"]}', message['content']]
      actions[role] = next(replies)
      lines += [f'--- {role}', actions[role]]
    before = pickle.dumps(state)
    step = environment.step(state, actions)
    assert pickle.dumps(state) == before
    assert copy.step(pickle.loads(before), actions) == step
    hash(step.state)  # Frozen at every level.
    outcomes = ', '.join(step.outcomes[role].value for role in phase)
    local = ', '.join(f'{step.local_rewards[role]:.6g}' for role in phase)
    terms = ''.join(
        f', {name} {value:.6g}' for name, value in step.reward_terms.items()
        if value)
    flags = ''.join(
        f', {flag}' for flag in ('done', 'success', 'truncated')
        if getattr(step, flag))
    lines.append(
        f'--- {outcomes}: team {step.team_reward:.6g}, local {local}{terms}'
        f'{flags}')
    state = step.state
    if step.done:
      break
  assert step.done and not list(replies)
  for title, content in environment.show(state).items():
    lines += [f'--- shown to viewers: {title}', content]
  return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('name', NAMES)
def test_golden_transcript(sandbox, name):
  assert play_again(sandbox, name) == (FOLDER / f'{name}.txt').read_text()


if __name__ == '__main__':
  with sandbox_lib.SandboxServer(num_slots=1) as running:
    for file in NAMES:
      (FOLDER / f'{file}.txt').write_text(
          play_again(running.sandbox, file))
