"""A grammar of short texts about a post.

Consecutive sentences are about consecutive facts of the post. The first fact,
the number of sentences and all other words are drawn independently and in the
same way for all roles, so two random texts seldom fit together. Writers have to
agree on lengths, categories of transitions and facts, for example by starting
at the first fact of the post.

A text is readable if every sentence is in the grammar and about a different
fact of the post. Only facts are content words.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import re

import numpy as np

from environments.writing.posts import post

MAX_SENTENCES = 8
TRANSITION_PROBABILITY = 0.3

# Two entries per category; none contains another.
TRANSITIONS = {
    'elaboration': ('also', 'besides'),
    'examples': ('for example', 'for instance'),
    'explanation': ('basically', 'essentially'),
    'cause_effect': ('therefore', 'thus'),
    'contrast': ('however', 'instead'),
    'sequence': ('first', 'next'),
    'emphasis': ('indeed', 'in fact'),
    'summary': ('overall', 'in short'),
    'comparison': ('similarly', 'likewise'),
    'concession': ('still', 'anyway'),
    'condition': ('in that case', 'in which case'),
    'time': ('later', 'soon'),
}
_ALL_TRANSITIONS = tuple(itertools.chain(*TRANSITIONS.values()))

# Choices as regular expressions. Repeating an option doubles its probability.
_THE = '(the|this|that|one)'
_THIS = '(the|this|that)'
_IT = '(it|this|all of it|most of it)'
_WHO = '(they|we|she|he)'
_WERE = '(they were|we were|she was|he was)'
_IS_THERE = '(there was|there is|there has been)'
_SAW = (
    '(had|had|saw|found|liked|wanted|needed|loved|made|kept|lost|moved|used|'
    'knew|watched|missed|met|left)')
_OFTEN = '(||really |quite |often |always |never |maybe |nearly )'
_VERY = '(|very |quite |really |just )'
_TAIL = (
    '(|||||| here| there| with us| for them| out there| again| with her| for '
    'him)')

_OBJECT = (
    f'{_IS_THERE} {_THE} {{fact}}{_TAIL}',
    f'{_WHO} {_SAW} {_THE} {{fact}}{_TAIL}',
    f'(it|this) (was|is|has been) (|all |only )about {_THE} {{fact}}')
# Kind of fact -> sentences.
_SENTENCES = {
    'person': (
        '(it|this) (was|is|has been) (|all |only )(about|for|with|from) {fact}',
        f'{{fact}} (was|has been) {_OFTEN}(here|there|out|in)',
        f'{_WHO} {_SAW} {{fact}}{_TAIL}'),
    'place': (
        f'{_IT} (was|is) (at|by|in|from) {_THIS} {{fact}}',
        f'{_WHO} {_SAW} {_THIS} {{fact}}{_TAIL}',
        f'{_WERE} {_OFTEN}(at|by|in) {_THIS} {{fact}}{_TAIL}'),
    'thing': _OBJECT,
    'animal': _OBJECT,
    'event': _OBJECT,
    'activity': (
        f'{_IS_THERE} (|some |more |no ){{fact}}{_TAIL}',
        f'{_WERE} {_OFTEN}{{fact}}{_TAIL}',
        f'{_IT} (was|is) (about|for|from) {{fact}}',
        f'{_WHO} {_SAW} (|some |more ){{fact}}{_TAIL}'),
    'quality': (
        f'{_IT} (was|is|has been) {_VERY}{{fact}}{_TAIL}',
        f'{_WHO} {_SAW} {_THIS} {{fact}} one{_TAIL}'),
    'mood': (
        f'{_WERE} {_VERY}{{fact}}{_TAIL}',
        '(one of them was|most of them were|all of us were|some of us were) '
        f'{_VERY}{{fact}}'),
    'day': (
        f'{_IT} (was|is) on {{fact}}',
        f'on {{fact}} {_WERE} (here|there|out){_TAIL}',
        f'{_WERE} (here|there|out) on {{fact}}'),
}

# All words of sentences that are not facts.
FUNCTION_WORDS = frozenset(
    word for text in (
        *_ALL_TRANSITIONS, *itertools.chain(*_SENTENCES.values()))
    for word in re.findall(r'\w+', text.replace('{fact}', '')))


@dataclasses.dataclass(frozen=True)
class Outline:
  """The facts of a text and the transitions of its sentences.

  Attributes:
    facts: one per sentence, in order.
    transitions: one per sentence; '' for none.
  """

  facts: tuple[post.Fact, ...]
  transitions: tuple[str, ...]


def random_outline(rng: np.random.Generator, source: str) -> Outline:
  """Draws up to `MAX_SENTENCES` consecutive facts and random transitions.

  The first fact starts a sentence of the post and has enough facts after it.
  """
  facts = post.find_facts(source)
  size = min(int(rng.integers(1, MAX_SENTENCES + 1)), len(facts))
  starts = np.cumsum([0, *(
      len(post.find_facts(sentence)) for sentence in source.split('.'))])
  start = rng.choice(starts[starts + size <= len(facts)])
  drawn = facts[start:start + size]
  return Outline(drawn, tuple(
      _choose(rng, _ALL_TRANSITIONS)
      if rng.random() < TRANSITION_PROBABILITY else '' for _ in drawn))


def write(rng: np.random.Generator, outline: Outline) -> str:
  """Draws a text with this outline."""
  sentences = []
  for fact, transition in zip(outline.facts, outline.transitions):
    sentence = re.sub(
        r'\(([^)]*)\)', lambda match: _choose(rng, match[1].split('|')),
        _choose(rng, _SENTENCES[fact.kind])).format(fact=fact.word)
    sentences.append(f'{transition}, {sentence}.' if transition
                     else f'{sentence}.')
  return ' '.join(sentences)


def random_text(rng: np.random.Generator, source: str) -> str:
  """Draws a text about the post `source`."""
  return write(rng, random_outline(rng, source))


def is_readable(text: str, source: str) -> bool:
  """True if each sentence is in the grammar and about a different fact."""
  facts = post.find_facts(text)
  sentences = [_sentence_about(fact) for fact in post.find_facts(source)]
  return len(set(facts)) == len(facts) and all(
      any(sentence.fullmatch(written) for sentence in sentences)
      for written in re.split(r'(?<=\.) ', text))


@functools.cache
def _sentence_about(fact: post.Fact) -> re.Pattern[str]:
  return re.compile('(?:(?:{}), )?(?:{})[.]'.format(
      '|'.join(_ALL_TRANSITIONS), '|'.join(
          frame.format(fact=fact.word) for frame in _SENTENCES[fact.kind])))


def _choose(rng: np.random.Generator, choices: Sequence[str]) -> str:
  return choices[rng.integers(len(choices))]
