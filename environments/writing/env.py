"""Two texts about one source, by a team of writers (MAGRPO, arXiv 2508.04652).

`kind` names the task and its reward (see `rewards.py`):

  tldr               a concise and a detailed summary of a Reddit post
  factbook           tldr on passages about the history of a country
  arxiv_a, arxiv_b   the background and the methods in an introduction to a
                     paper; two versions of the released reward
  posts              tldr for a model of a million parameters, on generated
                     posts; a text counts as empty if a sentence is not in the
                     grammar, or if two are about the same fact

The first role writes the first text, the second role the second. A `pair`
writes at the same time. In a `pipeline` the second writer sees the first text.
In the second turn of a `discussion`, which alone is paid, both see both texts
and write again. `solo` writes both texts, with a marker line between them.

As in the released code, the prompts of a pair hold the source and the request,
without the numbers of the reward. The second writer of a pipeline, the writers
of a second turn and the single agent also read how the texts should fit. The
wording is ours.

The only preset is `outcome`: the team reward is the return of `rewards.py`, in
[0, 1], and there are no local rewards. Only the last phase of an episode has
reward terms, the points of `rewards.py`. `success` means that all four levels
were scored.

A text is the reply without the thinking part and without outer blanks. An empty
text is a PARSE_ERROR, and so is a reply of `solo` without the marker line. Such
a reply has no second text and pays 0. The released baseline cuts it at a random
character.
"""

from collections.abc import Mapping
import dataclasses
import re

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.writing import rewards
from environments.writing.posts import grammar

TEAMS = ('discussion', 'pair', 'pipeline', 'solo')
# The line between the two texts of one writer, as in the released baseline.
MARKER = '[PARAGRAPH_SPLIT]'


@dataclasses.dataclass(frozen=True)
class Phrases:
  """The phrases of a task's prompts."""

  source: str
  roles: tuple[str, str]  # The writers of the first and the second text.
  requests: tuple[str, str]  # The request to each role.
  relation: str  # How the second text should fit the first.
  solo_request: str  # The request to a writer of both texts.


_SUMMARIES = 'concise', 'detailed'


def _summary_phrases(source: str) -> Phrases:
  return Phrases(
      source=source.capitalize(), roles=_SUMMARIES,
      requests=(
          f'Write a concise summary of the {source}: one or a few sentences '
          'that keep to its facts. Answer with the summary alone.',
          f'Write a detailed summary of the {source}. Use many different '
          'words, and join the sentences with transition words. Answer with '
          'the summary alone.'),
      relation=(
          'The detailed summary is two to three times as long as the concise '
          'one and agrees with it in style.'),
      solo_request=(
          f'Write two summaries of the {source}: first a concise one of one or '
          'a few sentences that keep to its facts, then a detailed one with '
          'many different words and with transition words between the '
          'sentences.'))


PHRASES = {
    'tldr': _summary_phrases('post'),
    'factbook': _summary_phrases('passage'),
    'arxiv': Phrases(
        source='Abstract', roles=('background', 'method'),
        requests=(
            'Write the part of an introduction to the paper with this abstract '
            'that gives background and motivation. Another writer covers '
            'methods and implications: do not repeat those. Answer with the '
            'text alone.',
            'Write the part of an introduction to the paper with this abstract '
            'that presents methods and implications. Another writer covers '
            'background and motivation: do not repeat those. Answer with the '
            'text alone.'),
        relation=(
            'The second part is about as long as the first, goes on from it, '
            'and does not repeat it.'),
        solo_request=(
            'Write an introduction to the paper with this abstract in two '
            'paragraphs of about the same length: first background and '
            'motivation, then methods and implications.')),
    'posts': Phrases(
        source='Post', roles=_SUMMARIES,
        requests=(
            'Write a concise text about the post.',
            'Write a detailed text about the post.'),
        relation='The detailed text goes on from the concise one.',
        solo_request='Write a concise and a detailed text about the post.'),
}


@dataclasses.dataclass(frozen=True)
class State:
  task_id: str
  source: str
  turn: int = 0  # Completed turns.
  # The texts that the next phase sees: the first one for the second writer of a
  # pipeline, both in the second turn of a discussion.
  texts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Writing:
  """The environment; see `environments.env_api.Environment`."""

  team: str  # One of `TEAMS`.
  kind: str  # A key of `rewards.SPECS`.

  team_reward_range = (0.0, 1.0)

  @property
  def phrases(self) -> Phrases:
    return PHRASES[self.kind.partition('_')[0]]

  @property
  def roles(self) -> tuple[str, ...]:
    return ('solo',) if self.team == 'solo' else self.phrases.roles

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    if self.team == 'pipeline':
      return tuple((role,) for role in self.roles)
    return (self.roles,)

  @property
  def max_turns(self) -> int:
    return 2 if self.team == 'discussion' else 1

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['text'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    phrases = self.phrases
    if role == 'solo':
      system = (
          f'{phrases.solo_request} Write {MARKER} on a line of its own between '
          'the two.')
    else:
      system = phrases.requests[phrases.roles.index(role)]
    if state.texts:
      system += f' {phrases.relation}'
    if len(state.texts) == 2:
      system += (
          ' You see what both writers wrote before. Refine your own text so '
          'that the two go together.')
    parts = [f'{phrases.source}:\n{state.source}']
    parts += [
        f'The {name} text:\n{text or "(no text)"}'
        for name, text in zip(phrases.roles, state.texts)]
    return [
        {'role': 'system', 'content': system},
        {'role': 'user', 'content': '\n\n'.join(parts)}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    replies = {
        role: text_lib.reply(action).strip()
        for role, action in actions.items()}
    texts = tuple(replies[role] for role in self.roles if role in replies)
    is_complete = {role: bool(reply) for role, reply in replies.items()}
    if self.team == 'solo':
      texts = _split(*texts)
      is_complete = {'solo': all(texts)}
    outcomes = {
        role: env_api.Outcome.OK if complete else env_api.Outcome.PARSE_ERROR
        for role, complete in is_complete.items()}
    if self.team == 'pipeline':
      texts = (*state.texts, *texts)
    turn = state.turn + (len(texts) == 2)
    state = dataclasses.replace(state, turn=turn, texts=texts)
    done = turn == self.max_turns
    scores = rewards.Scores({})
    if done:
      if self.kind == 'posts':
        texts = tuple(
            text if grammar.is_readable(text, state.source) else ''
            for text in texts)
      scores = rewards.score(*texts, rewards.SPECS[self.kind])
    success = done and not scores.stopped
    return env_api.Step(
        state=state, team_reward=scores.normalised,
        local_rewards=dict.fromkeys(actions, 0.0), reward_terms=scores.terms,
        done=done, success=success, truncated=done and not success,
        outcomes=outcomes)

  def show(self, state: State) -> dict[str, str]:
    return {
        'source': state.source, **dict(zip(self.phrases.roles, state.texts))}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, kind: str) -> Writing:
  """Builds the environment; `max_turns` is 2 for a discussion, otherwise 1."""
  del sandbox  # No role writes programs.
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, ['outcome']),
      **{'options.kind': (kind, rewards.SPECS)})
  environment = Writing(team, kind)
  if max_turns != environment.max_turns:
    raise ValueError(
        f'environment.max_turns={max_turns}: expected {environment.max_turns} '
        f'for the team {team!r}.')
  return environment


def _split(text: str) -> tuple[str, str]:
  """Splits a text at the first marker line; without it the second is empty."""
  first, *second = re.split(
      rf'^[^\S\n]*{re.escape(MARKER)}[^\S\n]*$', text, maxsplit=1,
      flags=re.MULTILINE)
  return first.strip(), ''.join(second).strip()
