"""Rewards of MAGRPO's writing tasks.

Four levels (arXiv 2508.04652 and its released code):

  level  term         points          condition or value
  1      structure    0.5             both texts have a valid number of tokens
                                      (words between blanks)
  2      ratio        0 to 1          characters of the second text / characters
                                      of the first
  3      vocabulary   0 to 0.5        different words of the second text /
                                      different words of the first
  4      transitions  0 to 0.4 x t    categories of transition words: t is 0
                                      for none, 0.4 for one, and 0.05 more for
                                      each additional one, up to 1
         jaccard      0 to 0.6        Jaccard index J of the sets of content
                                      words: min(J, cap) / cap; J of two empty
                                      sets is 1

The first three levels are gates: if the structure is wrong or a ratio is
outside its window, scoring stops and keeps the points so far. At the ends of a
window a level pays 0 and scoring continues. A word is `\\w+` in lower case.
Level 3 includes stop words; the Jaccard index excludes them.

`SPECS` has the windows of each task. The window of `arxiv_a` is in the released
docstring and in one of the released commits, the window of `arxiv_b` in another
commit with the same docstring.

Deviations from the released code:

1. The return is the points divided by the maximum, 2.98, and not by the nominal
   3, because the 12 categories give t = 0.95.
2. A first text without words stops at level 3, since its ratio is undefined.
3. The word lists are ours and are matched at word boundaries; see
   `environments.writing.transitions`.

In the paper coherence grows logarithmically with the number of categories; in
the released code and here it grows linearly.
"""

from collections.abc import Mapping
import dataclasses
import math
import re

from environments.writing import transitions
from environments.writing.posts import grammar

MAX_TOTAL = 2.98


@dataclasses.dataclass(frozen=True)
class Window:
  """1 from `low` to `high`, falling to 0 at `start` and at `end`."""

  start: float
  low: float
  high: float = math.inf
  end: float = math.inf

  def value(self, x: float) -> float | None:
    """The value in [0, 1]; None outside of the window."""
    if not self.start <= x <= self.end:
      return None
    if x < self.low:
      return (x - self.start) / (self.low - self.start)
    if x > self.high:
      return 1 - (x - self.high) / (self.end - self.high)
    return 1.0


@dataclasses.dataclass(frozen=True)
class Spec:
  """The reward of a task."""

  first_tokens: tuple[int, int]  # Minimum and maximum.
  second_tokens: tuple[int, int]
  ratio: Window
  vocabulary: Window
  jaccard_cap: float
  transitions_in_both: bool  # If False, those of the second text are scored.
  stop_words: frozenset[str] = transitions.STOP_WORDS  # No content words.


@dataclasses.dataclass(frozen=True)
class Scores:
  terms: Mapping[str, float]  # Points of each term.
  stopped: str = ''  # The level at which scoring stopped; '' for none.

  @property
  def normalised(self) -> float:
    """The return: points divided by the maximum, 0 to 1."""
    return sum(self.terms.values()) / MAX_TOTAL


_ARXIV_A = Spec(
    first_tokens=(128, 256), second_tokens=(128, 256),
    ratio=Window(0.8, 1.0, 1.3, 1.5), vocabulary=Window(0.5, 0.7, 1.3, 1.7),
    jaccard_cap=0.23, transitions_in_both=True)

_TLDR = Spec(
    first_tokens=(8, 256), second_tokens=(8, 256),
    ratio=Window(1.1, 1.6, 3.2, 5.0), vocabulary=Window(1.3, 2.0),
    jaccard_cap=0.03, transitions_in_both=False)

SPECS = {
    'tldr': _TLDR,
    'factbook': _TLDR,
    'arxiv_a': _ARXIV_A,
    'arxiv_b': dataclasses.replace(
        _ARXIV_A, ratio=Window(0.8, 1.3, 1.6, 2.0)),
    'posts': dataclasses.replace(
        _TLDR, first_tokens=(8, 40), second_tokens=(16, 100), jaccard_cap=0.4,
        stop_words=transitions.STOP_WORDS | grammar.FUNCTION_WORDS),
}


def score(first: str, second: str, spec: Spec) -> Scores:
  terms = dict.fromkeys(
      ('structure', 'ratio', 'vocabulary', 'transitions', 'jaccard'), 0.0)
  for text, (min_tokens, max_tokens) in (
      (first, spec.first_tokens), (second, spec.second_tokens)):
    if not min_tokens <= len(text.split()) <= max_tokens:
      return Scores(terms, 'structure')
  terms['structure'] = 0.5
  ratio = spec.ratio.value(len(second) / len(first))
  if ratio is None:
    return Scores(terms, 'ratio')
  terms['ratio'] = ratio
  first_words, second_words = (
      set(re.findall(r'\w+', text.lower())) for text in (first, second))
  vocabulary = None
  if first_words:
    vocabulary = spec.vocabulary.value(len(second_words) / len(first_words))
  if vocabulary is None:
    return Scores(terms, 'vocabulary')
  terms['vocabulary'] = 0.5 * vocabulary
  searched = f'{first} {second}' if spec.transitions_in_both else second
  num_categories = len(transitions.find_categories(searched))
  if num_categories:
    terms['transitions'] = 0.4 * min(0.4 + 0.05 * (num_categories - 1), 1.0)
  terms['jaccard'] = 0.6 * _jaccard_ratio(
      first_words - spec.stop_words, second_words - spec.stop_words,
      spec.jaccard_cap)
  return Scores(terms)


def paper_metrics(terms: Mapping[str, float]) -> dict[str, float]:
  """The metrics of the paper, as ratios; coherence is t."""
  return {
      'structure': (
          terms['structure'] + terms['ratio'] + terms['vocabulary']) / 2,
      'style': terms['jaccard'] / 0.6, 'coherence': terms['transitions'] / 0.4,
      'return': sum(terms.values()) / MAX_TOTAL}


def _jaccard_ratio(first: set[str], second: set[str], cap: float) -> float:
  if not first and not second:
    return 1.0
  return min(len(first & second) / len(first | second), cap) / cap
