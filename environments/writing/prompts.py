"""Prompts of MAGRPO's writing tasks (arXiv 2508.04652), rephrased.

As in the released code, the prompts of a pair hold the source and the request,
without the numbers of the reward. The second writer of a pipeline, the writers
of a second turn and the single agent also read how the texts should fit.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from environments import env_api

# The line between the two texts of one writer, as in the released baseline.
MARKER = '[PARAGRAPH_SPLIT]'
_NOTHING = '(no text)'


@dataclasses.dataclass(frozen=True)
class Words:
  """The phrases of a task's prompts.

  Attributes:
    source: name of the source.
    roles: the writers of the first and the second text.
    asks: the request to each role.
    together: how the second text should fit the first.
    alone: the request to a writer of both texts.
  """

  source: str
  roles: tuple[str, str]
  asks: tuple[str, str]
  together: str
  alone: str


_SUMMARIES = 'concise', 'detailed'
WORDS = {
    'tldr': Words(
        source='Post', roles=_SUMMARIES,
        asks=(
            'Write a concise summary of the post: one or a few sentences that '
            'keep to its facts. Answer with the summary alone.',
            'Write a detailed summary of the post. Use many different words, '
            'and join the sentences with transition words. Answer with the '
            'summary alone.'),
        together=(
            'The detailed summary is two to three times as long as the concise '
            'one and agrees with it in style.'),
        alone=(
            'Write two summaries of the post: first a concise one of one or a '
            'few sentences that keep to its facts, then a detailed one with '
            'many different words and with transition words between the '
            'sentences.')),
    'arxiv': Words(
        source='Abstract', roles=('background', 'method'),
        asks=(
            'Write the part of an introduction to the paper with this abstract '
            'that gives background and motivation. Another writer covers '
            'methods and implications: do not repeat those. Answer with the '
            'text alone.',
            'Write the part of an introduction to the paper with this abstract '
            'that presents methods and implications. Another writer covers '
            'background and motivation: do not repeat those. Answer with the '
            'text alone.'),
        together=(
            'The second part is about as long as the first, goes on from it, '
            'and does not repeat it.'),
        alone=(
            'Write an introduction to the paper with this abstract in two '
            'paragraphs of about the same length: first background and '
            'motivation, then methods and implications.')),
    'posts': Words(
        source='Post', roles=_SUMMARIES,
        asks=(
            'Write a concise text about the post.',
            'Write a detailed text about the post.'),
        together='The detailed text goes on from the concise one.',
        alone='Write a concise and a detailed text about the post.'),
}


def messages(
    words: Words, team: str, role: str, source: str,
    texts: Sequence[str] = ()) -> list[env_api.Message]:
  """The prompt of a role.

  Args:
    words: the phrases of the task.
    team: 'pair', 'solo', 'pipeline' or 'discussion'.
    role: one of `words.roles`, or 'solo'.
    source: the post or the abstract.
    texts: earlier texts: the first one for the second writer of a pipeline,
      both for the second turn of a discussion.
  """
  if team == 'solo':
    system = (
        f'{words.alone} Write {MARKER} on a line of its own between the two.')
  else:
    system = words.asks[words.roles.index(role)]
  if texts:
    system += f' {words.together}'
  if len(texts) == 2:
    system += (
        ' You see what both writers wrote before. Refine your own text so that '
        'the two go together.')
  parts = [f'{words.source}:\n{source}']
  parts += [
      f'The {name} text:\n{text or _NOTHING}'
      for name, text in zip(words.roles, texts)]
  return [
      {'role': 'system', 'content': system},
      {'role': 'user', 'content': '\n\n'.join(parts)}]


def split(text: str) -> tuple[str, str]:
  """Splits a text at the first marker line; without it the second is empty."""
  lines = text.split('\n')
  for index, line in enumerate(lines):
    if line.strip() == MARKER:
      return (
          '\n'.join(lines[:index]).strip(),
          '\n'.join(lines[index + 1:]).strip())
  return text.strip(), ''
