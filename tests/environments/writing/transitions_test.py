"""Transition words are found at word boundaries."""

import itertools

import pytest

from environments.writing import transitions


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
