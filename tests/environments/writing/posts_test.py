"""Posts: their facts, their grammar, and the reward of its texts."""

import itertools

import numpy as np
import pytest

from environments.writing import env
from environments.writing import rewards
from environments.writing import transitions
from environments.writing.posts import grammar


def _write_ordered(rng, source, num_sentences, num_categories):
  """A text about the first facts, with transitions of different categories."""
  categories = rng.permutation(list(grammar.TRANSITIONS))[:num_categories]
  chosen = [rng.choice(grammar.TRANSITIONS[x]) for x in categories]
  return grammar.write(
      rng, grammar.find_facts(source)[:num_sentences],
      (*chosen, *[''] * (num_sentences - num_categories)))


def test_posts_have_distinct_facts():
  rng = np.random.default_rng(0)
  for post in (grammar.random_post(rng) for _ in range(1000)):
    facts = grammar.find_facts(post)
    assert 5 <= post.count('.') <= 7
    assert len(set(facts)) == len(facts) >= 20


def test_facts_and_transitions_have_one_meaning():
  facts = list(itertools.chain(*grammar.WORDS.values()))
  assert len(facts) == len(set(facts))
  assert not (transitions.STOP_WORDS | grammar.FUNCTION_WORDS) & set(facts)
  assert not transitions.find_categories(' . '.join(facts))
  assert grammar.TRANSITIONS.keys() == transitions.CATEGORIES.keys()
  for category, entries in grammar.TRANSITIONS.items():
    for entry in entries:
      assert transitions.find_categories(entry) == {category}


def test_a_text_with_a_wrong_or_repeated_sentence_is_not_readable():
  source = 'it was monday. anna was at the lake.'
  text = 'on monday we were here. thus, it is at this lake. she met anna.'
  assert grammar.is_readable(text, source)
  for wrong in (
      'she met ben.', 'thus thus, she met anna.', 'she met really anna.',
      'on monday we were', 'on monday we were here.on monday we were here.',
      'this is on monday.'):  # Repeats a fact.
    assert not grammar.is_readable(f'{text} {wrong}', source)
    assert not grammar.is_readable(f'{wrong} {text}', source)
  assert not grammar.is_readable('', source)


def test_unreadable_texts_earn_nothing():
  environment = env.Writing('pair', 'posts')
  rng = np.random.default_rng(0)
  source = grammar.random_post(rng)
  concise = _write_ordered(rng, source, 4, 0)
  detailed = _write_ordered(rng, source, 8, 8)
  for text, is_paid in (
      (detailed, True), (f'{detailed} for example, we was has.', False),
      (source, False)):  # True, but not in the grammar.
    step = environment.step(
        environment.reset({'task_id': 'T', 'text': source}),
        {'concise': concise, 'detailed': text})
    assert (step.team_reward > 0.9, step.team_reward == 0) == (
        is_paid, not is_paid)


def test_texts_that_agree_earn_four_times_as_much_as_random_ones():
  rng, spec = np.random.default_rng(0), rewards.SPECS['posts']
  random, agreed = [], []
  for _ in range(500):
    source = grammar.random_post(rng)
    random.append(rewards.score(
        grammar.random_text(rng, source), grammar.random_text(rng, source),
        spec))
    agreed.append(rewards.score(
        _write_ordered(rng, source, 4, 0), _write_ordered(rng, source, 8, 8),
        spec))
  # The numbers of docs/environments.md.
  assert np.mean([x.normalised for x in random]) == pytest.approx(0.22, abs=.03)
  assert np.mean([x.normalised for x in agreed]) == pytest.approx(0.96, abs=.01)
  assert {x.stopped for x in random} == {'', 'structure', 'ratio', 'vocabulary'}
  assert {x.stopped for x in agreed} == {''}
