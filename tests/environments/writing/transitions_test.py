"""Transition words: the lists and the two ways of matching them."""

import itertools

import pytest

from environments.writing import transitions


def test_lists_have_no_duplicates():
  entries = list(itertools.chain(*transitions.CATEGORIES.values()))
  assert len(transitions.CATEGORIES) == 12
  assert len(entries) == len(set(entries))


def test_every_entry_is_found_in_a_sentence():
  for category, entries in transitions.CATEGORIES.items():
    for entry in entries:
      for matching in transitions.MATCHING:
        assert category in transitions.find_categories(
            f'It is, {entry.upper()}, there', matching), entry


@pytest.mark.parametrize('text, words, substring', [
    ('', '', ''),
    ('We also sing.', 'elaboration', 'elaboration cause_effect'),
    ('A yeti gave butter.', '', 'contrast'),
    ('Even so, it is.', 'concession cause_effect',
     'concession cause_effect'),
    ('In\n  fact', 'emphasis', ''),
    ('in factory halls', '', 'emphasis'),
    ('e.g. this', 'examples', 'examples'),
    ('the clock_if_any', '', 'condition'),
    ('so-called', 'cause_effect', 'cause_effect'),
])
def test_matching(text, words, substring):
  assert transitions.find_categories(text) == set(words.split())
  assert transitions.find_categories(text, 'substring') == set(
      substring.split())
