"""What texts of the grammar earn: written apart, and chosen to fit.

  python -m environments.writing.posts.measure

prints the numbers of 2000 pairs of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import numpy as np

from environments.writing import rewards
from environments.writing.posts import grammar
from environments.writing.posts import post

Writer = Callable[[np.random.Generator, str], tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Report:
  """Of many pairs of texts.

  Attributes:
    mean_return: mean of the normalised return.
    terms: mean points of each term.
    share_above_085: pairs with a return above 0.85.
    passed: level -> share of pairs that pass it among those that reach it.
    jaccard_share: mean of min(J, cap) / cap over all pairs, whether they reach
      level 4 or not.
    longest: most tokens of a first and of a second text.
  """

  mean_return: float
  terms: dict[str, float]
  share_above_085: float
  passed: dict[str, float]
  jaccard_share: float
  longest: tuple[int, int]


def apart(rng: np.random.Generator, source: str) -> tuple[str, str]:
  """Two random texts."""
  return (grammar.random_text(rng, source),
          grammar.random_text(rng, source))


def chosen(rng: np.random.Generator, source: str) -> tuple[str, str]:
  """4 sentences, and 8 with 8 categories, on facts in the post's order."""
  facts = post.find_facts(source)
  return tuple(
      grammar.write(rng, grammar.ordered_outline(
          rng, facts, num_sentences, num_categories))
      for num_sentences, num_categories in ((4, 0), (8, 8)))


def measure(writer: Writer, num_pairs: int = 2000, seed: int = 0) -> Report:
  """Draws a post for each pair of texts, and scores the pair."""
  rng = np.random.default_rng(seed)
  spec = rewards.SPECS['posts']
  scores, shares, lengths = [], [], []
  for _ in range(num_pairs):
    texts = writer(rng, post.random_post(rng))
    scores.append(rewards.score(*texts, spec))
    shares.append(
        rewards.jaccard_share(*map(rewards.find_words, texts), spec))
    lengths.append([len(text.split()) for text in texts])
  returns = np.array([score.normalised for score in scores])
  passed, reached = {}, scores
  for level in ('structure', 'ratio', 'vocabulary'):
    passing = [score for score in reached if score.stopped != level]
    passed[level] = len(passing) / len(reached)
    reached = passing
  return Report(
      mean_return=float(returns.mean()),
      terms={
          name: float(np.mean([score.terms[name] for score in scores]))
          for name in scores[0].terms},
      share_above_085=float((returns > 0.85).mean()), passed=passed,
      jaccard_share=float(np.mean(shares)),
      longest=tuple(np.max(lengths, axis=0).tolist()))


if __name__ == '__main__':
  for name, writer in (('apart', apart), ('chosen', chosen)):
    print(name, measure(writer))
