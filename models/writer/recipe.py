r"""Recipe of `models/writer`, the base model of the writing task `posts`.

  python -m models.writer.recipe --out runs/writer

It takes 40 minutes on one core. The model copies words, then writes random
texts about a list of words, and last random texts about a post, in the same way
for all roles (`environments/writing/posts/grammar.py`).
"""

from collections.abc import Mapping

import numpy as np

from environments.writing import env
from environments.writing.posts import grammar
from models import pretrain

_MAX_DRILL_WORDS = 24
# Taught role -> the team and the role whose prompt it gets. The first writer of
# a pipeline and the first turn of a discussion have the prompts of a pair.
_PROMPTS = {
    'concise': ('pair', 'concise'),
    'detailed': ('pair', 'detailed'),
    'solo': ('solo', 'solo'),
    'pipeline_detailed': ('pipeline', 'detailed'),
    'discussion_concise': ('discussion', 'concise'),
    'discussion_detailed': ('discussion', 'detailed'),
}


def demonstrate(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int) -> pretrain.Demonstration:
  """Draws texts about a generated post.

  Besides the roles of `_PROMPTS` there are two drills: the `copyist` repeats
  the words of its prompt, and the `reporter` writes random texts about them.
  """
  del kinds  # All completions are random texts.
  if role in _PROMPTS:
    team, shown_role = _PROMPTS[role]
    source = grammar.random_post(rng)
    num_seen = {'pipeline': 1, 'discussion': 2}.get(team, 0)
    state = env.State('', source, texts=tuple(
        grammar.random_text(rng, source) for _ in range(num_seen)))
    messages = env.Writing(team, 'posts').observe(state, shown_role)
  else:
    source = ' '.join(rng.choice(
        grammar.ALL_WORDS, size=rng.integers(1, _MAX_DRILL_WORDS + 1),
        replace=False))
    state = env.State('', source)
    messages = [{'role': 'user', 'content': f'{role}: {source}'}]
  num_texts = 2 if role == 'solo' else 1
  return pretrain.Demonstration(state, messages, tuple(
      source if role == 'copyist' else f'\n{env.MARKER}\n'.join(
          grammar.random_text(rng, source) for _ in range(num_texts))
      for _ in range(group_size)))


def _phase(num_steps, group_size, **num_groups):
  return pretrain.Phase(num_steps, group_size, {'posts': {
      role: (num, {'text': 1.0}) for role, num in num_groups.items()}})


RECIPE = pretrain.Recipe(
    tasks={'posts': demonstrate},
    # A token is a word with the blank before it, or a part of a word, so each
    # word is a choice.
    tokenizer=pretrain.BytePairs(1024, r' ?\w+|[^\w ]', num_steps=200),
    phases={
        'drill': _phase(250, 1, copyist=48),
        'practice': _phase(450, 4, reporter=16),
        'texts': _phase(
            1100, 4, concise=4, detailed=4, solo=2, pipeline_detailed=1,
            discussion_concise=1, discussion_detailed=1),
    },
    prompt_buckets=(48, 144, 208, 304),
    completion_buckets=(32, 80, 176),
    groups_per_batch=16)

if __name__ == '__main__':
  pretrain.main(lambda: RECIPE, __doc__)
