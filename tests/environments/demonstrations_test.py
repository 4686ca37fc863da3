"""Plan-Path's demonstrations: each kind does what it claims, and is known."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from environments import sandbox
from environments.plan_path import demonstrations
from environments.plan_path import env as plan_path
from environments.plan_path import maze

MIXTURES = {
    'tool': {'right': 0.1, 'greedy': 0.2, 'wrong': 0.4, 'broken': 0.3},
    'planner': {'adopt': 0.5, 'ignore': 0.2, 'invent': 0.3},
    'solo': {'ignore': 0.4, 'invent': 0.6},
}
ROLES = list(MIXTURES)
NUM_MAZES = 60


@pytest.fixture(scope='module')
def programs():
  with sandbox.SandboxServer() as server:
    yield sandbox.Sandbox(server.address)


def draw(role, seed=0, num=100, group_size=4, max_turns=4):
  rng = np.random.default_rng(seed)
  return [
      demonstrations.demonstrate(
          rng, role, MIXTURES[role], group_size, max_turns)
      for _ in range(num)]


def random_state(rng):
  task = maze.random_task(rng)
  environment = plan_path.make_environment(
      team='solo', max_turns=1, reward='mixed', sandbox=None)
  return environment.reset({'task_id': 'x', **task}), task['shortest_path']


def run(programs, state, program):
  """The report of the tool agent's program, from the environment itself."""
  environment = plan_path.make_environment(
      team='pair', max_turns=4, reward='mixed', sandbox=programs)
  action = demonstrations.program_text('I try.', program)
  return environment.step(state, {'tool': action}).state.report


def shift(moves):
  """Where moves lead when there are no walls."""
  steps = [plan_path.DELTAS[move] for move in moves]
  return sum(step[0] for step in steps), sum(step[1] for step in steps)


# Programs.


@pytest.mark.parametrize(
    'kind, line, program', demonstrations.PROGRAMS,
    ids=[line for _, line, _ in demonstrations.PROGRAMS])
def test_program_does_what_its_kind_claims(programs, kind, line, program):
  rng = np.random.default_rng(1)
  solved = []
  for _ in range(NUM_MAZES):
    state, shortest = random_state(rng)
    moves = run(programs, state, program).moves
    if kind == 'broken':
      assert moves is None
      continue
    end, illegal = plan_path.walk(
        state.grid, state.position, state.goal, moves)
    solved.append(end == state.goal)
    away = (state.goal[0] - state.position[0],
            state.goal[1] - state.position[1])
    if kind == 'right':
      assert solved[-1] and len(moves) == shortest
    elif kind == 'greedy':
      assert not illegal
      nearer = plan_path.progress(state.position, end, state.goal)
      assert len(moves) == pytest.approx(18 * nearer)
    elif line == 'I count rows and columns.':
      assert shift(moves) == away
      assert len(moves) == abs(away[0]) + abs(away[1])
    else:
      assert shift(moves) == away[::-1]
  if kind in ('greedy', 'wrong'):
    # Worth something now and then, and much less than a search.
    assert np.mean(solved) < 0.5


def test_every_kind_of_program_and_walk_is_drawn():
  kinds = {program[0] for program in demonstrations.PROGRAMS}
  assert kinds == MIXTURES['tool'].keys()
  first_lines = [line for _, line, _ in demonstrations.PROGRAMS]
  assert len(set(first_lines)) == len(first_lines)
  drawn = {c for d in draw('tool') for c in d.completions}
  assert drawn == {
      demonstrations.program_text(line, program)
      for _, line, program in demonstrations.PROGRAMS}


def test_a_planner_is_shown_what_such_a_program_could_have_left(programs):
  shown = [(d.state, d.state.report) for d in draw('planner', num=40)]
  for state, report in shown:
    real = run(
        programs, dataclasses.replace(state, report=None), report.program)
    assert real.program == report.program
    assert (real.moves is None) == (report.moves is None)
    # Newer Pythons add a guess at what was meant.
    assert real.error.startswith(report.error)
    assert bool(real.error) == bool(report.error)
    assert real.output[:6] == report.output[:6] or report.moves is not None
    if report.moves is not None:
      assert report.output == json.dumps(report.moves) + '\n'
  assert {report.moves is None for _, report in shown} == {True, False}


# Walks.


@pytest.mark.parametrize('role', ['planner', 'solo'])
def test_walks_do_what_their_kind_claims(role):
  environment = plan_path.make_environment(
      team='solo' if role == 'solo' else 'pair', max_turns=4, reward='mixed',
      sandbox=None)
  for demonstration in draw(role):
    state = demonstration.state
    assert demonstration.messages == environment.observe(state, role)
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      _, answer = text.split('\n#### ')
      moves = json.loads(answer)
      if kind == 'adopt':
        assert moves == list(state.report.moves or ())
      elif kind == 'ignore':
        assert shift(moves) == (
            state.goal[0] - state.position[0],
            state.goal[1] - state.position[1])
      else:
        assert 4 <= len(moves) <= 12
      step = environment.step(state, {role: text})
      assert step.reward_terms['malformed'] == 0


# Kinds.


@pytest.mark.parametrize('role', ROLES)
def test_every_completion_has_its_kind(role):
  seen = collections.Counter()
  for demonstration in draw(role):
    assert len(demonstration.completions) == len(demonstration.kinds) == 4
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      assert demonstrations.kind_of(demonstration, text) == kind
      seen[kind] += 1
  assert seen.keys() == MIXTURES[role].keys()


def test_a_corrupted_program_has_no_kind():
  rng = np.random.default_rng(2)
  for demonstration in draw('tool'):
    for text in demonstration.completions:
      place = int(rng.integers(len(text)))
      letter = 'x' if text[place] != 'x' else 'y'
      for wrong in (
          text[:place] + letter + text[place + 1:], text[:-1], text + '\n',
          text[:place] + letter + text[place:]):
        assert demonstrations.kind_of(demonstration, wrong) is None


@pytest.mark.parametrize('role', ['planner', 'solo'])
def test_a_corrupted_walk_has_no_kind(role):
  for demonstration in draw(role):
    for kind, text in zip(demonstration.kinds, demonstration.completions):
      line, answer = text.split('\n')
      wrong = [
          text[1:], text[:-1], line + '.' + '\n' + answer, answer,
          f'{line}\n{answer[1:]}', f'{line}\n#### ["X"]', line]
      if kind == 'adopt':
        moves = json.loads(answer.removeprefix('####'))
        others = [moves + ['U'], ['D', *moves]]
        if moves:
          others += [moves[1:], moves[:-1]]
          others.append([{'U': 'D'}.get(moves[0], 'U'), *moves[1:]])
        wrong += [f'{line}\n#### {json.dumps(other)}' for other in others]
      for bad in wrong:
        assert demonstrations.kind_of(demonstration, bad) is None, bad


def test_kinds_of_other_roles_are_not_known():
  solo, tool = draw('solo', num=1)[0], draw('tool', num=1)[0]
  assert demonstrations.kind_of(tool, solo.completions[0]) is None
  assert demonstrations.kind_of(solo, tool.completions[0]) is None
  # Alone, there is no proposal to take over.
  copy = 'I take over the proposal.\n#### []'
  assert demonstrations.kind_of(solo, copy) is None


@pytest.mark.parametrize('role', ROLES)
def test_shares_follow_the_mixture(role):
  num = 2000
  kinds = collections.Counter(
      kind for demonstration in draw(role, seed=3, num=num // 4)
      for kind in demonstration.kinds)
  for kind, share in MIXTURES[role].items():
    deviation = (share * (1 - share) / num) ** 0.5
    assert abs(kinds[kind] / num - share) < 4 * deviation


@pytest.mark.parametrize('role', ROLES)
def test_draws_depend_on_the_generator_alone(role):
  assert draw(role, seed=4, num=5) == draw(role, seed=4, num=5)
  assert draw(role, seed=4, num=5) != draw(role, seed=5, num=5)
  assert len({d.state.turn for d in draw(role)}) == 4
  assert {d.state.turn for d in draw(role, max_turns=1)} == {0}
