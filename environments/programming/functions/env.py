"""Two agents write one program: a helper and the function that uses it.

MAGRPO's coding tasks (arXiv 2508.04652): problems of HumanEval, CoopHumanEval
and MBPP, whose tests are code.

Teams:

  pair      An *aux* agent writes a function `aux` and a *main* agent writes
            the requested function, in one phase: neither sees the other's.
  pipeline  Main sees the function aux of the same turn.
  discussion
            A pair with two turns. In the second turn, which alone is paid, each
            agent sees the other's function and revises its own.
  solo      One agent writes the requested function.

Every turn of the other teams is paid, and feedback follows it (`prompts.py`).
An episode always has `max_turns` turns, because ending early would forgo the
rewards of further turns. `success` means that all tests pass in the last turn.

The reward has four terms, in points:

  level  term         points    condition
  1      structure    0.4       `aux` exists and has a return statement
                      0.6       the main function exists and has one; otherwise
                                scoring stops
  2      syntax       0.5       imports of the prompt, aux and main are Python;
                                otherwise scoring stops
  3      tests        0 to 1    fraction of asserts that hold
  4      cooperation  0.5       main calls aux
                      +1.0      and does more than return its value
                      -0.5      but ignores the value of a call
                                (all only if aux exists and an assert holds)

The team's reward is the sum divided by its maximum: 4, or 2.1 for one agent,
which writes no aux. Roles have no rewards of their own.

An action without the function is a PARSE_ERROR, and a function that is not
Python is a PROGRAM_ERROR. Otherwise the outcome of main and solo is the first
failure of a call.

Combinations of equal functions share one verdict. `program_runs` counts its
runs for each of them.

Deviations from the released code:

1. Asserts run in another process (`environments.programming.checks`), with 3 s
   per call instead of 10 s. Asserts in loops, over several lines, and on
   variables count; the released code drops or fails them.
2. The deduction for an ignored value works; the pattern of the released code
   never matches. A value bound to a name that is never read is ignored, too.
3. The program can call everything that the prompt defines.
4. There is one kind of feedback, the most detailed of four.
5. A main function that defines an aux of its own does not cooperate. In a trial
   with Qwen2.5-Coder-0.5B, such functions earned the cooperation's points.
"""

from collections.abc import Mapping
import dataclasses
import functools

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import prompts
from environments.programming.functions import source

# Team -> phases.
TEAMS = {
    'pair': (('aux', 'main'),), 'pipeline': (('aux',), ('main',)),
    'discussion': (('aux', 'main'),), 'solo': (('solo',),)}
MAX_POINTS = {'pair': 4.0, 'pipeline': 4.0, 'discussion': 4.0, 'solo': 2.1}


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps."""

  # Prompts show only the tests that feedback reports.
  problem: problems.Problem
  turn: int = 0  # Number of finished turns.
  # Replies and feedback of these turns, of all roles.
  exchanges: tuple[prompts.Exchange, ...] = ()
  # The reply of `aux` between the phases of a pipeline, otherwise None.
  aux: str | None = None


@dataclasses.dataclass(frozen=True)
class Functions:
  """The environment; see `environments.env_api.Environment`."""

  team: str
  max_turns: int
  sandbox: sandbox_lib.Sandbox | None
  feedback_tests: int
  example: bool

  team_reward_range = (0.0, 1.0)

  @property
  def roles(self) -> tuple[str, ...]:
    return tuple(role for phase in self.phases for role in phase)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return TEAMS[self.team]

  def reset(self, task: env_api.Task) -> State:
    problem = problems.from_task(task)
    if problem.comparison != 'check':
      raise ValueError(
          f'the tests of {problem.task_id} are not code, so it cannot be '
          'played here; use environments.programming.contests.env')
    sandbox_lib.check_given(self.sandbox, 'agents')
    return State(problem)

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    aux = None
    if self.team == 'pipeline' and role == 'main' and state.aux is not None:
      aux = source.find_function(state.aux, source.AUX)
    return prompts.messages(
        role, self.team, state.problem, state.exchanges, aux, self.example)

  def show(self, state: State) -> dict[str, str]:
    shown = {'problem': state.problem.statement}
    if state.aux is not None:
      shown['aux'] = text_lib.shorten(state.aux, prompts.SHOWN_REPLY)
    for number, exchange in enumerate(state.exchanges):
      turn = number // len(self.roles) + 1
      shown[f'turn {turn}, {exchange.role}'] = exchange.reply
      shown[f'turn {turn}, {exchange.role}: feedback'] = exchange.feedback
    return shown

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    problem = state.problem
    replies = dict(actions)
    if state.aux is not None:
      replies = {'aux': state.aux, **replies}
    functions = {
        role: source.find_function(
            reply, source.AUX if role == 'aux' else problem.entry_point)
        for role, reply in replies.items()}
    outcomes = {role: _text_outcome(functions[role]) for role in actions}
    if self.team == 'pipeline' and 'aux' in actions:
      return _unpaid_step(
          dataclasses.replace(state, aux=actions['aux']), outcomes)
    aux = functions.pop('aux', '')
    (writer, main), = functions.items()
    if self.team == 'discussion' and not state.turn:
      return _unpaid_step(_end_turn(state, replies, {
          'aux': prompts.discussion(source.AUX, problem.entry_point, main),
          'main': prompts.discussion(problem.entry_point, source.AUX, aux),
      }), outcomes)
    imports = source.find_imports(f'{problem.preamble}\n{problem.statement}')
    program = '\n\n'.join(filter(None, (imports, aux, main))) + '\n'
    terms, verdict = self._score(problem, aux, main, program)
    if verdict is not None:
      outcomes[writer] = env_api.STATUS_TO_OUTCOME[verdict.status]
      if verdict.status is sandbox_lib.Status.INFRASTRUCTURE:
        outcomes = dict.fromkeys(actions, env_api.Outcome.INFRASTRUCTURE)
    after = _end_turn(state, replies, {
        role: prompts.feedback(
            role, problem.entry_point, aux, main, program, verdict,
            self.feedback_tests)
        for role in replies})
    done = after.turn >= self.max_turns
    success = done and verdict is not None and verdict.passed
    return env_api.Step(
        state=after, team_reward=sum(terms.values()) / MAX_POINTS[self.team],
        local_rewards=dict.fromkeys(actions, 0.0), reward_terms=terms,
        done=done, success=success, truncated=done and not success,
        outcomes=outcomes,
        program_runs=verdict.program_runs if verdict else 0)

  def _score(
      self, problem: problems.Problem, aux: str, main: str, program: str
  ) -> tuple[dict[str, float], checks.Verdict | None]:
    """Returns the terms, and the verdict if the tests ran."""
    terms = {'structure': 0.0, 'syntax': 0.0, 'tests': 0.0, 'cooperation': 0.0}
    if source.has_return(aux):
      terms['structure'] = 0.4
    if not source.has_return(main):
      return terms, None
    terms['structure'] += 0.6
    if source.syntax_error(program):
      return terms, None
    terms['syntax'] = 0.5
    verdict = _check(self.sandbox, problem, program)
    if verdict.status is sandbox_lib.Status.INFRASTRUCTURE:
      _check.cache_clear()  # A repeated step runs the program again.
    terms['tests'] = verdict.pass_rate
    if verdict.pass_rate > 0 and aux and source.calls_aux(main):
      terms['cooperation'] = (
          0.5 + 1.0 * (not source.is_wrapper(main))
          - 0.5 * source.ignores_aux(main))
    return terms, verdict


@functools.lru_cache(maxsize=128)
def _check(
    sandbox: sandbox_lib.Sandbox, problem: problems.Problem,
    program: str) -> checks.Verdict:
  return checks.check(sandbox, problem, program)


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, feedback_tests: int = 1,
    example: bool = False) -> Functions:
  """Builds the environment; feedback reports `feedback_tests` asserts.

  0 reports all asserts. With `example`, prompts show a solved problem, without
  which models of 0.5 billion parameters rarely call a helper. `team` is one of
  `TEAMS`; a discussion has 2 turns.
  """
  env_api.check_options(max_turns, team=(team, TEAMS))
  if reward != 'outcome':
    raise ValueError(
        f"environment.reward={reward!r} must be 'outcome': the team is paid as "
        'a whole, and roles have no reward terms.')
  if team == 'discussion':
    max_turns = 2
  return Functions(team, max_turns, sandbox, feedback_tests, example)


def _unpaid_step(
    state: State, outcomes: Mapping[str, env_api.Outcome]) -> env_api.Step:
  return env_api.Step(
      state=state, team_reward=0.0, done=False, outcomes=outcomes,
      local_rewards=dict.fromkeys(outcomes, 0.0))


def _end_turn(
    state: State, replies: Mapping[str, str],
    feedback: Mapping[str, str]) -> State:
  """Returns the state with the replies of a turn, and feedback on each."""
  exchanges = tuple(
      prompts.Exchange(
          role, text_lib.shorten(
              text_lib.reply(reply).strip(), prompts.SHOWN_REPLY),
          feedback[role])
      for role, reply in replies.items())
  return State(
      state.problem, state.turn + 1, (*state.exchanges, *exchanges))


def _text_outcome(function: str) -> env_api.Outcome:
  if not function:
    return env_api.Outcome.PARSE_ERROR
  if source.syntax_error(function):
    return env_api.Outcome.PROGRAM_ERROR
  return env_api.Outcome.OK
