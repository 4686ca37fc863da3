"""The ways to give credit that `benchmarks.credit` compares."""

from __future__ import annotations

import dataclasses
import itertools

from atgrpo_jax import experiment
from atgrpo_jax.algorithms import spec as spec_lib
from benchmarks import critics
from configs import common

_CONFIG = common.game_config('plan_path', 'size=nano')
LAMBDA = 0.95
# Advantages that are measured, and those that are learned from. With a critic,
# nothing is compared but by the scale of what is learned from.
MEASURED = {'baseline': 'leave_one_out', 'scale': 'none'}
LEARNED = {'baseline': 'mean', 'scale': 'std'}
CRITIC_MEASURED = {'baseline': 'none', 'scale': 'none'}
CRITIC_GROUP_KEY = 'agent+turn'


@dataclasses.dataclass(frozen=True)
class Method:
  """A way to give credit: the switches of the rollout and the baseline.

  Attributes:
    name: in the table.
    rollout: how tasks are played.
    group_key: whose returns are compared.
    critic: what returns are compared with; None without a critic.
  """

  name: str
  rollout: spec_lib.RolloutSpec
  group_key: str
  critic: critics.CriticSpec | None = None

  def advantage(self, *, measured: bool) -> spec_lib.AdvantageSpec:
    """How returns become advantages."""
    kind = LEARNED
    if measured:
      kind = CRITIC_MEASURED if self.critic else MEASURED
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

  def joint(return_type, selection):
    return Method(
        f'joint, {return_type}, {selection}',
        rollout_spec(
            mode='joint', group_size=group_size, selection=selection,
            return_type=return_type),
        'env+agent+turn+branch')

  def actor_critic(name, gae_lambda, kind, selection):
    return Method(
        f'{name}, lambda {gae_lambda}, {kind}, {selection}',
        rollout_spec(
            mode='joint', group_size=group_size, selection=selection,
            return_type='immediate'),
        CRITIC_GROUP_KEY,
        critics.CriticSpec(name, gae_lambda, exact=kind == 'exact'))

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
      *(joint('immediate', selection)
        for selection in ('team_greedy', 'uniform', 'first')),
      *(actor_critic(name, gae_lambda, kind, selection)
        for name, (gae_lambda, selection), kind in itertools.product(
            critics.NAMES,
            [(0, 'first'), (LAMBDA, 'first'), (LAMBDA, 'all')],
            ['exact', 'learned'])),
  ]
