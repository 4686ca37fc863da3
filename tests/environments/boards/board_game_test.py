"""board_game.py: who sees what and is paid what, in teams of any size.

Plan-Path's own tests cover a pair and a single agent in full.
"""

import json

import pytest

from environments import env_api
from environments.boards import board_game
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from tests.environments import echo_sandbox

TASK = {
    'task_id': 'maze', 'grid': ['.' * 10] * 10, 'start': [0, 0],
    'goal': [1, 1]}
ROOM = {
    'task_id': 'room', 'grid': ['.' * 6] * 6, 'player': [0, 0],
    'boxes': [[1, 1]], 'goals': [[3, 1]]}
CLUES = {'task_id': 'grid', 'board': ['1.3.', '..12', '2.4.', '...1']}
SOLUTION = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]
BIG_TEAMS = ('trio', 'quintet', 'septet')


def make(team, reward='mixed', max_turns=2, game=plan_path, **options):
  return game.make_environment(
      team=team, max_turns=max_turns, reward=reward,
      sandbox=echo_sandbox.Echo(), **options)


def act(role, moves):
  """The text with which a role proposes, or decides on, moves."""
  moves = json.dumps(list(moves))
  if board_game.kind_of(role) == 'tool':
    return f'```python\n{moves}\n```'
  return f'#### {moves}'


def play(environment, texts, state=None):
  """Steps with a text for each role of one turn; all states and steps."""
  states, steps = [state or environment.reset(TASK)], []
  for role, text in zip(environment.roles, texts, strict=True):
    steps.append(environment.step(states[-1], {role: text}))
    states.append(steps[-1].state)
  return states, steps


def test_teams_have_as_many_roles_as_they_say():
  assert {team: len(roles) for team, roles in board_game.TEAMS.items()} == {
      'solo': 1, 'pair': 2, 'trio': 3, 'quintet': 5, 'septet': 7}
  assert board_game.TEAMS['quintet'] == (
      'tool_1', 'tool_2', 'advisor_1', 'advisor_2', 'judge')
  for team, roles in board_game.TEAMS.items():
    assert len(set(roles)) == len(roles)
    # One after another, so each can have groups of its own.
    assert make(team).phases == tuple((role,) for role in roles)


@pytest.mark.parametrize('team', BIG_TEAMS)
def test_who_proposes_sees_no_proposal_and_who_decides_sees_all(team):
  environment = make(team)
  states, _ = play(environment, [
      act(role, 'U' * i) for i, role in enumerate(environment.roles, 1)])
  first = environment.observe(states[0], environment.roles[0])[1]
  for state, role in zip(states, environment.roles[:-1]):
    assert environment.observe(state, role)[1] == first
  shown = environment.observe(states[-2], 'judge')[1]['content']
  proposed = [
      f'{role} proposed moves: {json.dumps(["U"] * i)}'
      for i, role in enumerate(environment.roles[:-1], 1)]
  assert shown == '\n'.join([first['content'], *proposed])


@pytest.mark.parametrize('team', BIG_TEAMS)
def test_proposals_are_tried_on_copies_and_the_decision_is_played(team):
  environment = make(team)
  *proposers, judge = environment.roles
  states, steps = play(environment, [
      *(act(role, 'RD') for role in proposers), act(judge, 'R')])
  for role, state, step in zip(proposers, states[1:], steps):
    assert state.board == states[0].board
    assert step.reward_terms == {
        'plan_solved': 1, 'plan_progress': pytest.approx(2 / 18),
        'plan_idle': 0, 'plan_illegal': 0, 'plan_malformed': 0}
    assert step.team_reward == 0
    assert step.local_rewards == {role: pytest.approx(1 + 0.5 * 2 / 18)}
    assert not (step.done or step.success or step.truncated)
  assert len(states[-2].proposals) == len(proposers)
  assert [step.program_runs for step in steps] == [
      board_game.kind_of(role) == 'tool' for role in environment.roles]
  assert steps[-1].state.board.position == (0, 1)
  assert steps[-1].state.proposals == ()
  assert steps[-1].state.turn == 1
  assert steps[-1].team_reward == 0
  assert not steps[-1].done
  again = environment.step(states[-2], {judge: act(judge, 'RD')})
  assert (again.team_reward, again.success, again.done) == (1, True, True)


@pytest.mark.parametrize('team', BIG_TEAMS[1:])
@pytest.mark.parametrize('game, options, task, first, second, distance', [
    pytest.param(plan_path, {}, TASK, 'R', 'D', 2 / 18, id='plan_path'),
    pytest.param(sokoban, {}, ROOM, 'RD', 'D', 2 / 10, id='sokoban'),
    pytest.param(
        sudoku, {'size': 4}, CLUES, [*SOLUTION[:2], [0] * 4, [0] * 4],
        SOLUTION, 1, id='sudoku')])
def test_an_episode_to_success(
    team, game, options, task, first, second, distance):
  # Bite: proposals that outlive their turn, a turn that starts from the task's
  # board, a proposal that ends the episode.
  environment = make(team, game=game, **options)
  state, total = environment.reset(task), 0.0
  for solved, moves in ((False, first), (True, second)):
    states, steps = play(
        environment, [act(role, moves) for role in environment.roles], state)
    *tried, played = steps
    for step in tried:
      assert step.reward_terms['plan_solved'] == solved
      assert step.reward_terms['plan_progress'] == pytest.approx(
          played.reward_terms['progress'])
      assert (step.team_reward, step.success, step.done) == (0, False, False)
    shown = environment.observe(states[-2], 'judge')[1]['content']
    assert shown.count(' proposed ') == len(tried)
    assert {x for step in steps for x in step.outcomes.values()} == {
        env_api.Outcome.OK}
    assert (played.team_reward, played.success, played.done) == (solved,) * 3
    state, total = played.state, total + played.reward_terms['progress']
  assert not played.truncated
  assert state.turn == 2
  assert total == pytest.approx(distance)


@pytest.mark.parametrize('text, outcome, shown', [
    ('#### ["U", "D"]', env_api.Outcome.ILLEGAL_ACTION, '["U", "D"]'),
    ('#### ["D"]', env_api.Outcome.OK, '["D"]'),
    ('#### []', env_api.Outcome.NO_EFFECT, '[]'),
    ('#### ["U"]', env_api.Outcome.NO_EFFECT, '["U"]'),
    ('#### ["D", "U"]', env_api.Outcome.NO_EFFECT, '["D", "U"]'),
    ('#### ["X"]', env_api.Outcome.PARSE_ERROR, 'none'),
    ('I do not know.', env_api.Outcome.PARSE_ERROR, 'none')])
def test_what_an_advisor_says(text, outcome, shown):
  environment = make('trio')
  states, steps = play(environment, ['no program', text, act('judge', '')])
  assert steps[0].outcomes == {'tool_1': env_api.Outcome.PARSE_ERROR}
  assert steps[1].outcomes == {'advisor_1': outcome}
  assert steps[1].reward_terms['plan_malformed'] == -(shown == 'none')
  assert environment.observe(states[-2], 'judge')[1]['content'].endswith(
      f'\ntool_1 proposed moves: none\nadvisor_1 proposed moves: {shown}')


def test_messages_name_who_decides():
  for team, roles in board_game.TEAMS.items():
    environment = make(team)
    state = environment.reset(TASK)
    for role in roles[:-1]:
      system = environment.observe(state, role)[0]['content']
      assert f'The {roles[-1]} sees' in system or (
          f'the {roles[-1]} decides' in system)


@pytest.mark.parametrize('reward, planned', [
    ('outcome', 0.0), ('outcome_and_plans', 1.0)])
def test_presets_that_use_nothing_but_the_checker(reward, planned):
  environment = make('trio', reward=reward)
  _, steps = play(environment, [
      act('tool_1', 'RD'), act('advisor_1', 'RR'), act('judge', 'DR')])
  assert [step.local_rewards for step in steps] == [
      {'tool_1': planned}, {'advisor_1': 0.0}, {'judge': 0.0}]
  assert [step.team_reward for step in steps] == [0, 0, 1]
