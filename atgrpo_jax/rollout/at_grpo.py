"""AT-GRPO's rollout: agent- and turn-wise groups on a greedy spine.

Algorithm 1 of arXiv 2510.11062. For every environment, turn and agent in
order: G candidates are sampled from one prompt; each is stepped from the same
state; their rewards make one group under the key (task, role, turn); the
candidate with the largest reward is the one whose state goes on. The next
agent acts on that state in the same turn.

The baseline, plain GRPO on a team, plays G independent episodes of each task.
Only their first prompt is the same, and sampled as one group; each later prompt
is a group of one, and who is compared is up to `rl.advantages.group_ids`.

Deviations from the paper: ties go to the first candidate; a candidate that
failed for a reason that is not the model's own leaves its group.

Deviations from the authors' code (each has a test): a group never holds
candidates of two tasks or roles; agents act one after another within a turn;
every candidate is scored from the same state, and the chosen one's state is
the one that goes on; the other agents of a turn keep their samples when one
agent ends the episode; of parallel episodes, those that end early are trained
on to their last action; nothing is filtered or duplicated before the group
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import zlib

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import types
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base

# What a candidate's reward may be in each rollout.
TARGETS = {
    'tree': ('immediate', 'monte_carlo'),
    'parallel': ('immediate', 'return_to_go', 'episode_return'),
}
SELECTIONS = (
    'acting_greedy', 'team_greedy', 'softmax', 'uniform', 'epsilon_greedy')
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout.

  A step pays alpha * team reward + local reward of the role that acts. Nothing
  is discounted. Local rewards judge single actions and are not summed over
  turns: that would pay whoever puts off the end.

  Attributes:
    rollout: 'tree' is AT-GRPO; 'parallel': independent episodes.
    group_size: candidates of one prompt, or episodes of one task (G).
    selection: which candidate's state goes on in a tree. 'acting_greedy': the
      largest reward (the paper); 'team_greedy': the largest team reward;
      'softmax': drawn with probability softmax(reward /
      selection_temperature); 'uniform': drawn; 'epsilon_greedy': drawn with
      probability epsilon, else the largest reward.
    selection_temperature: of 'softmax'.
    selection_epsilon: of 'epsilon_greedy'.
    target: what a candidate's reward is. 'immediate': what its step pays (the
      paper's).
      In a tree, 'monte_carlo': that, and alpha * the mean team reward of
      `num_continuations` episodes from its state, sampled by the same policies.
      Selection sees it too.
      Of parallel episodes, 'return_to_go': what its step pays, and alpha * the
      team rewards of what follows; 'episode_return': alpha * the team rewards
      of its whole episode, and the mean of its role's own local rewards over
      the turns in which the role acts (plain GRPO, with
      advantage.group_key='env'). All actions of a role in an episode have one
      return; roles without local rewards share one.
    num_continuations: of each candidate, for 'monte_carlo'.
    alpha: weight of the team reward; the local terms carry their own.
  """

  rollout: str = 'tree'
  group_size: int = 8
  selection: str = 'acting_greedy'
  selection_temperature: float = 1.0
  selection_epsilon: float = 0.1
  target: str = 'immediate'
  num_continuations: int = 4
  alpha: float = 1.0

  def __post_init__(self):
    if self.rollout == 'joint':
      raise errors.UserError(
          "rollout='joint' is not implemented yet; use 'tree' or 'parallel'.")
    for name, value, known in (
        ('rollout', self.rollout, tuple(TARGETS)),
        ('selection', self.selection, SELECTIONS),
        ('target', self.target, tuple(dict.fromkeys(sum(TARGETS.values(), ()))))
    ):
      if value not in known:
        raise errors.UserError(
            f'{name}={value!r} is not one of {list(known)}.')
    if self.target not in TARGETS[self.rollout]:
      why = (
          'a candidate of a tree that is not chosen has no continuation, so '
          "its return is unknown; use target='monte_carlo', or "
          "rollout='parallel'" if self.rollout == 'tree' else
          'every candidate goes on in an episode of its own; use '
          "target='return_to_go', or rollout='tree'")
      raise errors.UserError(
          f'target={self.target!r} with rollout={self.rollout!r}: {why}.')
    if self.rollout == 'parallel' and self.selection != 'acting_greedy':
      raise errors.UserError(
          f"selection={self.selection!r} with rollout='parallel': every "
          "candidate goes on, so none is selected; leave 'acting_greedy'.")
    if self.group_size < 2:
      raise errors.UserError(
          f'group_size={self.group_size}: an advantage compares the '
          'candidates of a group, so it must be at least 2.')
    if not 0 <= self.alpha < math.inf:
      raise errors.UserError(
          f'alpha={self.alpha}: the weight of the team reward must be a number '
          'of at least 0.')
    if not self.selection_temperature > 0:
      raise errors.UserError(
          f'selection_temperature={self.selection_temperature} must be above '
          "0; for the largest reward use selection='acting_greedy'.")
    if not 0 <= self.selection_epsilon <= 1:
      raise errors.UserError(
          f'selection_epsilon={self.selection_epsilon} is no probability; '
          'give a number from 0 to 1.')
    if self.num_continuations < 1:
      raise errors.UserError(
          f'num_continuations={self.num_continuations} must be at least 1; '
          "for no continuation use target='immediate'.")


@dataclasses.dataclass(frozen=True)
class Episode:
  """How the spine of a task went, or one of its parallel episodes."""

  task_id: str
  turns: int
  success: bool
  truncated: bool


@dataclasses.dataclass(frozen=True)
class Rollout:
  """What one training step collected.

  A parallel episode that a fault ended has groups, but is not in `episodes`.
  """

  groups: list[types.Group]
  episodes: list[Episode]


def collect(
    interaction: interaction_lib.Interaction, tasks: Sequence[base.Task], *,
    step: int, spec: RolloutSpec) -> Rollout:
  """Plays each task and returns all groups.

  Args:
    interaction: environment and policies.
    tasks: distinct tasks, each for one spine or G parallel episodes.
    step: the training step, which enters the sampling keys.
    spec: the switches.
  """
  environment = interaction.environment
  task_ids = [task['task_id'] for task in tasks]
  if len(set(task_ids)) != len(task_ids):
    raise ValueError('Two tasks of a rollout have the same task_id.')
  for phase in environment.phases:
    if len(phase) != 1:
      raise errors.UserError(
          f'The roles {phase} act at once; AT-GRPO compares the candidates '
          'of one role at a time, so give each a phase of its own.')
  player = _Player(interaction, step, spec)
  play = player.tree if spec.rollout == 'tree' else player.parallel
  played = interaction.play([
      play(task['task_id'], environment.reset(task)) for task in tasks])
  # Whoever came first.
  order = [role for role, in environment.phases]
  groups = sorted(
      (group for rollout in played for group in rollout.groups),
      key=lambda group: (
          group.key.turn, order.index(group.key.role),
          task_ids.index(group.key.task_id), group.key.branch))
  return Rollout(
      groups, [episode for rollout in played for episode in rollout.episodes])


@dataclasses.dataclass(frozen=True)
class _Action:
  """One candidate and what came of it."""

  key: types.GroupKey
  answer: interaction_lib.Answer
  member: int  # Which of the answers.
  step: base.Step

  @property
  def outcome(self) -> base.Outcome:
    return self.step.outcomes[self.key.role]

  @property
  def fault(self) -> bool:
    """It failed for a reason that is not the model's own."""
    # A non-finite reward, too, is a fault of the environment.
    rewards = self.step.team_reward, self.step.local_rewards[self.key.role]
    return self.outcome is base.Outcome.INFRASTRUCTURE or not all(
        abs(reward) <= _LARGEST for reward in rewards)

  @property
  def rewards(self) -> np.ndarray:
    """[2] float64: of the team and of the role; NaN after a fault."""
    if self.fault:
      return np.full(2, math.nan)
    return np.array(
        [self.step.team_reward, self.step.local_rewards[self.key.role]])

  @property
  def last(self) -> bool:
    """Nothing follows."""
    return self.step.done or self.fault


# A turn and the role that acts.
_Place = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class _Player:
  """Plays tasks; its methods are episodes or parts of them."""

  interaction: interaction_lib.Interaction
  step: int
  spec: RolloutSpec

  def tree(
      self, task_id: str, state: base.State) -> interaction_lib.Episode:
    """A spine; returns its `Rollout`."""
    spec, groups = self.spec, []
    for index, (turn, role) in enumerate(self._places):
      # Every candidate is tried from the one state of the spine.
      actions = yield from self._try(
          types.GroupKey(task_id, role, turn, 0), state, spec.group_size)
      rewards = np.array([action.rewards for action in actions])
      if spec.target == 'monte_carlo':
        rewards[:, 0] += yield from self._continuations(actions, index)
      elif spec.target != 'immediate':
        raise NotImplementedError(f'No tree knows target={spec.target!r}.')
      team, rewards = rewards[:, 0], rewards @ (spec.alpha, 1)
      chosen = self._select(actions, rewards, team)
      groups.append(self._group(actions, rewards, chosen))
      state, last = actions[chosen].step.state, actions[chosen].step
      if last.done:
        break
    return Rollout(
        groups, [Episode(task_id, turn + 1, last.success, last.truncated)])

  def parallel(
      self, task_id: str, state: base.State) -> interaction_lib.Episode:
    """G independent episodes; returns their `Rollout`."""
    played = yield from self._fan_out(
        task_id, state, self._places, 0, self.spec.group_size)
    if all(actions[-1].fault for actions in played):
      raise RuntimeError(
          f'All {len(played)} episodes of task {task_id!r} failed for reasons '
          'that are not the model\'s own: '
          f'{[actions[-1].outcome.value for actions in played]}.')
    rewards = [self._targets(actions) for actions in played]
    groups = [self._group(
        [actions[0] for actions in played], [own[0] for own in rewards])]
    for actions, own in zip(played, rewards):
      groups += [
          self._group([action], [reward])
          for action, reward in zip(actions[1:], own[1:])]
    lasts = [actions[-1] for actions in played if not actions[-1].fault]
    return Rollout(groups, [
        Episode(task_id, last.key.turn + 1, last.step.success,
                last.step.truncated) for last in lasts])

  @property
  def _places(self) -> list[_Place]:
    environment = self.interaction.environment
    return [
        (turn, role) for turn in range(environment.max_turns)
        for role, in environment.phases]

  def _try(
      self, key: types.GroupKey, state: base.State,
      count: int) -> interaction_lib.Episode:
    """Samples `count` answers to one prompt and steps each from its state."""
    answer, = yield self.interaction.ask(
        [interaction_lib.Ask(key, state)], step=self.step, group_size=count)
    tried = yield self.interaction.act(
        [state] * count, [{key.role: text} for text in answer.texts])
    return [
        _Action(key, answer, member, step) for member, step in enumerate(tried)]

  def _fan_out(
      self, task_id: str, state: base.State, places: Sequence[_Place],
      branch: int, count: int) -> interaction_lib.Episode:
    """Plays episodes from one state to their ends; returns their actions.

    The first prompt, which is that of all, is sampled as one group; its member
    i goes on as branch + i.
    """
    (turn, role), *later = places
    actions = yield from self._try(
        types.GroupKey(task_id, role, turn, branch), state, count)
    return (yield [
        self._go_on(action, later, branch + action.member)
        for action in actions])

  def _go_on(
      self, first: _Action, places: Sequence[_Place],
      branch: int) -> interaction_lib.Episode:
    """Plays the episode that begins with `first`; returns its actions."""
    actions = [first]
    for turn, role in places:
      if actions[-1].last:
        break
      actions += yield from self._try(
          types.GroupKey(first.key.task_id, role, turn, branch),
          actions[-1].step.state, 1)
    return actions

  def _continuations(
      self, actions: Sequence[_Action], index: int) -> interaction_lib.Episode:
    """Mean team reward [G] after each candidate of the tree's place `index`.

    A continuation that a fault ended does not count; where none counts, NaN.
    """
    num = self.spec.num_continuations
    # Branch 0 is the spine.
    first = 1 + index * len(actions) * num
    open_ended = [action for action in actions if not action.last]
    played = yield [
        self._fan_out(
            action.key.task_id, action.step.state, self._places[index + 1:],
            first + action.member * num, num) for action in open_ended]
    means = np.zeros(len(actions))
    for action, continuations in zip(open_ended, played):
      returns = np.array([
          sum(later.rewards[0] for later in one) for one in continuations])
      sound = returns[np.isfinite(returns)]
      means[action.member] = sound.mean() if len(sound) else math.nan
    return means

  def _targets(self, actions: Sequence[_Action]) -> np.ndarray:
    """The reward of each action of a parallel episode."""
    team, local = np.array([action.rewards for action in actions]).T
    if self.spec.target == 'return_to_go':
      team = np.cumsum(team[::-1])[::-1]
    elif self.spec.target == 'episode_return':
      team = team.sum()
      roles = np.array([action.key.role for action in actions])
      local = np.array([local[roles == role].mean() for role in roles])
    elif self.spec.target != 'immediate':
      raise NotImplementedError(
          f'No parallel rollout knows target={self.spec.target!r}.')
    return self.spec.alpha * team + local

  def _select(
      self, actions: Sequence[_Action], rewards: np.ndarray,
      team: np.ndarray) -> int:
    """The candidate whose state goes on."""
    key, valid = actions[0].key, np.isfinite(rewards)
    if not valid.any():
      raise RuntimeError(
          f'All {len(actions)} candidates of {key} failed for reasons that '
          'are not the model\'s own: '
          f'{[action.outcome.value for action in actions]}.')
    return select(
        rewards.astype(np.float32), team.astype(np.float32), valid, self.spec,
        np.random.default_rng([
            self.interaction.seed, self.step, key.turn,
            zlib.crc32(key.task_id.encode()), zlib.crc32(key.role.encode())]))

  def _group(
      self, actions: Sequence[_Action], rewards: Sequence[float],
      chosen: int | None = None) -> types.Group:
    """The candidates of one prompt."""
    key, answer = actions[0].key, actions[0].answer
    rewards = np.array(rewards, np.float32)
    valid = np.isfinite(rewards)
    return types.Group(
        key=key, policy=self.interaction.policy_map[key.role],
        prompt=answer.prompt, completions=answer.completions,
        texts=answer.texts, behavior_logprobs=answer.logprobs,
        rewards=np.where(valid, rewards, np.nan), valid=valid,
        reward_terms=tuple(dict(a.step.reward_terms) for a in actions),
        outcomes=tuple(a.outcome for a in actions), chosen=chosen)


def select(
    rewards: np.ndarray, team_rewards: np.ndarray, valid: np.ndarray,
    spec: RolloutSpec, rng: np.random.Generator) -> int:
  """The index of the candidate whose state goes on.

  Args:
    rewards: [G] float32, the acting agent's.
    team_rewards: [G] float32.
    valid: [G] bool; the others are never chosen.
    spec: `selection` and its parameters.
    rng: for the rules that draw.
  """
  candidates = np.flatnonzero(valid)
  if spec.selection == 'team_greedy':
    return int(candidates[np.argmax(team_rewards[candidates])])
  if spec.selection == 'uniform' or (
      spec.selection == 'epsilon_greedy'
      and rng.random() < spec.selection_epsilon):
    return int(rng.choice(candidates))
  if spec.selection == 'softmax':
    scaled = rewards[candidates] / spec.selection_temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(candidates, p=weights / weights.sum()))
  if spec.selection in ('acting_greedy', 'epsilon_greedy'):
    return int(candidates[np.argmax(rewards[candidates])])
  raise NotImplementedError(f'No rule for selection={spec.selection!r}.')
