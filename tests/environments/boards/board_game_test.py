"""Board games: teams of any size, programs, and the environment contract."""

import dataclasses
import json
import pickle

import pytest

from environments import env_api
from environments import sandbox
from environments.boards import board_game
from tests.environments import echo_sandbox
from tests.environments.boards import games

MAZE = games.CASES['plan_path']

each_game = pytest.mark.parametrize(
    'case', games.CASES.values(), ids=games.CASES)


def user_message(environment, state, role):
  return environment.observe(state, role)[1]['content']


@pytest.mark.parametrize('team', ['trio', 'septet'])
def test_proposals_are_tried_on_copies_and_the_decision_is_played(team):
  environment = MAZE.make(team)
  *proposers, judge = environment.roles
  assert environment.phases == tuple((role,) for role in environment.roles)
  # All solve the task and differ after the solution.
  proposed = ['RD' + 'U' * i for i in range(len(proposers))]
  states, steps = games.play(
      environment, environment.reset(MAZE.task), [*proposed, 'R'])
  first = user_message(environment, states[0], proposers[0])
  for role, state, step in zip(proposers, states, steps):
    assert user_message(environment, state, role) == first
    assert step.state.board == states[0].board
    assert step.reward_terms == {
        'plan_solved': 1, 'plan_progress': pytest.approx(2 / 18),
        'plan_idle': 0, 'plan_illegal': 0, 'plan_malformed': 0}
    assert (step.team_reward, step.done, step.success) == (0, False, False)
  assert user_message(environment, states[-2], judge) == '\n'.join([first, *(
      f'{role} proposed moves: {json.dumps([*moves])}'
      for role, moves in zip(proposers, proposed))])
  assert steps[-1].state == board_game.State(
      'maze', dataclasses.replace(states[0].board, position=(0, 1)), turn=1)
  assert (steps[-1].team_reward, steps[-1].done) == (0, False)
  again = environment.step(states[-2], {judge: games.act(judge, 'RD')})
  assert (again.team_reward, again.success, again.done) == (1, True, True)


@pytest.mark.parametrize('team', ['solo', 'pair', 'quintet'])
@each_game
def test_an_episode_continues_from_the_last_board_to_success(team, case):
  environment = case.make(team)
  state, progress = environment.reset(case.task), 0.0
  for solved, move in ((False, case.first), (True, case.second)):
    states, steps = games.play(
        environment, state, [move] * len(environment.roles))
    *tried, played = steps
    for step in tried:
      assert step.reward_terms['plan_solved'] == solved
      assert step.reward_terms['plan_progress'] == pytest.approx(
          played.reward_terms['progress'])
    assert {x for step in steps for x in step.outcomes.values()} == {
        env_api.Outcome.OK}
    assert (played.team_reward, played.success, played.done) == (solved,) * 3
    assert len(states[-2].proposals) == len(tried)
    state, progress = played.state, progress + played.reward_terms['progress']
    if team == 'pair' and not solved:  # A program reads the current board.
      report, = environment.step(
          state, {'tool': '```python\ncat\n```'}).state.proposals
      assert json.loads(report.output) == case.stdin
  assert not played.truncated  # Solved in the last turn.
  assert (state.turn, state.proposals) == (2, ())
  assert progress == pytest.approx(case.progress)


@each_game
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
    ('RESOURCE_LIMIT', 'x' * 9999, 'y' * 9999, 'RESOURCE_LIMIT', 'y' * 9999),
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
  prompt = user_message(environment, step.state, 'planner')
  assert ('It failed' in prompt) == bool(error)
  assert max(len(prompt), len(str(environment.show(step.state)))) < 2500


@each_game
def test_prompts_do_not_leak_the_solution_or_the_task_id(case):
  environment = case.make('pair')
  seen = []
  for task in (case.task, case.task | case.unread | {'task_id': 'other'}):
    states, _ = games.play(
        environment, environment.reset(task), [case.first] * 2)
    seen.append([
        environment.observe(state, role)
        for state, role in zip(states, ('tool', 'planner', 'tool'))])
  assert seen[0] == seen[1]


@each_game
def test_steps_are_pure_and_picklable(case):
  environment = case.make('pair')
  copy = pickle.loads(pickle.dumps(environment))
  assert copy == environment
  state = environment.reset(case.task)
  for role in environment.roles:
    actions = {role: games.act(role, case.first)}
    before = pickle.dumps(state)
    step = environment.step(state, actions)
    assert pickle.dumps(state) == before
    assert copy.step(pickle.loads(before), actions) == step
    assert pickle.loads(pickle.dumps(step)) == step
    state = step.state
    hash(state)  # Frozen at every level.


@pytest.mark.parametrize('game, key, value', [
    ('plan_path', 'team', 'duo'), ('plan_path', 'reward', 'dense'),
    ('sokoban', 'max_turns', 0), ('sudoku', 'size', 5)])
def test_invalid_arguments_are_named(game, key, value):
  case = games.CASES[game]
  given = {'team': 'pair', 'max_turns': 2, 'reward': 'mixed', **case.options}
  with pytest.raises(ValueError, match=f'{key}={value!r}'):
    case.module.make_environment(sandbox=None, **given | {key: value})


def test_a_task_of_another_size_is_refused():
  case = games.CASES['sudoku']
  environment = dataclasses.replace(case, options={'size': 9}).make('solo')
  with pytest.raises(ValueError, match="size=9.*'grid'"):
    environment.reset(case.task)
