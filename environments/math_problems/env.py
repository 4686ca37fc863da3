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
agreement alone is no success. `grader.py` compares answers.

Reward terms, all 0 or 1 (`reward_terms` logs them before weighting):

  name          role       1 if                                   computed from
  solved        team       the episode ends with a correct        the checker
                           answer of the role that acts last
  boxed         reasoner   there is a box that is neither empty   the text
                           nor the example of the prompt
  right         reasoner   the boxed answer is correct            the checker
  ran           tool       the program ended without an error     the run
                           and printed something
  printed       tool       the last printed line is a number or   the run
                           several numbers
  output_right  tool       the last printed line is correct       the checker

The team's term is paid once, when the episode ends. No term is an oracle.

The *quality* of an action, from 0 to 1, is the weighted sum of its role's
terms, which is the paper's local reward. A role is paid its change
(`env_api.pay_change`), so late answers and disagreement earn nothing, and an
empty action has the minimum, 0.

Presets (`REWARDS`): `mixed` has the weights of the paper. With `outcome` only
the team's checker pays, so a step that does not end the episode has no
immediate reward; environments/boards/board_game.py lists return types that
include later rewards.

An action has the first outcome that applies: INFRASTRUCTURE if the sandbox or
the grader failed; the failure of the program; TIMEOUT for an answer that could
not be graded; PARSE_ERROR without a program, a printed number or a box; OK.

Deviations from the authors' code: the reasoner sees the program of the same
turn; math-verify gets the gold answer first; the checker's term is paid once
and not twice; the tool is paid for its own answer only; output on stderr is no
failure. Deviation from the paper: integers and fractions must be equal exactly.
"""

from collections.abc import Mapping
import dataclasses
import re

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.math_problems import grader
from environments.math_problems import notation

# Team -> roles in the order they act; the last one decides.
TEAMS = {
    'pair': ('tool', 'reasoner'), 'solo': ('solo',), 'tool': ('tool',)}

_REASONER_WEIGHTS = {'boxed': 0.2, 'right': 0.8}
# Preset -> role -> weights of its terms.
REWARDS = {
    'mixed': {
        'tool': {'ran': 0.1, 'printed': 0.1, 'output_right': 0.8},
        'reasoner': _REASONER_WEIGHTS, 'solo': _REASONER_WEIGHTS},
    'outcome': {'tool': {}, 'reasoner': {}, 'solo': {}},
}

# Bytes in prompts. Turns before the previous one are shown by their answers.
MAX_PROGRAM_BYTES, MAX_OUTPUT_BYTES, MAX_ERROR_BYTES = 1500, 400, 200
MAX_REASONING_BYTES, MAX_ANSWER_BYTES = 1000, 100

_BOX = (
    'Put your final answer into \\boxed{}; separate several values by commas.')
SYSTEM_MESSAGES = {
    'tool': (
        'You are the tool agent of a team that solves a problem. Write one '
        'Python program in a ```python block that computes the answer and '
        'prints it, and nothing else, on its last line. The reasoner sees its '
        'output.'),
    'reasoner': (
        'You are the reasoner of a team that solves a problem. The tool agent '
        'wrote a program. Check its output, and decide yourself. ' + _BOX),
    'solo': 'Solve the problem. ' + _BOX,
}
# With the option `request`, prompts end with these.
_EXAMPLE = 'X'
_ANSWER_REQUEST = (
    f'End your reply with "The answer is \\boxed{{{_EXAMPLE}}}.", where '
    f'{_EXAMPLE} is the answer.')
_REQUESTS = {
    'tool': 'Write the program in a ```python block.',
    'reasoner': _ANSWER_REQUEST,
    # Otherwise Qwen2.5-Coder-0.5B answers in nine tokens.
    'solo': f'Think step by step. {_ANSWER_REQUEST}'}
_DISAGREEMENT = (
    'The answers were not the same. Find out which is right, or find a better '
    'one.')
_SECOND_LOOK = 'Check your answer, and correct it or repeat it.'

_MAX_LINE = 200  # Characters; a longer line is not read as a number.
_VERDICT_OUTCOMES = {
    grader.Verdict.CUT_OFF: env_api.Outcome.TIMEOUT,
    grader.Verdict.FAILED: env_api.Outcome.INFRASTRUCTURE,
}


@dataclasses.dataclass(frozen=True)
class Attempt:
  """An action of a role."""

  role: str
  answer: str | None  # None if there is no box or printed line.
  text: str = ''  # The program of a tool; the reply of another role.
  output: str = ''  # Stdout of the program.
  error: str = ''  # The last line of its stderr, if the program failed.


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps."""

  task_id: str
  problem: str  # The text that every prompt contains.
  gold: str  # The correct answer, which no prompt contains.
  turn: int = 0  # Completed turns.
  attempts: tuple[Attempt, ...] = ()  # The attempts of all turns, in order.
  qualities: env_api.Qualities = ()


@dataclasses.dataclass(frozen=True)
class Mathematics(env_api.Sequential):
  """The environment; see `environments.env_api.Environment`."""

  roles: tuple[str, ...]
  weights: Mapping[str, Mapping[str, float]]
  sandbox: sandbox_lib.Sandbox | None  # None if no role writes programs.
  max_turns: int
  request: bool = False

  team_reward_range = (0.0, 1.0)

  def reset(self, task: env_api.Task) -> State:
    if 'tool' in self.roles:
      sandbox_lib.check_given(self.sandbox, 'tools')
    answer = task['answer']
    if not isinstance(answer, str) or not answer.strip():
      raise ValueError(
          f'the answer is {answer!r}; expected a text such as "42"')
    return State(task['task_id'], task['problem'], answer)

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    parts = [f'Problem:\n{state.problem}']
    num_roles = len(self.roles)
    for turn in range(state.turn):
      parts.append(f'Turn {turn + 1}:')
      describe = _report if turn == state.turn - 1 else _answer_line
      parts += map(
          describe, state.attempts[turn * num_roles:(turn + 1) * num_roles])
    if state.turn:
      parts.append(_SECOND_LOOK if num_roles == 1 else _DISAGREEMENT)
    if self.max_turns > 1:
      parts.append(f'Turn {state.turn + 1} of {self.max_turns}.')
    parts += map(_report, state.attempts[state.turn * num_roles:])
    if self.request:
      parts.append(_REQUESTS[role])
    return [
        {'role': 'system', 'content': SYSTEM_MESSAGES[role]},
        {'role': 'user', 'content': '\n'.join(parts)}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    if role == 'tool':
      return self._run_program(state, action)
    answer = (text_lib.last_boxed(action) or '').strip() or None
    # A policy that was paid for the prompt's example learned to repeat it.
    if self.request and answer == _EXAMPLE:
      answer = None
    verdict = grader.grade(answer, state.gold)
    terms = {
        'boxed': float(answer is not None),
        'right': float(verdict is grader.Verdict.EQUAL)}
    outcome = (
        env_api.Outcome.PARSE_ERROR if answer is None else env_api.Outcome.OK)
    return self._end_step(
        state, Attempt(role, answer, text=text_lib.reply(action)), terms,
        _VERDICT_OUTCOMES.get(verdict, outcome))

  def show(self, state: State) -> dict[str, str]:
    shown = {'problem': state.problem, 'gold answer': state.gold}
    for number, attempt in enumerate(state.attempts):
      turn = number // len(self.roles) + 1
      kind = 'program' if attempt.role == 'tool' else 'text'
      for name, content, limit in (
          (kind, attempt.text, MAX_PROGRAM_BYTES),
          ('output', attempt.output, MAX_OUTPUT_BYTES),
          ('error', attempt.error, MAX_ERROR_BYTES),
          ('answer', attempt.answer, MAX_ANSWER_BYTES)):
        if content:
          shown[f'turn {turn}, {attempt.role}: {name}'] = text_lib.shorten(
              content, limit)
    return shown

  def _run_program(self, state: State, action: str) -> env_api.Step:
    """Step of the tool."""
    terms = dict.fromkeys(('ran', 'printed', 'output_right'), 0.0)
    program = text_lib.last_program(action)
    if not (program or '').strip():
      return self._end_step(
          state, Attempt('tool', None), terms, env_api.Outcome.PARSE_ERROR)
    result = self.sandbox.run(program)
    outcome, answer, error = env_api.STATUS_TO_OUTCOME[result.status], None, ''
    if outcome is env_api.Outcome.OK:
      answer = _printed_answer(result.stdout)
      terms['ran'] = float(bool(result.stdout.strip()))
      terms['printed'] = float(
          answer is not None and len(answer) <= _MAX_LINE
          and notation.is_number(answer))
      if not terms['printed']:
        outcome = env_api.Outcome.PARSE_ERROR
      verdict = grader.grade(answer, state.gold)
      terms['output_right'] = float(verdict is grader.Verdict.EQUAL)
      outcome = _VERDICT_OUTCOMES.get(verdict, outcome)
    else:
      error = result.stderr.strip().rsplit('\n', 1)[-1] or result.status.value
    return self._end_step(
        state, Attempt('tool', answer, program, result.stdout, error), terms,
        outcome, program_runs=1)

  def _end_step(
      self, state: State, attempt: Attempt, terms: dict[str, float],
      outcome: env_api.Outcome, program_runs: int = 0) -> env_api.Step:
    """Computes the rewards; the last role also ends the turn."""
    role = attempt.role
    is_correct = bool(terms['output_right' if role == 'tool' else 'right'])
    reward, qualities = env_api.pay_change(state.qualities, role, sum(
        weight * terms[name] for name, weight in self.weights[role].items()))
    turn, done, agreed = state.turn, False, False
    if role == self.roles[-1]:
      turn += 1
      # The last attempt is the tool's of this turn or, for one agent, its own
      # of the previous turn.
      agreement = grader.grade(
          attempt.answer, state.attempts[-1].answer if state.attempts else None)
      if agreement is grader.Verdict.FAILED:
        outcome = env_api.Outcome.INFRASTRUCTURE
      agreed = agreement is grader.Verdict.EQUAL
      done = agreed or turn >= self.max_turns
      terms = {'solved': float(done and is_correct), **terms}
    success = done and is_correct
    return env_api.Step(
        state=dataclasses.replace(
            state, turn=turn, attempts=(*state.attempts, attempt),
            qualities=qualities),
        team_reward=float(success), local_rewards={role: reward},
        reward_terms=terms, done=done, success=success,
        truncated=done and not agreed and not success,
        outcomes={role: outcome}, program_runs=program_runs)


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None,
    program_seconds: float = 20.0, request: bool = False) -> Mathematics:
  """Builds the environment; `team` is in `TEAMS`, `reward` in `REWARDS`.

  `program_seconds` limits the CPU time of a program. The wall-clock limit is
  1.5 times as long, for machines under load. With `request`, each prompt ends
  with what its role must write, which helps small models.
  """
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  grader.check_installed()
  if sandbox is not None:
    sandbox = dataclasses.replace(sandbox, limits=sandbox.limits._replace(
        cpu_seconds=program_seconds, wall_seconds=1.5 * program_seconds))
  return Mathematics(
      TEAMS[team], REWARDS[reward], sandbox, max_turns, request)


_PRINTED = (
    (r'Fraction\((-?\d+), (\d+)\)', r'\1/\2'),
    (r'\*\*', '^'),
    (r'\bexp\(([^()]*)\)', r'e^{\1}'),
    (r'\blog\(', r'\\ln('),
    (r'\b(sin|cos|tan)\(', r'\\\1('), (r'\ba(sin|cos|tan)\(', r'\\arc\1('),
    (r'\boo\b', r'\\infty'),
    (r'(?<![\w.])[EI]\b', lambda match: match[0].lower()),
    (r'(?<=\d)j\b', 'i'))


def _printed_answer(output: str) -> str | None:
  """Returns the last non-blank line as mathematics, or None.

  The brackets of a list or set are dropped. Frequent values of `fractions` and
  SymPy are written in LaTeX.
  """
  line = output.rstrip().rpartition('\n')[2].strip()
  for pattern, new in _PRINTED:
    line = re.sub(pattern, new, line)
  is_list = notation.brackets(line) == ('[', ']') or re.fullmatch(
      r'\{[^{}]*\}', line)
  return (line[1:-1] if is_list else line) or None


def _answer_line(attempt: Attempt) -> str:
  subject = ('program printed' if attempt.role == 'tool' else
             f'{attempt.role} answered')
  answer = 'nothing' if attempt.answer is None else (
      text_lib.shorten(attempt.answer, MAX_ANSWER_BYTES))
  return f'The {subject} {answer}.'


def _report(attempt: Attempt) -> str:
  if attempt.role != 'tool':
    reasoning = text_lib.shorten(attempt.text.strip(), MAX_REASONING_BYTES)
    return f'{_answer_line(attempt)}\n{reasoning}'
  if not attempt.text:
    return 'The tool agent wrote no program.'
  program = text_lib.shorten(attempt.text, MAX_PROGRAM_BYTES).rstrip()
  output = text_lib.shorten(attempt.output, MAX_OUTPUT_BYTES).rstrip()
  error = text_lib.shorten(attempt.error, MAX_ERROR_BYTES)
  failure = f'It failed: {error}\n' if error else ''
  return (
      f'Program of the tool agent:\n```python\n{program}\n```\n{failure}'
      f'Output:\n{output}')
