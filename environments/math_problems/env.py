"""A team solves mathematical problems (AT-GRPO, arXiv 2510.11062, section 5).

Teams:

  pair  A *tool* agent writes a program. Then a *reasoner* sees the program and
        its output and answers in a box. From the second turn on, both see the
        attempts of the previous turn and all earlier answers.
  solo  One agent answers in a box. In later turns it sees its own answers.
  tool  The tool agent alone, with the prompts of a pair. The output of its
        program is the answer.

The answer of a program is the last line that it prints. An episode ends when
the reasoner's answer equals the program's answer of the same turn (one agent:
its answer of the previous turn), or when the turns run out. `success` means
that the last answer of the role that acts last equals the gold answer;
agreement alone is no success. `rewards.py` defines the rewards, `grader.py`
compares answers.

An action has the first outcome that applies: INFRASTRUCTURE if the sandbox or
the grader failed; the failure of the program; TIMEOUT for an answer that could
not be graded; PARSE_ERROR without a program, a printed number or a box; OK.

Deviations from the authors' code: the reasoner sees the program of the same
turn; math-verify gets the gold answer first; the checker's term is paid once
and not twice; the tool is paid for its own answer only; output on stderr is no
failure. Deviation from the paper: integers and fractions must be equal exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.math_problems import grader
from environments.math_problems import notation
from environments.math_problems import prompts
from environments.math_problems import rewards

# Team -> roles in the order they act; the last one decides.
TEAMS = {
    'pair': ('tool', 'reasoner'), 'solo': ('solo',), 'tool': ('tool',)}

_MAX_LINE = 200  # Letters; a longer line is not read as a number.
_VERDICT_OUTCOMES = {
    grader.Verdict.CUT_OFF: env_api.Outcome.TIMEOUT,
    grader.Verdict.FAILED: env_api.Outcome.INFRASTRUCTURE,
}


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps.

  `gold` is the correct answer, which no prompt contains. `turn` counts finished
  turns.
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
  sandbox: sandbox_lib.Sandbox | None  # None if no role writes programs.
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
      return self._run_program(state, action)
    return self._read_box(state, role, action)

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

  def _run_program(self, state: State, action: str) -> env_api.Step:
    """Step of the tool."""
    terms = dict.fromkeys(('ran', 'printed', 'output_right'), 0.0)
    program = text_lib.last_program(action)
    if not (program or '').strip():
      return self._end_step(
          state, prompts.Attempt('tool', None), terms,
          env_api.Outcome.PARSE_ERROR)
    result = self.sandbox.run(program)
    outcome, answer, error = env_api.STATUS_TO_OUTCOME[result.status], None, ''
    if outcome is env_api.Outcome.OK:
      answer = printed_answer(result.stdout)
      terms['ran'] = float(bool(result.stdout.strip()))
      terms['printed'] = float(
          answer is not None and len(answer) <= _MAX_LINE
          and notation.is_number(answer))
      if not terms['printed']:
        outcome = env_api.Outcome.PARSE_ERROR
      verdict = _grade(answer, state.gold)
      terms['output_right'] = float(verdict is grader.Verdict.EQUAL)
      outcome = _VERDICT_OUTCOMES.get(verdict, outcome)
    else:
      error = result.stderr.strip().rsplit('\n', 1)[-1] or result.status.value
    return self._end_step(
        state, prompts.Attempt(
            'tool', answer, text=program, output=result.stdout, error=error),
        terms, outcome, is_correct=bool(terms['output_right']), program_runs=1)

  def _read_box(self, state: State, role: str, action: str) -> env_api.Step:
    """Step of a role that answers in a box."""
    answer = (text_lib.last_boxed(action) or '').strip() or None
    verdict = _grade(answer, state.gold)
    is_correct = verdict is grader.Verdict.EQUAL
    terms = {'boxed': float(answer is not None), 'right': float(is_correct)}
    outcome = _VERDICT_OUTCOMES.get(
        verdict, env_api.Outcome.PARSE_ERROR if answer is None
        else env_api.Outcome.OK)
    return self._end_step(
        state, prompts.Attempt(role, answer, text=text_lib.reply(action)),
        terms, outcome, is_correct=is_correct)

  def _end_step(
      self, state: State, attempt: prompts.Attempt, terms: dict[str, float],
      outcome: env_api.Outcome, *, is_correct: bool = False,
      program_runs: int = 0) -> env_api.Step:
    """Computes the rewards; the last role also ends the turn."""
    role = attempt.role
    quality = sum(
        weight * terms[name] for name, weight in self.weights[role].items())
    previous = [x.quality for x in state.attempts if x.role == role]
    turn, done, agreed = state.turn, False, False
    if role == self.roles[-1]:
      turn += 1
      # The last attempt is the tool's of this turn or, for one agent, its own
      # of the previous turn.
      agreement = _grade(
          attempt.answer, state.attempts[-1].answer if state.attempts else None)
      if agreement is grader.Verdict.FAILED:
        outcome = env_api.Outcome.INFRASTRUCTURE
      agreed = agreement is grader.Verdict.EQUAL
      done = agreed or turn >= self.max_turns
      terms = {'solved': float(done and is_correct), **terms}
    success = done and is_correct
    attempt = dataclasses.replace(attempt, quality=quality)
    return env_api.Step(
        state=dataclasses.replace(
            state, turn=turn, attempts=(*state.attempts, attempt)),
        team_reward=float(success),
        local_rewards={role: quality - (previous[-1] if previous else 0.0)},
        reward_terms=terms, done=done, success=success,
        truncated=done and not agreed and not success,
        outcomes={role: outcome}, program_runs=program_runs)


def printed_answer(output: str) -> str | None:
  """Returns the last non-blank line as mathematics, or None.

  The brackets of a list or set are dropped, and `Fraction(1, 2)` becomes 1/2.
  """
  line = output.rstrip().rpartition('\n')[2].strip()
  line = re.sub(r'Fraction\((-?\d+), (\d+)\)', r'\1/\2', line)
  line = line.replace('**', '^')
  bracketed = re.fullmatch(r'[\[{](.*)[\]}]', line)
  return (bracketed[1] if bracketed else line) or None


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None,
    program_seconds: float = 20.0) -> Mathematics:
  """Builds the environment from `config.environment`.

  Args:
    team: one of `TEAMS`.
    max_turns: turns before an episode is truncated.
    reward: one of `rewards.REWARDS`.
    sandbox: runs the programs of tools.
    program_seconds: CPU time of a program. The wall-clock limit is 1.5 times
      as long, for machines under load.
  """
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, rewards.REWARDS))
  grader.check_installed()
  if sandbox is not None:
    sandbox = dataclasses.replace(sandbox, limits=sandbox.limits._replace(
        cpu_seconds=program_seconds, wall_seconds=1.5 * program_seconds))
  return Mathematics(TEAMS[team], rewards.REWARDS[reward], sandbox, max_turns)


def _grade(answer: str | None, other: str | None) -> grader.Verdict:
  if answer is None or other is None:
    return grader.Verdict.DIFFERENT
  return grader.grade(answer, other)
