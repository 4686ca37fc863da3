"""A coder and a tester solve a programming problem (AT-GRPO, section 5).

Teams:

  pair  A *coder* writes a program; a *tester* writes test cases, without
        having seen it. Coder first, then tester, in every turn. From the second
        turn on both see the program and the cases of the turn before on which
        they do not agree, and write theirs again.
  solo  One agent writes a program. In several turns it sees its last one.

The episode ends when the program gives the expected output in all of the
tester's cases, of which there must be one that the empty program does not pass;
or when the turns run out. `success`: the last program passes all golden tests.
Agreement alone is no success. `rewards.py` says what a step pays, `cases.py`
has the grammar of cases.

The outcome of an action is the first of these that is true.

  coder   PARSE_ERROR    no program
          NO_EFFECT      a program that does nothing, or the last one again
          PROGRAM_ERROR, TIMEOUT, RESOURCE_LIMIT
                         what became of the first smoke test that did not end
                         well
  tester  PARSE_ERROR    no case that can be read
          NO_EFFECT      the empty program passes all cases
          ILLEGAL_ACTION the reference solution can run none of the cases

Deviations from the authors' code, each with a test: roles act one after another
and see all of the turn before; success is said by the golden tests, of which
none is left out of an evaluation; the team is paid for a golden test once; the
reference solution is run, so that the tester is paid; blocks are parsed, never
evaluated; what a program writes to stderr is no error; a failure of the sandbox
is no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import re

from environments import env_api
from environments import outcomes as outcomes_lib
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.programming import grading
from environments.programming import problems
from environments.programming.contests import cases as cases_lib
from environments.programming.contests import prompts
from environments.programming.contests import rewards

# Team -> roles in the order they act.
TEAMS = {'pair': ('coder', 'tester'), 'solo': ('solo',)}

_Outcome = env_api.Outcome
_DOES_NOT_COMPILE = re.compile(
    r'(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)'
    r'\b')


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps.

  Attributes:
    problem: with the golden tests, which no agent is shown.
    turn: turns that are over.
    program: the coder's last one; '' without one.
    share: of the golden tests that it passes.
    report: of the turn before.
  """

  problem: problems.Problem
  turn: int = 0
  program: str = ''
  share: float = 0.0
  report: prompts.Report | None = None

  @property
  def task_id(self) -> str:
    return self.problem.task_id


@dataclasses.dataclass(frozen=True)
class Contest:
  """The environment; see `environments.env_api.Environment`."""

  roles: tuple[str, ...]
  weights: Mapping[str, float]
  sandbox: sandbox_lib.Sandbox | None
  max_turns: int

  # Of a step; those of an episode add up to 0 to 1.
  team_reward_range = (-1.0, 1.0)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return tuple((role,) for role in self.roles)

  def reset(self, task: env_api.Task) -> State:
    problem = problems.from_task(task)
    if problem.comparison == 'check':
      raise ValueError(
          f'the tests of {problem.task_id} are code, so it cannot be played '
          'here; use environments.programming.functions.env')
    sandbox_lib.check_given(self.sandbox, 'coders')
    return State(problem)

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    return prompts.messages(
        role, state.problem, state.turn, self.max_turns, state.report)

  def show(self, state: State) -> dict[str, str]:
    shown = {'problem': state.problem.statement}
    if state.program:
      shown |= {
          'program': text_lib.shorten(state.program, prompts.SHOWN_PROGRAM),
          'golden tests passed': f'{state.share:.1%}'}
    if state.report is not None:
      shown['cases of the last turn'] = (
          f'{state.report.num_cases}, of which the program differs in '
          f'{len(state.report.mismatches)}')
    return shown

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    if role == 'tester':
      return self._test(state, action)
    return self._code(state, role, action)

  def _code(self, state: State, role: str, action: str) -> env_api.Step:
    """Takes a program, and grades it."""
    program = text_lib.last_program(action) or ''
    tests = state.problem.tests
    grade = grading.Grade((), (False,) * len(tests))
    if program:
      grade = grading.grade(self.sandbox, state.problem, program, tests)
    terms = {'compiles': 0.0, 'smoke': 0.0, 'golden': grade.share}
    smoke = grade.results[:rewards.SMOKE_TESTS]
    does_something = grade.share > 0 or not all(
        map(_is_silent, smoke))
    if program and does_something:
      terms['compiles'] = float(not any(
          _DOES_NOT_COMPILE.match(grading.last_line(result.stderr))
          for result in grade.results))
      terms['smoke'] = float(
          len(smoke) == min(rewards.SMOKE_TESTS, len(tests))
          and all(result.status is grading.Status.OK for result in smoke))
    if grade.failed:
      outcome = _Outcome.INFRASTRUCTURE
    elif not program:
      outcome = _Outcome.PARSE_ERROR
    elif not does_something or program == state.program:
      outcome = _Outcome.NO_EFFECT
    else:
      outcome = outcomes_lib.OF_STATUS[next(
          (result.status for result in smoke
           if result.status is not grading.Status.OK), grading.Status.OK)]
    improvement = grade.share - state.share
    after = dataclasses.replace(state, program=program, share=grade.share)
    done = role == 'solo' and self._is_last(state)
    if role == 'solo':
      after = dataclasses.replace(
          after, turn=state.turn + 1, report=prompts.Report(program))
    return self._end_step(
        after, role, terms, {'improvement': improvement}, outcome,
        team_reward=improvement, done=done, truncated=done,
        program_runs=len(grade.results))

  def _test(self, state: State, action: str) -> env_api.Step:
    """Takes cases, grades them, and runs the coder's program on them."""
    written = cases_lib.parse(action, state.problem)
    usable = {}
    for case in written:
      if case is not None and not cases_lib.is_worthless(case, state.problem):
        usable.setdefault(cases_lib.spelling(case, state.problem), case)
    usable = list(usable.values())
    terms, results = self._grade_cases(state.problem, usable, len(written))
    outcome = _Outcome.OK
    if not any(written):
      outcome = _Outcome.PARSE_ERROR
    elif not usable:
      outcome = _Outcome.NO_EFFECT
    elif terms.get('valid') == 0.0:
      outcome = _Outcome.ILLEGAL_ACTION
    mismatches = ()
    if state.program and usable:
      grade = grading.grade(
          self.sandbox, state.problem, state.program, usable)
      results = [*results, *grade.results]
      mismatches = _find_mismatches(state.problem, usable, grade)
    elif usable:
      mismatches = tuple(
          _make_mismatch(state.problem, case, 'no program') for case in usable)
    if grading.any_failed(results):
      outcome = _Outcome.INFRASTRUCTURE
    agree = bool(usable) and not mismatches
    done = agree or self._is_last(state)
    after = dataclasses.replace(
        state, turn=state.turn + 1, report=prompts.Report(
            state.program, len(usable), mismatches))
    return self._end_step(
        after, 'tester', terms, {}, outcome, team_reward=0.0, done=done,
        truncated=not agree, program_runs=len(results))

  def _grade_cases(
      self, problem: problems.Problem, usable: Sequence[problems.Case],
      num_written: int
  ) -> tuple[dict[str, float], list[sandbox_lib.ProgramResult]]:
    """The tester's terms, by two runs of the reference on each case."""
    if not problem.reference:
      return {}, []
    terms = {'valid': 0.0, 'correct': 0.0}
    if not usable:
      return terms, []
    first, second = (
        grading.grade(self.sandbox, problem, problem.reference, usable)
        for _ in range(2))
    num_valid = num_correct = 0
    for one, other, is_right in zip(
        first.results, second.results, first.passed):
      if one.status is other.status is grading.Status.OK and (
          _said(problem, one) == _said(problem, other)):
        num_valid += 1
        num_correct += is_right
    return {
        'valid': num_valid / num_written, 'correct': num_correct / num_written
    }, [*first.results, *second.results]

  def _is_last(self, state: State) -> bool:
    return state.turn + 1 >= self.max_turns

  def _end_step(
      self, state: State, role: str, terms: Mapping[str, float],
      team_terms: Mapping[str, float], outcome: _Outcome, *,
      team_reward: float, done: bool, truncated: bool,
      program_runs: int) -> env_api.Step:
    """A step; `truncated` says that it ends, if it does, by its turns."""
    success = done and state.share == 1.0
    return env_api.Step(
        state=state, team_reward=team_reward,
        local_rewards={role: sum(
            self.weights.get(name, 0.0) * x for name, x in terms.items())},
        reward_terms={**team_terms, **terms}, done=done, success=success,
        truncated=done and truncated and not success,
        outcomes={role: outcome}, program_runs=program_runs)


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> Contest:
  """The environment that a config describes.

  Args:
    team: one of `TEAMS`.
    max_turns: turns before an episode is truncated.
    reward: one of `rewards.REWARDS`.
    sandbox: runs programs.
  """
  for name, value, known in (
      ('team', team, TEAMS), ('reward', reward, rewards.REWARDS)):
    if value not in known:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(known)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')
  return Contest(TEAMS[team], rewards.REWARDS[reward], sandbox, max_turns)


def _is_silent(result: sandbox_lib.ProgramResult) -> bool:
  """A program that ended well and said nothing."""
  return (
      result.status is grading.Status.OK and not result.stdout.strip()
      and getattr(result, 'value', None) is None)


def _said(problem: problems.Problem, result: sandbox_lib.ProgramResult):
  return result.value if problem.entry_point else result.stdout


def _find_mismatches(
    problem: problems.Problem, cases: Sequence[problems.Case],
    grade: grading.Grade) -> tuple[prompts.Mismatch, ...]:
  found = []
  for index, case in enumerate(cases):
    if grade.passed[index]:
      continue
    got = 'not run: it took too long before'
    if index < len(grade.results):
      result = grade.results[index]
      if result.status is grading.Status.OK:
        got = cases_lib.show_output(problem, _said(problem, result))
      else:
        got = grading.last_line(result.stderr) or result.status.value
    found.append(_make_mismatch(problem, case, got))
  return tuple(found)


def _make_mismatch(
    problem: problems.Problem, case: problems.Case,
    got: str) -> prompts.Mismatch:
  return prompts.Mismatch(*(
      text_lib.shorten(text, prompts.SHOWN_TEXT) for text in (
          cases_lib.show_input(problem, case.input),
          cases_lib.show_output(problem, case.answers[0]), got)))
