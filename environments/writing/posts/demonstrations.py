"""A grammar of short texts about a post, from which a base model is taught.

Every sentence is right by itself and is about one fact of the post. Which facts
in which order, how many sentences, a transition at the start of a sentence and
which one, subject, verb, article and the words around it are drawn one by one,
in the same way for all roles. So two texts that are written apart from each
other seldom fit together: lengths, categories of transitions and facts have to
be chosen in a way that both can rely on. The order of the post is such a way.
`environments.writing.posts.measure` prints what random and chosen texts earn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import re

import numpy as np

from environments import demonstrations
from environments.writing import env
from environments.writing import prompts
from environments.writing.posts import post

MAX_SENTENCES = 8
_MAX_COPIED = 24  # Words.
TRANSITION_PROBABILITY = 0.3

# Two entries of each category; none stands in another.
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

# Choices, as regular expressions; what stands twice is drawn twice as often.
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

# What is taught -> the team and the role whose prompt is shown.
_TAUGHT = {
    'concise': ('pair', 'concise'),
    'detailed': ('pair', 'detailed'),
    'solo': ('solo', 'solo'),
    'pipeline_detailed': ('pipeline', 'detailed'),
    'discussion_concise': ('discussion', 'concise'),
    'discussion_detailed': ('discussion', 'detailed'),
}


@dataclasses.dataclass(frozen=True)
class Outline:
  """What the sentences of a text are about, and how each begins.

  Attributes:
    facts: of the sentences, in their order.
    transitions: of the sentences; '' for none.
  """

  facts: tuple[post.Fact, ...]
  transitions: tuple[str, ...]


def random_outline(
    rng: np.random.Generator, facts: Sequence[post.Fact]) -> Outline:
  """1 to `MAX_SENTENCES` different facts in any order, and any transitions."""
  size = int(rng.integers(1, MAX_SENTENCES + 1))
  return Outline(
      tuple(facts[i] for i in rng.permutation(len(facts))[:size]),
      tuple(
          _choose(rng, _ALL_TRANSITIONS)
          if rng.random() < TRANSITION_PROBABILITY else ''
          for _ in range(size)))


def ordered_outline(
    rng: np.random.Generator, facts: Sequence[post.Fact], num_sentences: int,
    num_categories: int) -> Outline:
  """The first facts of the post, and transitions of different categories."""
  categories = rng.permutation(list(TRANSITIONS))[:num_categories]
  drawn = [_choose(rng, TRANSITIONS[category]) for category in categories]
  return Outline(
      tuple(facts[:num_sentences]),
      (*drawn, *[''] * (num_sentences - num_categories)))


def write(rng: np.random.Generator, outline: Outline) -> str:
  """A random text with this outline."""
  sentences = []
  for fact, transition in zip(outline.facts, outline.transitions):
    sentence = re.sub(
        r'\(([^)]*)\)', lambda match: _choose(rng, match[1].split('|')),
        _choose(rng, _SENTENCES[fact.kind])).format(fact=fact.word)
    sentences.append(f'{transition}, {sentence}.' if transition
                     else f'{sentence}.')
  return ' '.join(sentences)


def random_text(rng: np.random.Generator, source: str) -> str:
  """A random text about the post `source`."""
  return write(rng, random_outline(rng, post.find_facts(source)))


def is_well_formed(text: str, source: str) -> bool:
  """Whether the grammar has this text about the post `source`."""
  sentence = re.compile('(?:(?:{}), )?(?:{})[.]'.format(
      '|'.join(_ALL_TRANSITIONS), '|'.join(
          frame.format(fact=fact.word) for fact in post.find_facts(source)
          for frame in _SENTENCES[fact.kind])))
  return all(
      sentence.fullmatch(part) for part in re.split(r'(?<=\.) ', text))


class Repertoire:
  """What can be shown of posts; see `environments.demonstrations`."""

  def demonstrate(
      self, rng: np.random.Generator, role: str, kinds: Mapping[str, float],
      group_size: int,
      max_turns: Sequence[int]) -> demonstrations.Demonstration:
    """Draws a post and `group_size` texts about it.

    Args:
      rng: of all that is drawn.
      role: 'concise' or 'detailed' of a pair (a pipeline's 'concise' and the
        first turn of a discussion have the same prompts), 'solo',
        'pipeline_detailed', 'discussion_concise' or 'discussion_detailed', of
        the second turn. Or a drill: the 'copyist' is shown some facts and
        writes them again.
      kinds: {'text': 1.0}.
      group_size: texts.
      max_turns: not used.
    """
    del max_turns
    if set(kinds) != {'text'}:
      raise ValueError(f"kinds {list(kinds)}: a post has but the kind 'text'.")
    if role == 'copyist':
      source = ' '.join(
          rng.choice(post.ALL_WORDS, size=rng.integers(1, _MAX_COPIED + 1)))
      return demonstrations.Demonstration(
          role, env.State('', source), [{'role': 'user', 'content': source}],
          (source,) * group_size, ('text',) * group_size)
    source = post.random_post(rng)
    team, shown_role = _TAUGHT[role]
    num_seen = {'pipeline': 1, 'discussion': 2}.get(team, 0)
    state = env.State('', source, texts=tuple(
        random_text(rng, source) for _ in range(num_seen)))
    environment = env.Writing(team, 'posts', 'words')
    completions = tuple(
        f'\n{prompts.MARKER}\n'.join(
            random_text(rng, source) for _ in range(1 + (team == 'solo')))
        for _ in range(group_size))
    return demonstrations.Demonstration(
        role, state, environment.observe(state, shown_role), completions,
        ('text',) * group_size)

  def kind_of(
      self, demonstration: demonstrations.Demonstration,
      completion: str) -> str | None:
    """'text' if the grammar has the answer, or the copy is exact."""
    source = demonstration.state.source
    if demonstration.role == 'copyist':
      return 'text' if completion == source else None
    texts = completion.split(f'\n{prompts.MARKER}\n')
    if len(texts) != 1 + (demonstration.role == 'solo'):
      return None
    return 'text' if all(is_well_formed(t, source) for t in texts) else None


REPERTOIRE = Repertoire()


def _choose(rng: np.random.Generator, choices: Sequence[str]) -> str:
  return choices[rng.integers(len(choices))]
