"""What a helper and the function that uses it are paid for.

The graded reward of MAGRPO's coding tasks (arXiv 2508.04652 and its released
code), in its points:

  level  term         points      of
  1      structure    0.4         `aux` is there and has a return statement
                      0.6         the main function is there and has one; else
                                  scoring stops
  2      syntax       0.5         imports of the prompt, aux and main are
                                  Python; else scoring stops
  3      tests        0 to 1      share of the asserts that hold
  4      cooperation  0.5         main calls aux
                      1.0 more    and does more than to hand on its value
                      -0.5        but ignores the value of a call
                                  (if an assert holds and aux is there)

The team's reward is their sum divided by the most that can be reached, 4; of an
agent alone, which writes no aux, 2.1. Nothing else pays anybody.

Deviations from the released code:

1. Asserts run apart from the program (`environments.programming.checks`). Those
   in loops, of several lines, and of variables count, too; there they are left
   out or fail.
2. The deduction for an ignored value does fire; there its pattern is never met.
   A value that is bound to a name that nobody reads is ignored, too.
3. What the prompt defines beside the function can be called.
4. After three calls that take too long, counted in parts, the others are not
   made, and their asserts do not hold. A call may take 3 s and not 10.
"""

from __future__ import annotations

import dataclasses

from environments.programming import checks
from environments.programming.functions import source

MAX_TOTAL = {'pair': 4.0, 'pipeline': 4.0, 'solo': 2.1}


@dataclasses.dataclass(frozen=True)
class Scores:
  """Points of each term, and the level where scoring stopped.

  Attributes:
    structure: 0 to 1.
    syntax: 0 or 0.5.
    tests: 0 to 1.
    cooperation: 0 to 1.5.
    stopped: 'structure', 'syntax', or '' when all levels were scored.
  """

  structure: float = 0.0
  syntax: float = 0.0
  tests: float = 0.0
  cooperation: float = 0.0
  stopped: str = ''

  @property
  def terms(self) -> dict[str, float]:
    """The points by name; their sum is the total."""
    terms = dataclasses.asdict(self)
    del terms['stopped']
    return terms

  @property
  def total(self) -> float:
    return sum(self.terms.values())


def score_text(aux: str, main: str, program: str) -> Scores:
  """The points of levels 1 and 2.

  Args:
    aux: the text of the function `aux`, or ''.
    main: that of the main function, or ''.
    program: both, behind the imports.
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
  """`scores` of the text with the points of levels 3 and 4."""
  cooperation = 0.0
  if verdict.share > 0 and aux and source.calls_aux(main):
    cooperation = (
        0.5 + 1.0 * (not source.is_wrapper(main))
        - 0.5 * source.ignores_aux(main))
  return dataclasses.replace(
      scores, tests=verdict.share, cooperation=cooperation)
