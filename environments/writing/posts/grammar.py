"""Generated posts, and a grammar of short texts about a post.

A post has 5 to 7 short sentences about people, places, things and events. Its
*facts* are the words that fill the templates, 4 or 5 per sentence. A word has a
single kind and occurs at most once in a post, so the text determines its facts.

Consecutive sentences of a text are about consecutive facts of the post. The
first fact, the number of sentences and all other words are drawn independently
and in the same way for all roles, so two random texts seldom fit together.
Writers have to agree on lengths, categories of transitions and facts, for
example by starting at the first fact of the post.

A text is readable if every sentence is in the grammar and about a different
fact of the post. Only facts are content words.
"""

from collections.abc import Sequence
import functools
import itertools
import re

import numpy as np

MAX_SENTENCES = 8
TRANSITION_PROBABILITY = 0.3

# Kind -> words, which are neither transitions nor stop words.
WORDS = {
    kind: tuple(words.split()) for kind, words in {
        'person': """
            anna ben cara dan ella finn gus hana ian jane karl lena max nina
            otto pia ralf sara tom uma vera walt zoe adam beth carl dora emil
            fay greg hugo iris jack kate liam mona nils olga""",
        'place': """
            bridge lake farm harbor forest market station library castle garden
            valley island museum school mill beach tower square chapel cave barn
            river canal meadow shop bakery theater camp hotel field cabin dock
            church stadium bank hill pond road park yard""",
        'thing': """
            kite lamp basket drum wagon clock carpet mirror ladder rope bottle
            candle blanket letter map coin whistle hammer bicycle boat piano
            guitar camera telescope robot puppet umbrella suitcase helmet crown
            ring shell stone feather flag mask wheel bell bucket cake pie melon
            cheese honey soup bread apple""",
        'animal': """
            dog cat horse goat sheep duck goose fox owl bear wolf rabbit turtle
            parrot donkey pony frog snake spider crow swan deer mouse hen""",
        'event': """
            wedding fair parade concert picnic race storm party meeting contest
            auction harvest flood fire birthday lesson festival journey feast
            opera""",
        'activity': """
            dancing singing fishing cooking baking reading swimming climbing
            sailing rowing skating jumping digging trading hiding laughing
            crying shouting knitting carving planting writing drawing juggling
            hiking running sleeping fighting playing cleaning building
            whistling""",
        'quality': """
            old red blue green yellow silver golden heavy tiny huge broken
            wooden dusty shiny quiet loud warm cold wet dry soft sharp sweet
            sour round narrow wide steep dark bright clean dirty strange famous
            cheap rare fresh gentle""",
        'mood': """
            happy sad angry tired calm glad nervous bored hungry thirsty lonely
            excited curious jealous afraid sleepy proud brave""",
        'day': 'monday tuesday wednesday thursday friday saturday sunday',
    }.items()}

_POST_OPENINGS = (
    '{person} was at the {quality} {place} on {day} with the {animal}.',
    'on {day} {person} came to the {quality} {place} for the {event}.',
    'this {day} the {place} was {quality} and {mood} {person} was there.',
    'it was {day} and {person} had the {quality} {thing} at the {place}.',
)
_POST_SENTENCES = (
    'there was the {quality} {event} with the {thing} by the {place}.',
    '{mood} {person} had the {quality} {thing} from the {place}.',
    'the {mood} {animal} was by the {quality} {thing} of {person}.',
    'they saw {activity} and {activity} by the {quality} {place}.',
    'the {animal} and the {animal} were {mood} at the {quality} {event}.',
    '{person} was {mood} about the {activity} at the {place}.',
    'the {event} by the {place} was {quality} for the {animal}.',
    '{person} and {person} were {activity} with the {quality} {animal}.',
    'the {quality} {thing} at the {event} was for {mood} {person}.',
    'the {place} was {quality} and {quality} on {day}.',
    'they had the {thing} and the {thing} at the {quality} {event}.',
    '{person} was {activity} under the {quality} {thing} of the {animal}.',
)

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


_KINDS = {word: kind for kind, words in WORDS.items() for word in words}
ALL_WORDS = tuple(_KINDS)


def random_post(rng: np.random.Generator) -> str:
  """Draws a post without repeated facts."""
  num_sentences = int(rng.integers(5, 8))
  templates = [_POST_OPENINGS[rng.integers(len(_POST_OPENINGS))]]
  templates += [
      _POST_SENTENCES[i] for i in rng.permutation(len(_POST_SENTENCES))[
          :num_sentences - 1]]
  unused = {
      kind: map(words.__getitem__, rng.permutation(len(words)))
      for kind, words in WORDS.items()}
  return re.sub(
      r'\{(\w+)\}', lambda match: next(unused[match[1]]), ' '.join(templates))


def find_facts(text: str) -> tuple[str, ...]:
  return tuple(word for word in re.findall(r'\w+', text) if word in _KINDS)


def write(
    rng: np.random.Generator, facts: Sequence[str],
    transitions: Sequence[str]) -> str:
  """Draws a text with these facts and transitions, '' for none."""
  sentences = []
  for fact, transition in zip(facts, transitions):
    sentence = re.sub(
        r'\(([^)]*)\)', lambda match: _choose(rng, match[1].split('|')),
        _choose(rng, _SENTENCES[_KINDS[fact]])).format(fact=fact)
    start = f'{transition}, ' if transition else ''
    sentences.append(f'{start}{sentence}.')
  return ' '.join(sentences)


def random_text(rng: np.random.Generator, source: str) -> str:
  """Draws a text about up to `MAX_SENTENCES` consecutive facts of a post.

  The first one starts a sentence of the post and has enough facts after it.
  """
  facts = find_facts(source)
  size = min(int(rng.integers(1, MAX_SENTENCES + 1)), len(facts))
  starts = np.cumsum([0, *(
      len(find_facts(sentence)) for sentence in source.split('.'))])
  start = rng.choice(starts[starts + size <= len(facts)])
  transitions = [
      _choose(rng, _ALL_TRANSITIONS)
      if rng.random() < TRANSITION_PROBABILITY else '' for _ in range(size)]
  return write(rng, facts[start:start + size], transitions)


def is_readable(text: str, source: str) -> bool:
  """True if each sentence is in the grammar and about a different fact."""
  facts = find_facts(text)
  sentences = [_sentence_about(fact) for fact in find_facts(source)]
  return len(set(facts)) == len(facts) and all(
      any(sentence.fullmatch(written) for sentence in sentences)
      for written in re.split(r'(?<=\.) ', text))


@functools.cache
def _sentence_about(fact: str) -> re.Pattern[str]:
  return re.compile('(?:(?:{}), )?(?:{})[.]'.format(
      '|'.join(_ALL_TRANSITIONS),
      '|'.join(_SENTENCES[_KINDS[fact]]).format(fact=fact)))


def _choose(rng: np.random.Generator, choices: Sequence[str]) -> str:
  return choices[rng.integers(len(choices))]
