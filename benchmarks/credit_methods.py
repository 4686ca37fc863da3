"""The ways to give credit that `benchmarks.credit` compares."""

from __future__ import annotations

import dataclasses
import itertools

from atgrpo_jax import experiment
from atgrpo_jax.algorithms import spec as spec_lib
from configs import common

_CONFIG = common.game_config('plan_path', 'size=nano')
LAMBDA = 0.95
CRITICS = {'IAC': 'independent', 'MAAC': 'central'}
# Advantages that are measured, and those that are learned from.
MEASURED = {'baseline': 'leave_one_out', 'scale': 'none'}
LEARNED = {'baseline': 'mean', 'scale': 'std'}
# Of critics of form v.
CRITIC_MEASURED = {'baseline': 'critic', 'scale': 'none'}
CRITIC_LEARNED = {'baseline': 'critic', 'scale': 'std'}


@dataclasses.dataclass(frozen=True)
class Method:
  """A way to give credit: the switches of the rollout and the baseline.

  Attributes:
    name: in the table.
    rollout: how tasks are played.
    group_key: whose returns are compared.
    critic: None without one.
    exact: the critic knows the true mean return of what it is shown, instead of
      learning it.
    update_order: 'mixed', a gradient of all candidates, or 'last_turn', one for
      each turn.
  """

  name: str
  rollout: spec_lib.RolloutSpec
  group_key: str
  critic: spec_lib.CriticSpec | None = None
  exact: bool = False
  update_order: str = 'mixed'

  def __post_init__(self):
    if self.critic:
      spec_lib.check_critic(
          self.critic, self.rollout, self.advantage(measured=True))

  def advantage(self, *, measured: bool) -> spec_lib.AdvantageSpec:
    """How returns become advantages."""
    if self.critic and self.critic.form == 'v':
      kind = CRITIC_MEASURED if measured else CRITIC_LEARNED
    else:
      kind = MEASURED if measured else LEARNED
    return spec_lib.AdvantageSpec(self.group_key, **kind)


def rollout_spec(**switches) -> spec_lib.RolloutSpec:
  """The rollout of the default config, with changes."""
  return dataclasses.replace(experiment.rollout_spec(_CONFIG), **switches)


def methods(group_size: int) -> list[Method]:
  """Every mode, selection, return type and group key that go together.

  And of the critics, those of one step and of `LAMBDA`, learned and exact.
  """
  def tree(name, selection, **switches):
    return Method(
        f'tree, {name}, {selection}',
        rollout_spec(group_size=group_size, selection=selection, **switches),
        'env+agent+turn')

  def parallel(return_type, group_key):
    return Method(
        f'parallel, {return_type}, {group_key}',
        rollout_spec(
            mode='parallel', group_size=group_size, selection='all',
            return_type=return_type),
        group_key)

  def joint(return_type, selection, update_order='mixed'):
    return Method(
        f'joint, {return_type}, {selection}'
        + (', an update for each turn' if update_order != 'mixed' else ''),
        rollout_spec(
            mode='joint', group_size=group_size, selection=selection,
            return_type=return_type),
        'env+agent+turn+branch', update_order=update_order)

  def actor_critic(name, form, gae_lambda, kind, selection):
    return Method(
        f'{name}, {"q" if form == "q" else f"lambda {gae_lambda:g}"}, {kind}, '
        f'{selection}',
        rollout_spec(
            mode='joint', group_size=group_size, selection=selection,
            return_type='bootstrapped'),
        # With a critic, nothing is compared but the scale.
        'agent+turn' if form == 'v' else 'env+agent+turn+branch',
        dataclasses.replace(
            spec_lib.CriticSpec(**_CONFIG.critic), kind=CRITICS[name],
            form=form, gae_lambda=gae_lambda),
        exact=kind == 'exact',
        update_order='last_turn' if selection == 'all' else 'mixed')

  return [
      *(tree('immediate', selection)
        for selection in spec_lib.SELECTIONS['tree']),
      *(tree(f'monte_carlo {num}', selection, return_type='monte_carlo',
             num_continuations=num)
        for selection in spec_lib.SELECTIONS['tree'] for num in (1, 4)),
      parallel('episode_return', 'env'),
      *(parallel(return_type, 'env+agent+turn')
        for return_type in ('immediate', 'return_to_go', 'episode_return')),
      joint('return_to_go', 'all'),
      joint('return_to_go', 'all', 'last_turn'),
      *(joint('immediate', selection)
        for selection in ('team_greedy', 'uniform', 'first')),
      *(actor_critic(name, form, gae_lambda, kind, selection)
        for name, (form, gae_lambda, selection), kind in itertools.product(
            CRITICS,
            [('v', 0.0, 'first'), ('v', LAMBDA, 'first'),
             ('v', LAMBDA, 'all'), ('q', 0.0, 'all')],
            ['exact', 'learned'])),
  ]
