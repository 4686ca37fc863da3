"""Demonstrations: each kind does what it claims, and is known again."""

import collections
import dataclasses
import json
import re

import numpy as np
import pytest

from environments import env_api
from environments import sandbox
from environments.boards import board_game
from environments.boards import demonstrations
from environments.boards.plan_path import demonstrations as plan_path
from environments.boards.sokoban import demonstrations as sokoban
from environments.boards.sudoku import demonstrations as sudoku

REPERTOIRES = {
    'plan_path': plan_path.REPERTOIRE, 'sokoban': sokoban.REPERTOIRE,
    'sudoku': sudoku.REPERTOIRE}
MIXTURES = {
    'tool': {'right': 0.1, 'greedy': 0.2, 'wrong': 0.4, 'broken': 0.3},
    'planner': {'adopt': 0.5, 'ignore': 0.2, 'invent': 0.3},
    'solo': {'ignore': 0.4, 'invent': 0.6},
    'tool_1': {'right': 0.4, 'greedy': 0.2, 'wrong': 0.2, 'broken': 0.2},
    'advisor_1': {'ignore': 0.4, 'invent': 0.6},
    'judge': {'adopt': 0.5, 'ignore': 0.2, 'invent': 0.3},
}
ROLES = list(MIXTURES)
DECIDE = ('planner', 'solo', 'advisor_1', 'judge')
NUM_BOARDS = 60

games_and_roles = pytest.mark.parametrize(
    'game, role', [(game, role) for game in REPERTOIRES for role in ROLES])


@pytest.fixture(scope='module')
def programs():
  with sandbox.SandboxServer() as server:
    yield sandbox.Sandbox(server.address)


def draw(game, role, seed=0, num=50, group_size=4, max_turns=(4,)):
  rng = np.random.default_rng(seed)
  return [
      REPERTOIRES[game].demonstrate(
          rng, role, MIXTURES[role], group_size, max_turns)
      for _ in range(num)]


def run(repertoire, programs, board, program):
  """What a tool's program proposes, from the environment itself."""
  environment = board_game.BoardGame(
      repertoire.game, board_game.TEAMS['pair'], {}, programs, 4)
  action = demonstrations.program_text('I try.', program)
  return environment.step(
      board_game.State('', board), {'tool': action}).state.proposals[0]


# Programs.


@pytest.mark.parametrize('game, kind, line, program', [
    pytest.param(game, *program, id=f'{game}: {program[1]}')
    for game, repertoire in REPERTOIRES.items()
    for program in repertoire.programs])
def test_program_does_what_its_kind_claims(programs, game, kind, line, program):
  del line
  repertoire = REPERTOIRES[game]
  rng = np.random.default_rng(1)
  solved, illegal = [], []
  for _ in range(NUM_BOARDS):
    board = repertoire.random_board(rng)
    move = run(repertoire, programs, board, program).move
    if kind == 'broken':
      assert move is None
      continue
    after, share = repertoire.game.play(board, move)
    solved.append(repertoire.game.solved(after))
    illegal.append(share)
  if kind == 'right':
    assert all(solved)
  elif kind != 'broken':
    # Worth something now and then, and much less than a search.
    assert np.mean(solved) < 0.5
  if kind in ('right', 'greedy'):
    assert not any(illegal)


def test_right_programs_of_plan_path_walk_the_shortest_path(programs):
  repertoire = REPERTOIRES['plan_path']
  rng = np.random.default_rng(2)
  for _ in range(20):
    task = plan_path.maze.random_task(rng)
    board = repertoire.game.start(task)
    proposal = run(repertoire, programs, board, repertoire.programs[0][2])
    assert len(proposal.move) == task['shortest_path']


def test_right_programs_of_sokoban_make_the_fewest_moves(programs):
  repertoire = REPERTOIRES['sokoban']
  rng = np.random.default_rng(2)
  for _ in range(20):
    task = sokoban.room.random_task(rng)
    board = repertoire.game.start(task)
    proposal = run(repertoire, programs, board, repertoire.programs[0][2])
    assert len(proposal.move) == task['moves']


@pytest.mark.parametrize('game', REPERTOIRES)
def test_every_program_is_drawn_and_announced(game):
  repertoire = REPERTOIRES[game]
  assert {kind for kind, _, _ in repertoire.programs} == MIXTURES['tool'].keys()
  first_lines = [line for _, line, _ in repertoire.programs]
  assert len(set(first_lines)) == len(first_lines)
  assert {c for d in draw(game, 'tool') for c in d.completions} == {
      demonstrations.program_text(line, program)
      for _, line, program in repertoire.programs}


@pytest.mark.parametrize('game', REPERTOIRES)
def test_a_planner_is_shown_what_such_a_program_could_have_left(game, programs):
  seen = set()
  for demonstration in draw(game, 'planner', num=40):
    shown, = demonstration.state.proposals
    real = run(
        REPERTOIRES[game], programs, demonstration.state.board, shown.program)
    assert real.program == shown.program
    assert (real.move is None) == (shown.move is None)
    # Newer Pythons add a guess at what was meant.
    assert real.error.startswith(shown.error)
    assert bool(real.error) == bool(shown.error)
    assert real.output[:5] == shown.output[:5] or shown.move is not None
    if shown.move is not None:
      assert shown.output == json.dumps(shown.move) + '\n'
    seen.add(shown.move is None)
  assert seen == {True, False}


# Moves.


@pytest.mark.parametrize('game', REPERTOIRES)
@pytest.mark.parametrize('role', DECIDE)
def test_moves_do_what_their_kind_claims(game, role):
  repertoire = REPERTOIRES[game]
  seen = collections.Counter()
  for demonstration in draw(game, role):
    state = demonstration.state
    team = next(
        roles for roles in board_game.TEAMS.values()
        if role in roles and (
            role != 'judge' or len(roles) == 1 + len(state.proposals)))
    environment = board_game.BoardGame(repertoire.game, team, {}, None, 4)
    assert demonstration.messages == environment.observe(state, role)
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      line, answer = text.split('\n#### ')
      move = repertoire.game.parse(json.loads(answer))
      assert move is not None
      if kind == 'adopt':
        proposal, = [
            x for x in state.proposals
            if role == 'planner' or line.endswith(f' {x.role}.')]
        assert move == (
            repertoire.nothing if proposal.move is None else proposal.move)
        seen[proposal.role] += 1
      elif kind == 'ignore':
        assert move == repertoire.ignored(state.board)
      step = environment.step(state, {role: text})
      assert step.outcomes[role] is not env_api.Outcome.PARSE_ERROR
  if role == 'judge':
    assert seen.keys() == set(board_game.TEAMS['septet'][:-1])


# Kinds.


@games_and_roles
def test_every_completion_has_its_kind(game, role):
  seen = collections.Counter()
  for demonstration in draw(game, role):
    assert len(demonstration.completions) == len(demonstration.kinds) == 4
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      assert REPERTOIRES[game].kind_of(demonstration, text) == kind
      seen[kind] += 1
  assert seen.keys() == MIXTURES[role].keys()


@pytest.mark.parametrize('game', REPERTOIRES)
def test_a_corrupted_program_has_no_kind(game):
  rng = np.random.default_rng(2)
  for demonstration in draw(game, 'tool'):
    for text in demonstration.completions:
      place = int(rng.integers(len(text)))
      letter = 'x' if text[place] != 'x' else 'y'
      for wrong in (
          text[:place] + letter + text[place + 1:], text[:-1], text + '\n',
          text[:place] + letter + text[place:]):
        assert REPERTOIRES[game].kind_of(demonstration, wrong) is None


@pytest.mark.parametrize('game', REPERTOIRES)
@pytest.mark.parametrize('role', DECIDE)
def test_a_corrupted_move_has_no_kind(game, role):
  repertoire = REPERTOIRES[game]
  for demonstration in draw(game, role):
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      line, answer = text.split('\n')
      wrong = [
          text[1:], text[:-1], line + '.' + '\n' + answer, answer,
          f'{line}\n{answer[1:]}', f'{line}\n#### ["X"]', line]
      if kind == 'adopt':
        move = json.loads(answer.removeprefix('####'))
        wrong += [
            f'{line}\n#### {json.dumps(other)}'
            for other in (move + move[:1], move[1:], move[::-1])
            if other != move]
      for bad in wrong:
        assert repertoire.kind_of(demonstration, bad) is None, bad


def test_kinds_of_other_roles_are_not_known():
  solo, tool = draw('plan_path', 'solo')[0], draw('plan_path', 'tool')[0]
  kind_of = REPERTOIRES['plan_path'].kind_of
  assert kind_of(tool, solo.completions[0]) is None
  assert kind_of(solo, tool.completions[0]) is None
  # Alone, there is no proposal to take over.
  assert kind_of(solo, 'I take over the proposal.\n#### []') is None


@games_and_roles
def test_shares_follow_the_mixture(game, role):
  num = 800
  kinds = collections.Counter(
      kind for demonstration in draw(game, role, seed=3, num=num // 4)
      for kind in demonstration.kinds)
  for kind, share in MIXTURES[role].items():
    deviation = (share * (1 - share) / num) ** 0.5
    assert abs(kinds[kind] / num - share) < 4 * deviation


@games_and_roles
def test_draws_depend_on_the_generator_alone(game, role):
  assert draw(game, role, seed=4, num=5) == draw(game, role, seed=4, num=5)
  assert draw(game, role, seed=4, num=5) != draw(game, role, seed=5, num=5)
  assert len({d.state.turn for d in draw(game, role)}) == 4
  assert {d.state.turn for d in draw(game, role, max_turns=(1,))} == {0}


@pytest.mark.parametrize('game', REPERTOIRES)
def test_boards_of_all_turns_are_shown_as_in_episodes(game):
  repertoire = REPERTOIRES[game]
  environment = board_game.BoardGame(
      repertoire.game, board_game.TEAMS['solo'], {}, None, 4)

  def form(state):
    described = repertoire.game.describe(state.board).partition('\n')[0]
    return state.turn > 0, re.sub('[0-9]', '', described)

  played = set()
  for seed, demonstration in enumerate(draw(game, 'solo', num=100)):
    board = repertoire.random_board(np.random.default_rng(seed))
    state = board_game.State('', board)
    for completion in ('no move', *demonstration.completions[:3]):
      played.add(form(state))
      state = environment.step(state, {'solo': completion}).state
  drawn = collections.Counter(
      form(d.state) for d in draw(game, 'planner', num=100, group_size=1))
  assert drawn.keys() == played
  assert not any(
      repertoire.game.solved(d.state.board) for d in draw(game, 'planner'))
  if game == 'sudoku':
    assert drawn[True, 'Filled in by the last grid:'] > 50
  # The board is what is drawn first; after a turn it has mostly changed.
  changed = collections.defaultdict(list)
  for seed in range(100):
    demonstration = repertoire.demonstrate(
        np.random.default_rng(seed), 'solo', {'invent': 1.0}, 1, (4,))
    changed[demonstration.state.turn > 0].append(
        demonstration.state.board
        != repertoire.random_board(np.random.default_rng(seed)))
  assert not any(changed[False]) and np.mean(changed[True]) > 0.6


def test_limits_of_an_episode_vary():
  limits = collections.Counter(
      re.search(r'Turn (\d) of (\d)', d.messages[1]['content']).groups()
      for d in draw('plan_path', 'planner', num=200, max_turns=(1, 3)))
  assert limits.keys() == {('1', '1'), ('1', '3'), ('2', '3'), ('3', '3')}


def test_a_copyist_is_shown_the_proposal_and_nothing_else():
  for game, repertoire in REPERTOIRES.items():
    demonstration = repertoire.demonstrate(
        np.random.default_rng(0), 'copyist', {'adopt': 1.0}, 1, (4,))
    proposal, = demonstration.state.proposals
    move = json.dumps(proposal.move)
    name = repertoire.game.words.name
    assert demonstration.messages == [{
        'role': 'user',
        'content': f'Output:\n{move}\nProposed {name}: {move}'}], game
    assert dataclasses.replace(demonstration.state, proposals=()) == (
        board_game.State(
            '', demonstration.state.board, demonstration.state.turn))


@pytest.mark.parametrize('game', REPERTOIRES)
def test_a_chooser_is_shown_two_proposals_and_nothing_else(game):
  repertoire = REPERTOIRES[game]
  demonstration = repertoire.demonstrate(
      np.random.default_rng(0), 'chooser', {'adopt': 1.0}, 8, (4,))
  proposals = demonstration.state.proposals
  name = repertoire.game.words.name
  assert demonstration.messages == [{
      'role': 'user',
      'content': '\n'.join(
          f'{role} proposed {name}: {json.dumps(proposal.move)}'
          for role, proposal in zip(('tool_1', 'advisor_1'), proposals))}]
  assert set(demonstration.completions) == {
      f'I take over the proposal of {proposal.role}.\n'
      f'#### {json.dumps(proposal.move)}' for proposal in proposals}
  for completion in demonstration.completions:
    assert repertoire.kind_of(demonstration, completion) == 'adopt'
