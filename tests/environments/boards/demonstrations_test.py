"""Demonstrations: each kind does what it claims, and is known again."""

import collections
import json
import re

import numpy as np
import pytest

from environments import env_api
from environments import sandbox
from environments.boards import board_game
from environments.boards import demonstrations
from environments.boards.plan_path import demonstrations as plan_path
from environments.boards.plan_path import maze
from environments.boards.sokoban import demonstrations as sokoban
from environments.boards.sokoban import room
from environments.boards.sudoku import demonstrations as sudoku

REPERTOIRES = {
    'plan_path': plan_path.REPERTOIRE, 'sokoban': sokoban.REPERTOIRE,
    'sudoku': sudoku.REPERTOIRE}
PROGRAMS = {'right': 0.1, 'greedy': 0.2, 'wrong': 0.4, 'broken': 0.3}
CHOICES = {'adopt': 0.5, 'ignore': 0.2, 'invent': 0.3}
MOVES = {'ignore': 0.4, 'invent': 0.6}
MIXTURES = {
    'tool': PROGRAMS, 'planner': CHOICES, 'solo': MOVES, 'tool_1': PROGRAMS,
    'advisor_1': MOVES, 'judge': CHOICES}
DECIDE = ('planner', 'solo', 'advisor_1', 'judge')

each_game = pytest.mark.parametrize('game', REPERTOIRES)
each_role = pytest.mark.parametrize('role', MIXTURES)


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


def pairs(drawn):
  """(demonstration, kind, completion) of all."""
  return [
      (demonstration, *pair) for demonstration in drawn
      for pair in zip(
          demonstration.kinds, demonstration.completions, strict=True)]


def run(repertoire, programs, board, program):
  """What a tool's program proposes, from the environment itself."""
  environment = board_game.BoardGame(
      repertoire.game, board_game.TEAMS['pair'], {}, programs, 4)
  action = demonstrations.program_text('I try.', program)
  return environment.step(
      board_game.State('', board), {'tool': action}).state.proposals[0]


# Programs.


@each_game
def test_programs_do_what_their_kind_claims(programs, game):
  repertoire, rng = REPERTOIRES[game], np.random.default_rng(1)
  boards = [repertoire.random_board(rng) for _ in range(20)]
  for kind, line, program in repertoire.programs:
    moves = [
        run(repertoire, programs, board, program).move
        for board in (boards[:2] if kind == 'broken' else boards)]
    if kind == 'broken':
      assert moves == [None] * 2, line
      continue
    played = [
        repertoire.game.play(board, move) for board, move in zip(boards, moves)]
    solved = [repertoire.game.solved(board) for board, _ in played]
    if kind == 'right':
      assert all(solved), line
    else:
      # Worth something now and then, and much less than a search.
      assert np.mean(solved) < 0.5, line
    if kind in ('right', 'greedy'):
      assert not any(illegal for _, illegal in played), line
    for board, move in zip(boards, moves):
      if kind == 'right' and game == 'plan_path':
        assert len(move) == maze.shortest_path_length(
            board.grid, board.position, board.goal)
      if kind == 'right' and game == 'sokoban':
        assert len(move) == len(room.solve(
            board.grid, board.player, board.boxes, board.goals))


@each_game
def test_a_planner_is_shown_what_such_a_program_could_have_left(game, programs):
  seen = set()
  for demonstration in draw(game, 'planner', num=15):
    shown, = demonstration.state.proposals
    real = run(
        REPERTOIRES[game], programs, demonstration.state.board, shown.program)
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


@each_game
@pytest.mark.parametrize('role', DECIDE)
def test_moves_do_what_their_kind_claims(game, role):
  repertoire = REPERTOIRES[game]
  adopted = set()
  for demonstration, kind, completion in pairs(draw(game, role)):
    state = demonstration.state
    team = next(
        roles for roles in board_game.TEAMS.values()
        if role in roles and (
            role != 'judge' or len(roles) == 1 + len(state.proposals)))
    environment = board_game.BoardGame(repertoire.game, team, {}, None, 4)
    assert demonstration.messages == environment.observe(state, role)
    line, answer = completion.split('\n#### ')
    move = repertoire.game.parse(json.loads(answer))
    if kind == 'adopt':
      proposal, = [
          x for x in state.proposals
          if role == 'planner' or line.endswith(f' {x.role}.')]
      assert move == (
          repertoire.nothing if proposal.move is None else proposal.move)
      adopted.add(proposal.role)
    elif kind == 'ignore':
      assert move == repertoire.ignored(state.board)
    step = environment.step(state, {role: completion})
    assert step.outcomes[role] is not env_api.Outcome.PARSE_ERROR
  if role == 'judge':
    assert adopted == set(board_game.TEAMS['septet'][:-1])


# Kinds.


@each_game
@each_role
def test_every_completion_has_its_kind_as_often_as_the_mixture_says(game, role):
  drawn = pairs(draw(game, role, seed=3, num=100))
  for demonstration, kind, completion in drawn:
    assert REPERTOIRES[game].kind_of(demonstration, completion) == kind
  kinds = collections.Counter(kind for _, kind, _ in drawn)
  assert kinds.keys() == MIXTURES[role].keys()
  for kind, share in MIXTURES[role].items():
    deviation = (share * (1 - share) / len(drawn)) ** 0.5
    assert abs(kinds[kind] / len(drawn) - share) < 4 * deviation
  if role == 'tool':  # Each program is drawn, and told by the first line.
    programs = REPERTOIRES[game].programs
    assert len({text for *_, text in drawn}) == len(programs)
    assert len({line for _, line, _ in programs}) == len(programs)


@each_game
@pytest.mark.parametrize('role', ['tool', *DECIDE])
def test_a_corrupted_answer_has_no_kind(game, role):
  rng = np.random.default_rng(2)
  solo = draw('plan_path', 'solo')[0].completions[0]
  for demonstration, kind, text in pairs(draw(game, role, num=20)):
    line, _, answer = text.partition('\n')
    wrong = [text[1:], text[:-1], f'{line}.\n{answer}', answer, line]
    if role == 'tool':
      at = int(rng.integers(len(text)))
      letter = 'x' if text[at] != 'x' else 'y'
      wrong += [
          text[:at] + letter + text[at + 1:], text[:at] + letter + text[at:],
          text + '\n', solo]
    else:
      wrong += [f'{line}\n{answer[1:]}', f'{line}\n#### ["X"]']
    if kind == 'adopt':
      move = json.loads(answer.removeprefix('####'))
      wrong += [
          f'{line}\n#### {json.dumps(other)}'
          for other in (move + move[:1], move[1:], move[::-1])
          if other != move]
    for bad in wrong:
      assert REPERTOIRES[game].kind_of(demonstration, bad) is None, bad


# Boards.


@each_game
@each_role
def test_draws_depend_on_the_generator_alone(game, role):
  first, same, other = (draw(game, role, seed, num=3) for seed in (4, 4, 5))
  assert first == same != other


@each_game
def test_boards_of_all_turns_are_shown(game):
  repertoire = REPERTOIRES[game]
  # The board is what is drawn first; after a turn it has mostly changed.
  changed = collections.defaultdict(list)
  for seed in range(60):
    demonstration = repertoire.demonstrate(
        np.random.default_rng(seed), 'planner', CHOICES, 1, (1, 3))
    board = demonstration.state.board
    assert not repertoire.game.solved(board)
    turns = re.search(
        r'Turn (\d) of (\d)', demonstration.messages[1]['content']).groups()
    changed[turns].append(
        board != repertoire.random_board(np.random.default_rng(seed)))
  assert changed.keys() == {('1', '1'), ('1', '3'), ('2', '3'), ('3', '3')}
  assert not any(changed['1', '1'] + changed['1', '3'])
  assert np.mean(changed['2', '3'] + changed['3', '3']) > 0.6


@each_game
def test_drills_show_proposals_and_nothing_else(game):
  repertoire = REPERTOIRES[game]
  name = repertoire.game.words.name
  for role, proposers in (
      ('copyist', ['tool']), ('chooser', ['tool_1', 'advisor_1'])):
    demonstration = repertoire.demonstrate(
        np.random.default_rng(0), role, {'adopt': 1.0}, 8, (4,))
    proposals = demonstration.state.proposals
    assert [proposal.role for proposal in proposals] == proposers
    moves = [json.dumps(proposal.move) for proposal in proposals]
    message, = demonstration.messages
    if role == 'copyist':
      assert message['content'] == (
          f'Output:\n{moves[0]}\nProposed {name}: {moves[0]}')
      lines = ['I take over the proposal.']
    else:
      assert message['content'] == '\n'.join(
          f'{proposer} proposed {name}: {move}'
          for proposer, move in zip(proposers, moves))
      lines = [f'I take over the proposal of {x}.' for x in proposers]
    assert set(demonstration.completions) == {
        f'{line}\n#### {move}' for line, move in zip(lines, moves)}
    for completion in demonstration.completions:
      assert repertoire.kind_of(demonstration, completion) == 'adopt'
