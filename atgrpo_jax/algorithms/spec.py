"""The switches of the algorithms; the config has their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.learner import batching
from atgrpo_jax.rl import advantages

# What a candidate's return may be in each mode.
RETURN_TYPES = {
    'tree': ('immediate', 'monte_carlo'),
    'parallel': ('immediate', 'return_to_go', 'episode_return'),
    'joint': ('immediate', 'return_to_go', 'bootstrapped'),
}
# Which candidate, or joint action, goes on in each mode.
SELECTIONS = {
    'tree': (
        'greedy', 'team_greedy', 'softmax', 'uniform',
        'epsilon_greedy'),
    'parallel': ('all',),
    'joint': ('all', 'team_greedy', 'uniform', 'first'),
}
JOINT_ACTIONS = ('aligned', 'cross')
CROSS_CREDITS = ('mean', 'sum')


@dataclasses.dataclass(frozen=True)
class RolloutSpec:
  """The switches of the rollout.

  A step pays alpha * team reward + local reward of the role that acts.

  Attributes:
    mode: 'tree' is AT-GRPO (`at_grpo`); 'parallel' plays independent episodes
      (`grpo`); 'joint' is MAGRPO (`magrpo`).
    group_size: candidates of one prompt, or episodes of one task (G).
    selection: which candidate's state goes on. In a tree, 'greedy': the
      largest return (the paper); 'team_greedy': the largest team reward;
      'softmax': drawn with probability softmax(return /
      selection_temperature); 'uniform': drawn; 'epsilon_greedy': drawn with
      probability epsilon, else the largest return. Of parallel episodes, 'all'.
      Of joint actions, 'all' (the paper), or one: 'team_greedy', 'uniform' or
      'first'.
    selection_temperature: of 'softmax'.
    selection_epsilon: of 'epsilon_greedy'.
    return_type: what a candidate's return is. 'immediate': what its step pays
      (AT-GRPO).
      In a tree, 'monte_carlo': that, and alpha * the mean team reward of
      `num_continuations` episodes from its state, sampled by the same policies.
      Selection sees it too.
      Of parallel episodes, 'return_to_go' and 'episode_return' (plain GRPO,
      with advantage.group_key='env'), see `rl.returns`. All actions of a role
      in an episode have one episode return; roles without local rewards share
      one.
      Of joint actions that all go on, 'return_to_go' (MAGRPO). Of joint
      actions, 'bootstrapped': what the step pays and what a critic expects to
      follow, see `CriticSpec`.
    num_continuations: of each candidate, for 'monte_carlo'.
    alpha: weight of the team reward; the local terms carry their own.
    discount: of the rewards of each later step, in 'return_to_go',
      'bootstrapped' and 'monte_carlo'.
    joint_actions: of a phase with several roles. 'aligned': the candidates of
      one index; 'cross': all combinations.
    cross_credit: the return of a candidate is the 'mean' or the 'sum' of those
      of its joint actions; one, where they are aligned.
    max_joint_actions: of one task; a rollout that may have more is refused.
    stop_above: nothing follows joint actions of one state whose mean team
      reward, times alpha, is larger; None for never.
  """

  mode: str
  group_size: int
  selection: str
  selection_temperature: float
  selection_epsilon: float
  return_type: str
  num_continuations: int
  alpha: float
  discount: float
  joint_actions: str
  cross_credit: str
  max_joint_actions: int
  stop_above: float | None

  def __post_init__(self):
    for name, value, known in (
        ('mode', self.mode, tuple(RETURN_TYPES)),
        ('selection', self.selection, _all(SELECTIONS)),
        ('return_type', self.return_type, _all(RETURN_TYPES)),
        ('joint_actions', self.joint_actions, JOINT_ACTIONS),
        ('cross_credit', self.cross_credit, CROSS_CREDITS)):
      if value not in known:
        raise errors.UserError(
            f'{name}={value!r} is not one of {list(known)}.')
    for name, value, known, why in (
        ('selection', self.selection, SELECTIONS, {
            'tree': 'one candidate goes on',
            'parallel': 'every candidate goes on in an episode of its own',
            'joint': 'all joint actions go on, or one whatever its roles'}),
        ('return_type', self.return_type, RETURN_TYPES, {
            'tree': 'a candidate that is not chosen has no continuation, so '
                    'what follows it is unknown',
            'parallel': 'every candidate goes on in an episode of its own',
            'joint': 'what follows a joint action is known from its own '
                     'branches, or from a critic'})):
      if value not in known[self.mode]:
        raise errors.UserError(
            f'{name}={value!r} with mode={self.mode!r}: {why[self.mode]}; use '
            f'one of {list(known[self.mode])}, or another mode.')
    if self.mode == 'joint' and (
        self.return_type == 'return_to_go' and self.selection != 'all'):
      raise errors.UserError(
          f"return_type='return_to_go' with selection={self.selection!r}: a "
          'joint action that is not chosen has no continuation, so what '
          "follows it is unknown; use selection='all' or "
          "return_type='immediate'.")
    if self.mode != 'joint':
      for name, value, unused in (
          ('joint_actions', self.joint_actions, 'aligned'),
          ('cross_credit', self.cross_credit, 'mean'),
          ('stop_above', self.stop_above, None)):
        if value != unused:
          raise errors.UserError(
              f"{name}={value!r} is of mode='joint' alone; leave {unused!r} "
              f'with mode={self.mode!r}.')
    if not 0 <= self.discount <= 1:
      raise errors.UserError(
          f'discount={self.discount} must be a number from 0 to 1.')
    if self.discount != 1 and self.return_type not in (
        'return_to_go', 'bootstrapped', 'monte_carlo'):
      raise errors.UserError(
          f'discount={self.discount} with return_type={self.return_type!r}: '
          "nothing that follows is weighed there; use 'return_to_go', "
          "'bootstrapped' or 'monte_carlo', or discount=1.0.")
    if self.group_size < 1 or (
        self.group_size == 1 and self.return_type != 'bootstrapped'):
      raise errors.UserError(
          f'group_size={self.group_size}: an advantage compares the '
          'candidates of a group, so it must be at least 2 (1, where a '
          "critic's value of the prompt is the baseline).")
    errors.check_number('rollout.alpha', self.alpha, min_value=0)
    errors.check_number(
        'rollout.selection_temperature', self.selection_temperature,
        greater_than=0,
        advice="; for the largest reward use selection='greedy'")
    if not 0 <= self.selection_epsilon <= 1:
      raise errors.UserError(
          f'selection_epsilon={self.selection_epsilon} is no probability; '
          'give a number from 0 to 1.')
    if self.num_continuations < 1:
      raise errors.UserError(
          f'num_continuations={self.num_continuations} must be at least 1; '
          "for no continuation use return_type='immediate'.")

  def select(
      self, returns: np.ndarray, team_returns: np.ndarray,
      rng: np.random.Generator) -> int:
    """Index of the candidate, or joint action, whose state continues.

    Args:
      returns: [J] float, of the acting agent or the team; a non-finite one is
        never selected.
      team_returns: [J] float, the team part alone.
      rng: for the rules that draw.
    """
    known = np.flatnonzero(np.isfinite(returns))
    if self.selection == 'first':
      return int(known[0])
    if self.selection == 'team_greedy':
      return int(known[np.argmax(team_returns[known])])
    if self.selection == 'uniform' or (
        self.selection == 'epsilon_greedy'
        and rng.random() < self.selection_epsilon):
      return int(rng.choice(known))
    if self.selection == 'softmax':
      scaled = returns[known] / self.selection_temperature
      weights = np.exp(scaled - scaled.max())
      return int(rng.choice(known, p=weights / weights.sum()))
    if self.selection in ('greedy', 'epsilon_greedy'):
      return int(known[np.argmax(returns[known])])
    raise NotImplementedError(f'No rule for selection={self.selection!r}.')

  def num_joint_actions(
      self, phases: Sequence[Sequence[str]], turns: int) -> int:
    """The most that a task may have, of mode 'joint'."""
    total, states = 0, 1
    for _ in range(turns):
      for roles in phases:
        each = self.group_size**(
            len(roles) if self.joint_actions == 'cross' else 1)
        total += states * each
        states *= each if self.selection == 'all' else 1
    return total


def _all(known: Mapping[str, Sequence[str]]) -> list[str]:
  """The values of any mode."""
  return list(dict.fromkeys(itertools.chain(*known.values())))


# Parts of a group key as the config names them -> fields of `GroupKey`.
GROUP_KEY_PARTS = {
    'env': 'task_id', 'agent': 'role', 'turn': 'turn', 'branch': 'branch'}


@dataclasses.dataclass(frozen=True)
class AdvantageSpec:
  """Who is compared, and how.

  Attributes:
    group_key: which candidates share a baseline, as parts joined by '+':
      'env+agent+turn' is AT-GRPO, 'env' plain GRPO on a team,
      'env+agent+turn+branch' MAGRPO.
    baseline: see `rl.advantages`; 'critic' is the value of the prompt.
    scale: see `rl.advantages`.
  """

  group_key: str
  baseline: str
  scale: str

  def __post_init__(self):
    parts = self.group_key.split('+')
    unknown = set(parts) - GROUP_KEY_PARTS.keys()
    if unknown or len(set(parts)) < len(parts):
      raise errors.UserError(
          f'advantage.group_key={self.group_key!r}: expected some of '
          f'{list(GROUP_KEY_PARTS)}, joined by +, each at most once.')
    for name, value, known in (
        ('baseline', self.baseline, (*advantages.BASELINES, 'critic')),
        ('scale', self.scale, advantages.SCALES)):
      if value not in known:
        raise errors.UserError(
            f'advantage.{name}={value!r} is not one of {list(known)}.')
    if self.baseline == 'none' and self.scale != 'none':
      raise errors.UserError(
          f"advantage.baseline='none' with scale={self.scale!r}: returns that "
          "are all equal have no deviation; use scale='none'.")

  @property
  def fields(self) -> tuple[str, ...]:
    """Of `GroupKey`, those that candidates of one baseline have in common."""
    return tuple(GROUP_KEY_PARTS[part] for part in self.group_key.split('+'))


CRITIC_KINDS = ('none', 'independent', 'central')
CRITIC_FORMS = ('v', 'q')


@dataclasses.dataclass(frozen=True)
class CriticSpec:
  """The switches of actor-critic; see `actor_critic`.

  Attributes:
    kind: 'none'; 'independent' (IAC), a critic per policy that sees the prompt
      of the acting role; 'central' (MAAC), one critic that sees the prompts of
      the acting roles and of those that have acted in this turn.
    form: 'v' values a prompt; 'q' values a prompt with its candidate, or with
      the candidates of all acting roles for a central critic.
    learning_rate: the other optimizer settings are those of the policy.
    gae_lambda: see `rl.td`.
    prompt_buckets: padded input lengths, ascending; () for buckets.prompt.
  """

  kind: str
  form: str
  learning_rate: float
  gae_lambda: float
  prompt_buckets: tuple[int, ...]

  def __post_init__(self):
    for name, value, known in (
        ('kind', self.kind, CRITIC_KINDS), ('form', self.form, CRITIC_FORMS)):
      if value not in known:
        raise errors.UserError(
            f'critic.{name}={value!r} is not one of {list(known)}.')
    if self.kind == 'none':
      for name, unused in (
          ('form', 'v'), ('gae_lambda', 0), ('prompt_buckets', ())):
        if getattr(self, name) != unused:
          raise errors.UserError(
              f"critic.{name}={getattr(self, name)!r} with critic.kind='none' "
              f'has no effect; leave {unused!r}, or set critic.kind to '
              "'independent' or 'central'.")
    errors.check_number(
        'critic.learning_rate', self.learning_rate, min_value=0)
    if not 0 <= self.gae_lambda <= 1:
      raise errors.UserError(
          f'critic.gae_lambda={self.gae_lambda} must be a number from 0 to 1.')
    batching.check_sizes('critic.prompt_buckets', self.prompt_buckets)
    if self.form == 'q' and self.gae_lambda:
      raise errors.UserError(
          f"critic.gae_lambda={self.gae_lambda} with critic.form='q', whose "
          "target bootstraps after one step; leave 0.0, or use form='v'.")


def check_critic(
    critic: CriticSpec, rollout: RolloutSpec, advantage: AdvantageSpec) -> None:
  """Raises UserError unless the critic fits the return type and baseline."""
  bootstrapped = rollout.return_type == 'bootstrapped'
  if critic.kind == 'none':
    if bootstrapped or advantage.baseline == 'critic':
      name, value = (
          ('rollout.return_type', 'bootstrapped') if bootstrapped
          else ('advantage.baseline', 'critic'))
      raise errors.UserError(
          f"{name}={value!r} with critic.kind='none' needs a critic; set "
          "critic.kind to 'independent' or 'central', or choose another value.")
    return
  if not bootstrapped:
    raise errors.UserError(
        f'critic.kind={critic.kind!r} with rollout.mode={rollout.mode!r} and '
        f'return_type={rollout.return_type!r} would never query the critic; '
        "use mode='joint' with return_type='bootstrapped', or "
        "critic.kind='none'.")
  if (critic.form == 'v') != (advantage.baseline == 'critic'):
    wanted = "'critic'" if critic.form == 'v' else (
        "'mean', 'leave_one_out', 'max' or 'none'")
    raise errors.UserError(
        f'critic.form={critic.form!r} with advantage.baseline='
        f'{advantage.baseline!r}: form v gives the baseline of a prompt, form '
        f'q the return of a candidate; use baseline={wanted}, or the other '
        'form.')
  if rollout.cross_credit != 'mean':
    raise errors.UserError(
        f'rollout.cross_credit={rollout.cross_credit!r} with critic.kind='
        f"{critic.kind!r}: critics predict means; use cross_credit='mean'.")
  if critic.form == 'q':
    for name, value, wanted in (
        ('selection', rollout.selection, 'all'),
        ('stop_above', rollout.stop_above, None)):
      if value != wanted:
        raise errors.UserError(
            f"rollout.{name}={value!r} with critic.form='q': a branch that "
            'stops early has no next joint action to bootstrap from; use '
            f"{name}={wanted!r}, or form='v'.")
    if rollout.group_size < 2:
      raise errors.UserError(
          f"rollout.group_size={rollout.group_size} with critic.form='q': the "
          'baseline compares candidates, so it must be at least 2; or use '
          "form='v'.")
