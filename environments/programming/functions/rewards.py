"""Reward of a helper and the function that uses it.

The graded reward of MAGRPO's coding tasks (arXiv 2508.04652 and its released
code), in points:

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

Deviations from the released code:

1. Asserts run in another process (`environments.programming.checks`). Asserts
   in loops, over several lines, and on variables count; the released code drops
   or fails them.
2. The deduction for an ignored value works; the pattern of the released code
   never matches. A value bound to a name that is never read is ignored, too.
3. The program can call everything that the prompt defines.
4. After a batch with the third timeout the remaining calls are not made, and
   their asserts fail. A call may take 3 s instead of 10 s.
"""

from __future__ import annotations

import dataclasses

from environments.programming import checks
from environments.programming.functions import source

MAX_TOTAL = {'pair': 4.0, 'pipeline': 4.0, 'solo': 2.1}


@dataclasses.dataclass(frozen=True)
class Scores:
  """Points of each term, and the level at which scoring stopped."""

  structure: float = 0.0  # 0 to 1.
  syntax: float = 0.0  # 0 or 0.5.
  tests: float = 0.0  # 0 to 1.
  cooperation: float = 0.0  # 0 to 1.5.
  stopped: str = ''  # 'structure', 'syntax', or '' if all levels were scored.

  @property
  def terms(self) -> dict[str, float]:
    terms = dataclasses.asdict(self)
    del terms['stopped']
    return terms

  @property
  def total(self) -> float:
    return sum(self.terms.values())


def score_text(aux: str, main: str, program: str) -> Scores:
  """Scores levels 1 and 2.

  Args:
    aux: source of the function `aux`, or ''.
    main: source of the main function, or ''.
    program: both, after the imports.
  """
  structure = 0.4 * (aux != '' and source.has_return(aux))
  if not main or not source.has_return(main):
    return Scores(structure, stopped='structure')
  structure += 0.6
  if source.syntax_error(program):
    return Scores(structure, stopped='syntax')
  return Scores(structure, 0.5)


def score_tests(
    scores: Scores, aux: str, main: str, verdict: checks.Verdict) -> Scores:
  """Adds levels 3 and 4."""
  cooperation = 0.0
  if verdict.pass_rate > 0 and aux and source.calls_aux(main):
    cooperation = (
        0.5 + 1.0 * (not source.is_wrapper(main))
        - 0.5 * source.ignores_aux(main))
  return dataclasses.replace(
      scores, tests=verdict.pass_rate, cooperation=cooperation)
