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

`SPECS` has the windows of each task:

  tldr      Summaries of a post.
  arxiv_a   Two parts of an introduction. The window of the ratio is 1.0 to 1.3,
            as in the released docstring and one of the released commits.
  arxiv_b   `arxiv_a` with a window of 1.3 to 1.6, as in another commit with
            the same docstring.
  posts     `tldr` for a model of a million parameters. A text counts as empty
            if a sentence is not in the grammar or two are about the same fact,
            and only facts are content words (environments/writing/posts).

Deviations from the released code:

1. The return is the points divided by the maximum, 2.98, and not by the nominal
   3, because the 12 categories give t = 0.95.
2. A first text without words stops at level 3, since its ratio is undefined.
3. The word lists are ours and are matched at word boundaries; see
   `environments.writing.transitions`.

In the paper coherence grows logarithmically with the number of categories; in
the released code and here it grows linearly.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
import re

from environments.writing import transitions
from environments.writing.posts import grammar

_WORD = re.compile(r'\w+')


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
  """The windows of a task.

  Attributes:
    first_tokens: minimum and maximum number of tokens of the first text.
    second_tokens: minimum and maximum for the second text.
    ratio: window of the ratio of characters.
    vocabulary: window of the ratio of different words.
    jaccard_cap: a larger Jaccard index pays no more.
    transitions_in_both: True if transitions of both texts count, False if only
      those of the second text count.
    stop_words: words that are not content words.
  """

  first_tokens: tuple[int, int]
  second_tokens: tuple[int, int]
  ratio: Window
  vocabulary: Window
  jaccard_cap: float
  transitions_in_both: bool
  stop_words: frozenset[str] = transitions.STOP_WORDS


@dataclasses.dataclass(frozen=True)
class Scores:
  """Points of each term, and the level at which scoring stopped.

  Attributes:
    structure: 0 or 0.5.
    ratio: 0 to 1.
    vocabulary: 0 to 0.5.
    transitions: 0 to 0.38.
    jaccard: 0 to 0.6.
    stopped: 'structure', 'ratio', 'vocabulary', or '' if all four levels were
      scored.
  """

  structure: float = 0.0
  ratio: float = 0.0
  vocabulary: float = 0.0
  transitions: float = 0.0
  jaccard: float = 0.0
  stopped: str = ''

  @property
  def terms(self) -> dict[str, float]:
    """The points by name; their sum is the total."""
    terms = dataclasses.asdict(self)
    del terms['stopped']
    return terms

  @property
  def total(self) -> float:
    """All points, 0 to 2.98."""
    return sum(self.terms.values())

  @property
  def normalised(self) -> float:
    """The return: points divided by the maximum, 0 to 1."""
    return self.total / MAX_TOTAL


MAX_TOTAL = 2.98

_ARXIV_A = Spec(
    first_tokens=(128, 256), second_tokens=(128, 256),
    ratio=Window(0.8, 1.0, 1.3, 1.5), vocabulary=Window(0.5, 0.7, 1.3, 1.7),
    jaccard_cap=0.23, transitions_in_both=True)

SPECS = {
    'tldr': Spec(
        first_tokens=(8, 256), second_tokens=(8, 256),
        ratio=Window(1.1, 1.6, 3.2, 5.0), vocabulary=Window(1.3, 2.0),
        jaccard_cap=0.03, transitions_in_both=False),
    'arxiv_a': _ARXIV_A,
    'arxiv_b': dataclasses.replace(
        _ARXIV_A, ratio=Window(0.8, 1.3, 1.6, 2.0)),
    'posts': Spec(
        first_tokens=(8, 40), second_tokens=(16, 100),
        ratio=Window(1.1, 1.6, 3.2, 5.0), vocabulary=Window(1.3, 2.0),
        jaccard_cap=0.4, transitions_in_both=False,
        stop_words=transitions.STOP_WORDS | grammar.FUNCTION_WORDS),
}


def score(
    first: str, second: str, spec: Spec, matching: str = 'words') -> Scores:
  """Scores two texts.

  Args:
    first: the text of the first role (concise or background).
    second: the text of the second role (detailed or method).
    spec: a value of `SPECS`.
    matching: how transition words are found; one of `transitions.MATCHING`.
  """
  for text, (min_tokens, max_tokens) in (
      (first, spec.first_tokens), (second, spec.second_tokens)):
    if not min_tokens <= len(text.split()) <= max_tokens:
      return Scores(stopped='structure')
  scores = Scores(structure=0.5)
  ratio = spec.ratio.value(len(second) / len(first))
  if ratio is None:
    return dataclasses.replace(scores, stopped='ratio')
  scores = dataclasses.replace(scores, ratio=ratio)
  words = find_words(first), find_words(second)
  vocabulary = None
  if words[0]:
    vocabulary = spec.vocabulary.value(len(words[1]) / len(words[0]))
  if vocabulary is None:
    return dataclasses.replace(scores, stopped='vocabulary')
  searched = f'{first} {second}' if spec.transitions_in_both else second
  return dataclasses.replace(
      scores, vocabulary=0.5 * vocabulary,
      transitions=0.4 * transition_ratio(
          len(transitions.find_categories(searched, matching))),
      jaccard=0.6 * jaccard_ratio(*words, spec))


def paper_metrics(terms: Mapping[str, float]) -> dict[str, float]:
  """The metrics of the paper, as ratios of the maximum points.

  structure: levels 1 to 3. style: the Jaccard index. coherence: t, at most 0.95
  with 12 categories.
  """
  return {
      'structure': (
          terms['structure'] + terms['ratio'] + terms['vocabulary']) / 2,
      'style': terms['jaccard'] / 0.6, 'coherence': terms['transitions'] / 0.4,
      'return': sum(terms.values()) / MAX_TOTAL}


def transition_ratio(num_categories: int) -> float:
  """t: 0.4 for one category and 0.05 for each additional one, up to 1."""
  return min(0.4 + 0.05 * (num_categories - 1), 1.0) if num_categories else 0.0


def find_words(text: str) -> set[str]:
  """The different words of a text, in lower case."""
  return set(_WORD.findall(text.lower()))


def jaccard_ratio(first: set[str], second: set[str], spec: Spec) -> float:
  """min(J, cap) / cap of two sets of words, without stop words."""
  first, second = first - spec.stop_words, second - spec.stop_words
  if not first and not second:
    return 1.0
  index = len(first & second) / len(first | second)
  return min(index, spec.jaccard_cap) / spec.jaccard_cap
