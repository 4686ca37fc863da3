"""Demonstrations of the grammar of texts about a post.

The texts of all roles are random texts of `environments.writing.posts.grammar`,
so a base model that is taught them writes alike in all roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from environments import demonstrations
from environments.writing import env
from environments.writing import prompts
from environments.writing.posts import grammar
from environments.writing.posts import post

_DRILLS = ('copyist', 'reporter')
_MOST_WORDS = 24  # Of a drill.

# What is taught -> the team and the role whose prompt is shown.
_TAUGHT = {
    'concise': ('pair', 'concise'),
    'detailed': ('pair', 'detailed'),
    'solo': ('solo', 'solo'),
    'pipeline_detailed': ('pipeline', 'detailed'),
    'discussion_concise': ('discussion', 'concise'),
    'discussion_detailed': ('discussion', 'detailed'),
}


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
        the second turn. Or a drill: the 'copyist' is shown some words and
        writes them again, the 'reporter' writes random texts about them.
      kinds: {'text': 1.0}.
      group_size: texts.
      max_turns: not used.
    """
    del max_turns
    if set(kinds) != {'text'}:
      raise ValueError(f"kinds {list(kinds)}: a post has but the kind 'text'.")
    if role in _DRILLS:
      return self._drill(rng, role, group_size)
    source = post.random_post(rng)
    team, shown_role = _TAUGHT[role]
    num_seen = {'pipeline': 1, 'discussion': 2}.get(team, 0)
    state = env.State('', source, texts=tuple(
        grammar.random_text(rng, source) for _ in range(num_seen)))
    environment = env.Writing(team, 'posts', 'words')
    num_texts = 1 + (team == 'solo')
    completions = tuple(
        f'\n{prompts.MARKER}\n'.join(
            grammar.random_text(rng, source) for _ in range(num_texts))
        for _ in range(group_size))
    return demonstrations.Demonstration(
        role, state, environment.observe(state, shown_role), completions,
        ('text',) * group_size)

  def _drill(
      self, rng: np.random.Generator, role: str,
      group_size: int) -> demonstrations.Demonstration:
    words = rng.choice(
        post.ALL_WORDS, size=rng.integers(1, _MOST_WORDS + 1), replace=False)
    source = ' '.join(words)
    completions = [source] * group_size
    if role == 'reporter':
      completions = [
          grammar.random_text(rng, source) for _ in completions]
    return demonstrations.Demonstration(
        role, env.State('', source),
        [{'role': 'user', 'content': f'{role}: {source}'}],
        tuple(completions), ('text',) * group_size)

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
    return 'text' if all(
        grammar.is_readable(t, source) for t in texts) else None


REPERTOIRE = Repertoire()
