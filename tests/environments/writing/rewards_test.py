"""Rewards of the writing tasks, against hand-worked numbers."""

import itertools

import pytest

from environments.writing import rewards
from environments.writing import transitions


def w(start, stop, tokens=0):
  """Content words from w<start>; the first repeats up to `tokens` words."""
  words = [f'w{i}' for i in range(start, stop)]
  return ' '.join(words + words[:1] * (tokens - len(words)))


def padded(words, chars):
  """Appends '!' up to `chars` characters."""
  assert len(words) <= chars
  return words.ljust(chars, '!')


TWELVE = ('also namely essentially thus however next indeed overall likewise '
          'although unless meanwhile')
STOP_8 = 'the a of to in is it and'
STOP_16 = f'{STOP_8} was were has have he she they we'
E8, E16 = w(0, 8), w(8, 24)  # Without common words.

# Words and characters of both texts; points of structure, ratio, vocabulary,
# transitions and jaccard; the level at which scoring stopped.
TLDR = [
    # Tokens: 8 to 256 each.
    ('', 0, '', 0, 0, 0, 0, 0, 0, 'structure'),
    (w(0, 7), 100, E16, 200, 0, 0, 0, 0, 0, 'structure'),
    (E8, 100, w(8, 15), 200, 0, 0, 0, 0, 0, 'structure'),
    (E8, 100, w(8, 16), 200, .5, 1, 0, 0, 0, 'vocabulary'),
    (w(0, 257), 1500, E16, 3000, 0, 0, 0, 0, 0, 'structure'),
    (w(0, 256), 1500, E16, 3000, .5, 1, 0, 0, 0, 'vocabulary'),
    (E8, 1000, w(8, 264), 2000, .5, 1, .5, 0, 0, ''),
    ('a-1 a-2 a-3 a-4 a-5 a-6 a-7', 100, E16, 200, 0, 0, 0, 0, 0, 'structure'),
    # Ratio of characters: 1.1, 1.6, 3.2, 5.
    (E8, 100, E16, 109, .5, 0, 0, 0, 0, 'ratio'),
    (E8, 100, E16, 110, .5, 0, .5, 0, 0, ''),
    (E8, 100, E16, 160, .5, 1, .5, 0, 0, ''),
    (E8, 100, E16, 320, .5, 1, .5, 0, 0, ''),
    (E8, 100, E16, 410, .5, .5, .5, 0, 0, ''),
    (E8, 100, E16, 500, .5, 0, .5, 0, 0, ''),
    (E8, 100, E16, 501, .5, 0, 0, 0, 0, 'ratio'),
    # Ratio of different words: 1.3, 2.
    (w(0, 20), 100, w(20, 45), 200, .5, 1, 0, 0, 0, 'vocabulary'),
    (w(0, 20), 100, w(20, 46), 200, .5, 1, 0, 0, 0, ''),
    (w(0, 20), 100, w(20, 53), 200, .5, 1, .25, 0, 0, ''),
    (w(0, 20), 100, w(20, 60), 200, .5, 1, .5, 0, 0, ''),
    (E8, 100, w(8, 16, 90), 320, .5, 1, 0, 0, 0, 'vocabulary'),
    ('W0 w0 W1 w1 W2 w2 W3 w3', 100, w(8, 16), 200, .5, 1, .5, 0, 0, ''),
    # Stop words count as different words.
    (STOP_8, 100, E16, 200, .5, 1, .5, 0, 0, ''),
    ('! ! ! ! ! ! ! !', 100, E16, 200, .5, 1, 0, 0, 0, 'vocabulary'),
    # Categories in the second text: 0.4 x (0.4 + 0.05 per additional one).
    (E8, 100, E16 + ' However,', 200, .5, 1, .5, .16, 0, ''),
    (E8, 100, E16 + ' however thus next', 200, .5, 1, .5, .2, 0, ''),
    (E8, 100, f'{E16} {TWELVE}', 200, .5, 1, .5, .38, 0, ''),
    (E8 + ' however', 100, w(8, 26), 200, .5, 1, .5, 0, 0, ''),
    # Common content words: 1, 3 and 4 of 100, 3 of 200.
    (w(0, 30), 300, w(29, 100), 600, .5, 1, .5, 0, .2, ''),
    (w(0, 30), 300, w(27, 100), 600, .5, 1, .5, 0, .6, ''),
    (w(0, 30), 300, w(26, 100), 600, .5, 1, .5, 0, .6, ''),
    (w(0, 60), 400, w(57, 200), 800, .5, 1, .5, 0, .3, ''),
    (E8 + ' the', 100, E16 + ' the w99', 200, .5, 1, .5, 0, 0, ''),
    # No content words.
    (STOP_8, 100, STOP_16, 200, .5, 1, .5, 0, .6, ''),
    # The maximum.
    (E8, 100, f'{w(0, 16)} {TWELVE}', 200, .5, 1, .5, .38, .6, ''),
]

F, S = w(0, 128), w(128, 256)
# Characters of the second text; points of the ratio in both versions; None if
# scoring stops.
ARXIV_RATIOS = [
    (799, None, None), (800, 0, 0), (900, .5, .2), (999, .995, .398),
    (1000, 1, .4), (1050, 1, .5), (1299, 1, .998), (1300, 1, 1), (1350, .75, 1),
    (1400, .5, 1), (1500, 0, 1), (1501, None, 1), (1600, None, 1),
    (1800, None, .5), (1900, None, .25), (2000, None, 0), (2001, None, None),
]
ARXIV = [
    # Tokens: 128 to 256 each.
    (w(0, 127), 1000, S, 1300, 0, 0, 0, 0, 0, 'structure'),
    (F, 1000, w(128, 255), 1300, 0, 0, 0, 0, 0, 'structure'),
    (w(0, 256), 2000, w(256, 512), 2600, .5, 1, .5, 0, 0, ''),
    (F, 1000, S, 1300, .5, 1, .5, 0, 0, ''),
    # Ratio of different words: 0.5, 0.7, 1.3, 1.7.
    (w(0, 200), 1000, w(200, 299, 128), 1300, .5, 1, 0, 0, 0, 'vocabulary'),
    (w(0, 200), 1000, w(200, 300, 128), 1300, .5, 1, 0, 0, 0, ''),
    (w(0, 200), 1000, w(200, 320, 128), 1300, .5, 1, .25, 0, 0, ''),
    (w(0, 200), 1000, w(200, 340), 1300, .5, 1, .5, 0, 0, ''),
    (w(0, 100, 128), 1000, w(200, 350), 1300, .5, 1, .25, 0, 0, ''),
    (w(0, 100, 128), 1000, w(200, 370), 1300, .5, 1, 0, 0, 0, ''),
    (w(0, 100, 128), 1000, w(200, 371), 1300, .5, 1, 0, 0, 0, 'vocabulary'),
    # Categories in either text.
    (F + ' however', 1000, S, 1300, .5, 1, .5, .16, 0, ''),
    (F, 1000, S + ' however', 1300, .5, 1, .5, .16, 0, ''),
    (F + ' but also', 1000, S + ' thus next', 1300, .5, 1, .5, .22, 0, ''),
    # Common content words: 23 of 200, 46 of 200, all.
    (w(0, 100, 128), 1000, w(77, 200, 128), 1300, .5, 1, .5, 0, .3, ''),
    (w(0, 123, 128), 1000, w(77, 200, 128), 1300, .5, 1, .5, 0, .6, ''),
    (F, 1000, f'{F} {TWELVE}', 1300, .5, 1, .5, .38, .6, ''),
]


def check(kind, first, chars_1, second, chars_2, *expected):
  *terms, stopped = expected
  scores = rewards.score(
      padded(first, chars_1), padded(second, chars_2), rewards.SPECS[kind])
  assert list(scores.terms.values()) == pytest.approx(terms)
  assert scores.stopped == stopped
  assert scores.normalised == pytest.approx(sum(terms) / 2.98)


# ARXIV has 1300 to 1000 characters, for which both versions pay the maximum.
@pytest.mark.parametrize('kind, row', [
    *(('tldr', row) for row in TLDR),
    *((kind, row) for kind in ('arxiv_a', 'arxiv_b') for row in ARXIV)])
def test_points_of_each_level(kind, row):
  check(kind, *row)


@pytest.mark.parametrize('num_chars, ratio_a, ratio_b', ARXIV_RATIOS)
def test_versions_of_arxiv_differ_in_the_window_of_the_ratio(
    num_chars, ratio_a, ratio_b):
  for kind, ratio in (('arxiv_a', ratio_a), ('arxiv_b', ratio_b)):
    if ratio is None:
      check(kind, F, 1000, S, num_chars, .5, 0, 0, 0, 0, 'ratio')
    else:
      check(kind, F, 1000, S, num_chars, .5, ratio, .5, 0, 0, '')


def test_paper_metrics():
  scores = rewards.score(
      padded(E8, 200), padded(f'{w(0, 16)} {TWELVE}', 270),
      rewards.SPECS['tldr'])
  assert rewards.paper_metrics(scores.terms) == pytest.approx({
      'structure': .75, 'style': 1, 'coherence': .95, 'return': 2.48 / 2.98})


@pytest.mark.parametrize('tokens_1, tokens_2, stopped', [
    (7, 40, 'structure'), (8, 40, ''), (40, 100, ''), (41, 100, 'structure'),
    (8, 15, 'structure'), (8, 16, ''), (40, 101, 'structure')])
def test_numbers_of_tokens_of_posts(tokens_1, tokens_2, stopped):
  scores = rewards.score(
      padded(w(0, tokens_1), 400), padded(w(0, tokens_2), 800),
      rewards.SPECS['posts'])
  assert scores.stopped == stopped


def test_every_entry_belongs_to_one_category():
  entries = list(itertools.chain(*transitions.CATEGORIES.values()))
  assert len(transitions.CATEGORIES) == 12
  assert len(entries) == len(set(entries))
  for category, entries in transitions.CATEGORIES.items():
    for entry in entries:
      assert category in transitions.find_categories(
          f'It is, {entry.upper()}, there'), entry


@pytest.mark.parametrize('text, categories', [
    ('', ''), ('We also sing.', 'elaboration'), ('A yeti gave butter.', ''),
    ('Even so, it is.', 'concession cause_effect'), ('In\n  fact', 'emphasis'),
    ('in factory halls', ''), ('e.g. this', 'examples'),
    ('the clock_if_any', ''), ('so-called', 'cause_effect')])
def test_find_categories(text, categories):
  assert transitions.find_categories(text) == set(categories.split())
