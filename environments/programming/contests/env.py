"""A coder and a tester solve a programming problem (AT-GRPO, section 5).

Teams:

  pair  A *coder* writes a program. Then a *tester* writes test cases without
        seeing it. From the second turn on, both see the program and the cases
        on which it disagreed in the previous turn, and write theirs again.
  solo  One agent writes a program. In later turns it sees its previous one.

The episode ends when program and cases agree, or when the turns run out. They
agree if the program gives the expected output in all cases, and the empty
program fails at least one. `success` means that the last program passes all
golden tests; agreement alone is not enough. `prompts.py` defines the grammar of
cases.

The outcome of an action is the first that applies:

  coder   PARSE_ERROR    no program
          NO_EFFECT      a program that does nothing, or the previous one again
          PROGRAM_ERROR, TIMEOUT, RESOURCE_LIMIT
                         the first failure of a smoke test
  tester  PARSE_ERROR    no readable case
          NO_EFFECT      the empty program passes all cases
          ILLEGAL_ACTION the reference solution runs on none of the cases

`reward_terms` logs these terms before weighting (arXiv 2510.11062, appendix):

  name         role    range    value
  improvement  team    -1 to 1  change of `golden` since the previous program
  compiles     coder   0 or 1   no golden test ends with a syntax or import
                                error
  smoke        coder   0 or 1   the first 3 golden tests end without an error,
                                with any output
  golden       coder   0 to 1   fraction of golden tests that the program passes
  valid        tester  0 to 1   fraction of cases on which the reference
                                solution gives the same output twice
  correct      tester  0 to 1   fraction of cases whose expected output the
                                reference solution gives

All terms are oracles: no agent sees golden tests or the reference solution. The
team's rewards of an episode add up to the pass rate of the last program. A role
is paid the change of its weighted local terms (`env_api.pay_change`). Without a
reference solution the tester's terms are not logged and pay 0.

Doing nothing earns nothing. A reply without a program submits an empty one,
which passes nothing. `compiles` and `smoke` are 0 for a program that prints
nothing or returns None. A case is wrong if the empty program passes it, or if
it repeats another case with different spacing.

Deviations from the authors' code: roles act one after another and see the
complete previous turn; golden tests decide success, and evaluation uses all of
them; the team is paid once for a golden test; the reference solution runs, so
that the tester can be paid; blocks are parsed, never evaluated; output on
stderr is no error; a failure of the sandbox is not a reward of 0.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import re

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.programming import comparisons
from environments.programming import grading
from environments.programming import problems
from environments.programming.contests import prompts

# Team -> roles in the order they act.
TEAMS = {'pair': ('coder', 'tester'), 'solo': ('solo',)}
# Preset -> weights of the local terms. With `outcome` only golden tests pay,
# and they pay the team. A tester's step then has no immediate reward, so it has
# no signal with the return `immediate`.
REWARDS = {
    'mixed': {  # As in the paper.
        'compiles': 0.1, 'smoke': 0.1, 'golden': 0.8, 'valid': 0.2,
        'correct': 0.8},
    'outcome': {},
}
_SMOKE_TESTS = 3

_Outcome = env_api.Outcome
_OK = sandbox_lib.Status.OK
_DOES_NOT_COMPILE = re.compile(
    r'(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)'
    r'\b')


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps."""

  problem: problems.Problem  # No prompt shows its golden tests.
  turn: int = 0  # Number of finished turns.
  program: str = ''  # The coder's last program, or ''.
  pass_rate: float = 0.0  # Fraction of golden tests that the program passes.
  # Describes the previous turn, or None in the first.
  report: prompts.Report | None = None
  # Role -> weighted local terms of its last action.
  qualities: env_api.Qualities = ()


@dataclasses.dataclass(frozen=True)
class Contest(env_api.Sequential):
  """The environment; see `environments.env_api.Environment`."""

  roles: tuple[str, ...]
  weights: Mapping[str, float]
  sandbox: sandbox_lib.Sandbox | None
  max_turns: int

  team_reward_range = (-1.0, 1.0)  # Per step; an episode adds up to 0 to 1.

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
          'golden tests passed': f'{state.pass_rate:.1%}'}
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
    """Grades the program of a reply."""
    program = text_lib.last_program(action) or ''
    tests = state.problem.cases
    grade = grading.grade(self.sandbox, state.problem, program, tests)
    smoke = grade.results[:_SMOKE_TESTS]
    has_effect = bool(program) and (
        grade.pass_rate > 0 or not all(map(_is_silent, smoke)))
    terms = {
        'improvement': grade.pass_rate - state.pass_rate, 'compiles': 0.0,
        'smoke': 0.0, 'golden': grade.pass_rate}
    if has_effect:
      terms['compiles'] = float(not any(
          _DOES_NOT_COMPILE.match(grading.last_line(result.stderr))
          for result in grade.results))
      terms['smoke'] = float(
          len(smoke) == min(_SMOKE_TESTS, len(tests))
          and all(result.status is _OK for result in smoke))
    if grading.any_failed(grade.results):
      outcome = _Outcome.INFRASTRUCTURE
    elif not program:
      outcome = _Outcome.PARSE_ERROR
    elif not has_effect or program == state.program:
      outcome = _Outcome.NO_EFFECT
    else:
      outcome = env_api.STATUS_TO_OUTCOME[next(
          (x.status for x in smoke if x.status is not _OK), _OK)]
    after = dataclasses.replace(
        state, program=program, pass_rate=grade.pass_rate)
    if role == 'solo':
      after = dataclasses.replace(
          after, turn=state.turn + 1, report=prompts.Report(program))
    return self._make_step(
        after, role, terms, outcome, done=after.turn >= self.max_turns,
        program_runs=len(grade.results))

  def _test(self, state: State, action: str) -> env_api.Step:
    """Grades the cases of a reply and runs the coder's program on them."""
    problem = state.problem
    written = prompts.parse_cases(action, problem)
    usable = {}
    for case in written:
      if case is not None and not prompts.is_worthless(case, problem):
        usable.setdefault(prompts.normalize_case(case, problem), case)
    usable = list(usable.values())
    terms, results = self._grade_cases(problem, usable, len(written))
    outcome = _Outcome.OK
    if not any(written):
      outcome = _Outcome.PARSE_ERROR
    elif not usable:
      outcome = _Outcome.NO_EFFECT
    elif terms.get('valid') == 0.0:
      outcome = _Outcome.ILLEGAL_ACTION
    grade = grading.grade(self.sandbox, problem, state.program, usable)
    results = [*results, *grade.results]
    mismatches = tuple(
        prompts.make_mismatch(case, problem, _describe_run(
            problem, grade, index) if state.program else 'no program')
        for index, case in enumerate(usable) if not grade.passed[index])
    if grading.any_failed(results):
      outcome = _Outcome.INFRASTRUCTURE
    agree = bool(usable) and not mismatches
    after = dataclasses.replace(
        state, turn=state.turn + 1, report=prompts.Report(
            state.program, len(usable), mismatches))
    return self._make_step(
        after, 'tester', terms, outcome, agree=agree,
        done=agree or after.turn >= self.max_turns, program_runs=len(results))

  def _grade_cases(
      self, problem: problems.Problem, usable: Sequence[problems.Case],
      num_written: int
  ) -> tuple[dict[str, float], list[sandbox_lib.ProgramResult]]:
    """Returns the tester's terms, from two runs of the reference per case."""
    if not problem.reference:
      return {}, []
    num_written = max(1, num_written)
    first, second = (
        grading.grade(self.sandbox, problem, problem.reference, usable)
        for _ in range(2))
    is_valid = [
        a.status is b.status is _OK
        and comparisons.same_value(
            grading.output(problem, a), grading.output(problem, b))
        for a, b in zip(first.results, second.results)]
    num_correct = sum(
        valid and passed for valid, passed in zip(is_valid, first.passed))
    return {
        'valid': sum(is_valid) / num_written,
        'correct': num_correct / num_written,
    }, [*first.results, *second.results]

  def _make_step(
      self, state: State, role: str, terms: Mapping[str, float],
      outcome: _Outcome, *, done: bool, agree: bool = False,
      program_runs: int) -> env_api.Step:
    success = done and state.pass_rate == 1.0
    reward, qualities = env_api.pay_change(state.qualities, role, sum(
        self.weights.get(name, 0.0) * x for name, x in terms.items()))
    return env_api.Step(
        state=dataclasses.replace(state, qualities=qualities),
        team_reward=terms.get('improvement', 0.0), local_rewards={role: reward},
        reward_terms=terms, done=done, success=success,
        truncated=done and not agree and not success,
        outcomes={role: outcome}, program_runs=program_runs)


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None) -> Contest:
  """Builds the environment; `team` is in `TEAMS`, `reward` in `REWARDS`."""
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  return Contest(TEAMS[team], REWARDS[reward], sandbox, max_turns)


def _is_silent(result: sandbox_lib.ProgramResult) -> bool:
  """True if a program ended without an error and without output."""
  return (
      result.status is _OK and not result.stdout.strip()
      and getattr(result, 'value', None) is None)


def _describe_run(
    problem: problems.Problem, grade: grading.Grade, index: int) -> str:
  """Returns the output or the error of a run, for the mismatch of a case."""
  if index >= len(grade.results):
    return 'not run: it took too long before'
  result = grade.results[index]
  if result.status is not _OK:
    return grading.last_line(result.stderr) or result.status.value
  return prompts.to_json(
      result.value) if problem.entry_point else result.stdout
