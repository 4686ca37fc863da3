"""Generated posts.

A post has 5 to 7 short sentences about people, places, things and events. Its
*facts* are the words that fill the templates, 4 or 5 per sentence. A word has a
single kind and occurs at most once in a post, so the text determines its facts.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

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

_OPENINGS = (
    '{person} was at the {quality} {place} on {day} with the {animal}.',
    'on {day} {person} came to the {quality} {place} for the {event}.',
    'this {day} the {place} was {quality} and {mood} {person} was there.',
    'it was {day} and {person} had the {quality} {thing} at the {place}.',
)
_SENTENCES = (
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


@dataclasses.dataclass(frozen=True)
class Fact:
  """A word of a post and its kind."""

  word: str
  kind: str


_FACTS = {
    word: Fact(word, kind) for kind, words in WORDS.items() for word in words}
ALL_WORDS = tuple(_FACTS)


def random_post(rng: np.random.Generator) -> str:
  """Draws a post without repeated facts."""
  num_sentences = int(rng.integers(5, 8))
  templates = [_OPENINGS[rng.integers(len(_OPENINGS))]]
  templates += [
      _SENTENCES[i] for i in rng.permutation(len(_SENTENCES))[
          :num_sentences - 1]]
  unused = {
      kind: iter(rng.permutation(words).tolist())
      for kind, words in WORDS.items()}
  return re.sub(
      r'\{(\w+)\}', lambda match: next(unused[match[1]]), ' '.join(templates))


def find_facts(text: str) -> tuple[Fact, ...]:
  """The facts of a text, in order."""
  return tuple(
      _FACTS[word] for word in re.findall(r'\w+', text) if word in _FACTS)
