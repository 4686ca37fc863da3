"""Two texts about one source, by a team of writers (MAGRPO, arXiv 2508.04652).

`kind` names the task and its reward (see `rewards.py`):

  tldr               a concise and a detailed summary of a Reddit post
  arxiv_a, arxiv_b   the background and the methods in an introduction to a
                     paper; two versions of the released reward
  posts              tldr for a model of a million parameters, on generated
                     posts; a text counts as empty if a sentence is not in the
                     grammar, or if two are about the same fact

Teams; the first role writes the first text, the second role the second:

  pair        Both write at the same time; neither sees the other text.
  pipeline    The second writer sees the first text.
  discussion  The first turn is like a pair. In the second turn each writer sees
              both texts and writes again. Only the second turn is paid.
  solo        One agent writes both texts, with a marker line between them.

A text is the reply after the thinking part, stripped of blanks.

Reward terms, all paid to the team, in the points of the paper (`rewards.py`):

  name         range       value                                 sees
  structure    0 or 0.5    lengths in tokens                     both texts
  ratio        0 to 1      ratio of lengths in characters        both texts
  vocabulary   0 to 0.5    ratio of different words              both texts
  transitions  0 to 0.38   categories of transition words        the second;
                                                                 arxiv: both
  jaccard      0 to 0.6    common content words                  both texts

The team reward is their sum divided by the maximum, 2.98, so it is in [0, 1].
There are no local rewards, and the only preset is `outcome`. Only the last
phase of an episode has terms and pays.

`success`: all four levels were scored.

PARSE_ERROR: an empty text, or a reply of `solo` without the marker line. Such a
reply has no second text and pays 0; the released baseline cuts it at a random
character.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from environments import env_api
from environments import sandbox as sandbox_lib
from environments import text as text_lib
from environments.writing import prompts
from environments.writing import rewards
from environments.writing import transitions
from environments.writing.posts import grammar

TEAMS = ('discussion', 'pair', 'pipeline', 'solo')


@dataclasses.dataclass(frozen=True)
class State:
  """An episode between two steps.

  Attributes:
    task_id: id of the task.
    source: the post or the abstract.
    turn: number of completed turns.
    texts: the texts that the next phase sees.
  """

  task_id: str
  source: str
  turn: int = 0
  texts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Writing:
  """The environment; see `environments.env_api.Environment`.

  Attributes:
    team: one of `TEAMS`.
    kind: a key of `rewards.SPECS`.
    matching: how transition words are found; one of `transitions.MATCHING`.
  """

  team: str
  kind: str
  matching: str

  team_reward_range = (0.0, 1.0)

  @property
  def words(self) -> prompts.Words:
    return prompts.WORDS[self.kind.partition('_')[0]]

  @property
  def roles(self) -> tuple[str, ...]:
    return ('solo',) if self.team == 'solo' else self.words.roles

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    if self.team == 'pipeline':
      return tuple((role,) for role in self.roles)
    return (self.roles,)

  @property
  def max_turns(self) -> int:
    return _num_turns(self.team)

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], task['text'])

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    return prompts.messages(
        self.words, self.team, role, state.source, state.texts)

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    replies = {
        role: text_lib.reply(action).strip()
        for role, action in actions.items()}
    if self.team == 'solo':
      texts = prompts.split(replies['solo'])
      complete = {'solo': all(texts)}
    else:
      texts = tuple(replies[role] for role in self.roles if role in replies)
      complete = {role: bool(reply) for role, reply in replies.items()}
    outcomes = {
        role: env_api.Outcome.OK if is_complete
        else env_api.Outcome.PARSE_ERROR
        for role, is_complete in complete.items()}
    if self.team == 'pipeline':
      texts = (*state.texts, *texts)
    turn = state.turn + (len(texts) == 2)
    state = dataclasses.replace(state, turn=turn, texts=texts)
    local_rewards = dict.fromkeys(actions, 0.0)
    if turn < self.max_turns:
      return env_api.Step(
          state=state, team_reward=0.0, local_rewards=local_rewards,
          reward_terms={}, done=False, success=False, truncated=False,
          outcomes=outcomes)
    if self.kind == 'posts':
      texts = tuple(
          text if grammar.is_readable(text, state.source) else ''
          for text in texts)
    scores = rewards.score(*texts, rewards.SPECS[self.kind], self.matching)
    success = not scores.stopped
    return env_api.Step(
        state=state, team_reward=scores.normalised, local_rewards=local_rewards,
        reward_terms=scores.terms, done=True, success=success,
        truncated=not success, outcomes=outcomes)

  def show(self, state: State) -> dict[str, str]:
    return {'source': state.source, **dict(zip(self.words.roles, state.texts))}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, kind: str,
    matching: str = 'words') -> Writing:
  """Builds the environment of a config.

  Args:
    team: one of `TEAMS`.
    max_turns: 2 for a discussion, otherwise 1.
    reward: 'outcome'.
    sandbox: ignored; no role writes programs.
    kind: a key of `rewards.SPECS`.
    matching: 'words', or 'substring' as in the released code.
  """
  del sandbox
  env_api.check_options(max_turns, team=(team, TEAMS), **{
      'options.kind': (kind, rewards.SPECS),
      'options.matching': (matching, transitions.MATCHING)})
  if reward != 'outcome':
    raise ValueError(
        f"environment.reward={reward!r}: expected 'outcome', because writers "
        'have no local terms.')
  if max_turns != _num_turns(team):
    raise ValueError(
        f'environment.max_turns={max_turns}: expected {_num_turns(team)} for '
        f'the team {team!r}.')
  return Writing(team, kind, matching)


def _num_turns(team: str) -> int:
  return 2 if team == 'discussion' else 1
