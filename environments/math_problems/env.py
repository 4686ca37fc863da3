"""A team solves mathematical problems (AT-GRPO, arXiv 2510.11062, section 5).

Teams:

  pair  A *tool* agent writes a program; a *reasoner* sees the program and its
        output, and answers in a box. Tool first, then reasoner, in every turn.
        From the second turn on both see what was done in the turn before, and
        all answers.
  solo  One agent answers in a box. In several turns it sees its answers.
  tool  The tool agent alone, told what it is told in a pair. What its program
        prints is the answer.

The answer of a program is the last line that it prints. The episode ends when
the reasoner's answer is equal to the program's of the same turn (of one agent:
to its answer of the turn before), or when the turns run out. The system's
answer is the last one of the role that acts last. `success`: that is equal to
the gold answer. Agreement alone is no success.

`rewards.py` says what a step pays, `grader.py` what is equal.

The outcome of an action is the first of these that is true: INFRASTRUCTURE,
when the sandbox or the grader failed; what became of the program, when it
failed; TIMEOUT for an answer that cannot be graded; PARSE_ERROR without a
program, a number or a box; OK.

Deviations from the authors' code: the reasoner sees the program of the same
turn; math-verify gets the gold answer first; the checker's term is paid once,
not twice, and the tool is paid for its own answer alone; a program that writes
to stderr has not failed. From the paper: integers and fractions must be equal
exactly; see also `rewards.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re

from environments import env_api
from environments import outcomes as outcomes_lib
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.math_problems import grader
from environments.math_problems import notation
from environments.math_problems import prompts
from environments.math_problems import rewards

# Team -> roles in the order they act; the last decides.
TEAMS = {
    'pair': ('tool', 'reasoner'), 'solo': ('solo',), 'tool': ('tool',)}

_MAX_LINE = 200  # Letters; a longer line is no number.
_PYTHON = (
    (re.compile(r'Fraction\((-?\d+), (\d+)\)'), r'\1/\2'),
    (re.compile(r'\*\*'), '^'),
    (re.compile(r'[\[{](.*)[\]}]'), r'\1'),  # A list or a set, as a whole.
)
_VERDICTS = {
    grader.Verdict.CUT_OFF: env_api.Outcome.TIMEOUT,
    grader.Verdict.FAILED: env_api.Outcome.INFRASTRUCTURE,
}


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps.

  Attributes:
    task_id: the task's name in its data set.
    problem: what is asked.
    gold: the right answer, which no agent is shown.
    turn: turns that are over.
    attempts: what was done, in its order.
  """

  task_id: str
  problem: str
  gold: str
  turn: int = 0
  attempts: tuple[prompts.Attempt, ...] = ()


@dataclasses.dataclass(frozen=True)
class Mathematics:
  """The environment; see `environments.env_api.Environment`."""

  roles: tuple[str, ...]
  weights: Mapping[str, Mapping[str, float]]
  sandbox: sandbox_lib.Sandbox | None  # None where no role writes programs.
  max_turns: int

  team_reward_range = (0.0, 1.0)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return tuple((role,) for role in self.roles)

  def reset(self, task: env_api.Task) -> State:
    if 'tool' in self.roles:
      sandbox_lib.check_given(self.sandbox, 'tools')
    return State(task['task_id'], task['problem'], task['answer'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    return prompts.messages(
        role, state.problem, state.turn, self.max_turns, state.attempts,
        len(self.roles))

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    if role == 'tool':
      return self._compute(state, action)
    return self._answer(state, role, action)

  def show(self, state: State) -> dict[str, str]:
    shown = {'problem': state.problem, 'gold answer': state.gold}
    for number, attempt in enumerate(state.attempts):
      turn = number // len(self.roles) + 1
      text = 'program' if attempt.role == 'tool' else 'text'
      for name, part, limit in (
          (text, attempt.text, prompts.SHOWN_PROGRAM),
          ('output', attempt.output, prompts.SHOWN_OUTPUT),
          ('error', attempt.error, prompts.SHOWN_ERROR),
          ('answer', attempt.answer, prompts.SHOWN_ANSWER)):
        if part:
          shown[f'turn {turn}, {attempt.role}: {name}'] = text_lib.shorten(
              part, limit)
    return shown

  def _compute(self, state: State, action: str) -> env_api.Step:
    """Runs the tool's program."""
    terms = dict.fromkeys(('ran', 'printed', 'output_right'), 0.0)
    program = text_lib.last_program(action)
    if not (program or '').strip():
      return self._end_step(
          state, prompts.Attempt('tool', None), terms,
          env_api.Outcome.PARSE_ERROR, right=False)
    result = self.sandbox.run(program)
    outcome, answer, error = outcomes_lib.OF_STATUS[result.status], None, ''
    if outcome is env_api.Outcome.OK:
      answer = printed_answer(result.stdout)
      terms['ran'] = float(bool(result.stdout.strip()))
      terms['printed'] = float(answer is not None and _is_number(answer))
      if not terms['printed']:
        outcome = env_api.Outcome.PARSE_ERROR
      verdict = _grade(answer, state.gold)
      terms['output_right'] = float(verdict is grader.Verdict.EQUAL)
      outcome = _VERDICTS.get(verdict, outcome)
    else:
      error = result.stderr.strip().rsplit('\n', 1)[-1] or result.status.value
    return self._end_step(
        state, prompts.Attempt(
            'tool', answer, text=program, output=result.stdout, error=error),
        terms, outcome, right=bool(terms['output_right']), program_runs=1)

  def _answer(self, state: State, role: str, action: str) -> env_api.Step:
    """Takes the answer in a box."""
    answer = (text_lib.last_boxed(action) or '').strip() or None
    verdict = _grade(answer, state.gold)
    right = verdict is grader.Verdict.EQUAL
    terms = {'boxed': float(answer is not None), 'right': float(right)}
    outcome = env_api.Outcome.OK
    if answer is None:
      outcome = env_api.Outcome.PARSE_ERROR
    outcome = _VERDICTS.get(verdict, outcome)
    return self._end_step(
        state, prompts.Attempt(role, answer, text=text_lib.reply(action)),
        terms, outcome, right=right)

  def _end_step(
      self, state: State, attempt: prompts.Attempt, terms: dict[str, float],
      outcome: env_api.Outcome, *, right: bool,
      program_runs: int = 0) -> env_api.Step:
    """Weighs the terms, and ends the turn if it is the decider's."""
    role = attempt.role
    quality = sum(
        weight * terms[name] for name, weight in self.weights[role].items())
    before = [x.quality for x in state.attempts if x.role == role]
    turn, done, agreed = state.turn, False, False
    if role == self.roles[-1]:
      turn += 1
      # With the tool's of this turn, or one agent's of the turn before.
      agreement = _grade(
          attempt.answer, state.attempts[-1].answer if state.attempts else None)
      if agreement is grader.Verdict.FAILED:
        outcome = env_api.Outcome.INFRASTRUCTURE
      agreed = agreement is grader.Verdict.EQUAL
      done = agreed or turn >= self.max_turns
      terms = {'solved': float(done and right), **terms}
    success = done and right
    return env_api.Step(
        state=dataclasses.replace(
            state, turn=turn, attempts=(
                *state.attempts, dataclasses.replace(
                    attempt, quality=quality))),
        team_reward=float(success),
        local_rewards={role: quality - (before[-1] if before else 0.0)},
        reward_terms=terms, done=done, success=success,
        truncated=done and not agreed and not success,
        outcomes={role: outcome}, program_runs=program_runs)


def printed_answer(output: str) -> str | None:
  """The last line that is not blank, as mathematics; None without any.

  A list or a set stands for its values, and `Fraction(1, 2)` for 1/2.
  """
  line = output.rstrip().rpartition('\n')[2].strip()
  for pattern, new in _PYTHON[:2]:
    line = pattern.sub(new, line)
  whole = _PYTHON[2][0].fullmatch(line)
  return (whole[1] if whole else line) or None


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None,
    program_seconds: float = 20.0) -> Mathematics:
  """The environment that a config describes.

  Args:
    team: one of `TEAMS`.
    max_turns: turns before an episode is truncated.
    reward: one of `rewards.REWARDS`.
    sandbox: runs the programs of tools.
    program_seconds: CPU time of a program. Its wall-clock time is half as much
      again, for a machine that does other work as well.
  """
  for name, value, known in (
      ('team', team, TEAMS), ('reward', reward, rewards.REWARDS)):
    if value not in known:
      raise ValueError(
          f'environment.{name}={value!r} is not one of {sorted(known)}.')
  if max_turns < 1:
    raise ValueError(
        f'environment.max_turns={max_turns}: an episode needs at least 1.')
  grader.check_installed()
  if sandbox is not None:
    sandbox = dataclasses.replace(sandbox, limits=sandbox.limits._replace(
        cpu_seconds=program_seconds, wall_seconds=1.5 * program_seconds))
  return Mathematics(TEAMS[team], rewards.REWARDS[reward], sandbox, max_turns)


def _grade(answer: str | None, other: str | None) -> grader.Verdict:
  """Whether two answers are equal, if there are two."""
  if answer is None or other is None:
    return grader.Verdict.DIFFERENT
  return grader.grade(answer, other)


def _is_number(answer: str) -> bool:
  """Whether an answer is a number, or a list or a tuple of some."""
  if len(answer) > _MAX_LINE:
    return False
  values = []
  for item in notation.items(notation.clean(answer)):
    pair = notation.tuple_of(item)
    values += pair[1] if pair else [item]
  return bool(values) and all(map(notation.number_of, values))
