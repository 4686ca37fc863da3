"""The ways to assign credit that `benchmarks.credit` compares."""

from __future__ import annotations

import dataclasses
import itertools

from atgrpo_jax import config as config_lib
from atgrpo_jax.algorithms import spec as spec_lib
from configs import common

_CONFIG = common.game_config('plan_path', 'size=nano')
LAMBDA = 0.95
CRITICS = {'IAC': 'independent', 'MAAC': 'central'}
# Advantages for measuring and for learning, without and with a value critic.
MEASURED = {'baseline': 'leave_one_out', 'scale': 'none'}
LEARNED = {'baseline': 'mean', 'scale': 'std'}
CRITIC_MEASURED = {'baseline': 'critic', 'scale': 'none'}
CRITIC_LEARNED = {'baseline': 'critic', 'scale': 'std'}


@dataclasses.dataclass(frozen=True)
class Method:
  """A rollout and a baseline."""

  name: str  # Row of the table.
  rollout: spec_lib.RolloutSpec  # How tasks are played.
  group_key: tuple[str, ...]  # Which candidates share a baseline.
  critic: spec_lib.CriticSpec | None = None  # None without a critic.
  # The critic knows the true mean returns instead of learning them.
  exact: bool = False
  # 'mixed', one gradient of all candidates, or 'last_turn', one gradient per
  # turn.
  update_order: str = 'mixed'

  def __post_init__(self):
    if self.critic:
      spec_lib.check_critic(
          self.critic, self.rollout, self.advantage(measured=True))

  def advantage(self, *, measured: bool) -> spec_lib.AdvantageSpec:
    if self.critic:
      kind = CRITIC_MEASURED if measured else CRITIC_LEARNED
    else:
      kind = MEASURED if measured else LEARNED
    return spec_lib.AdvantageSpec(self.group_key, **kind)


def rollout_spec(**switches) -> spec_lib.RolloutSpec:
  """The rollout of the default config, with changes."""
  return dataclasses.replace(config_lib.rollout_spec(_CONFIG), **switches)


def methods(group_size: int) -> list[Method]:
  """All valid modes, selections, return types and critics."""
  found = []

  def add(name, group_key, critic=None, exact=False, update_order='mixed',
          **switches):
    found.append(Method(
        name, rollout_spec(group_size=group_size, **switches), group_key,
        critic, exact, update_order))

  selections = spec_lib.SELECTIONS['tree']
  for selection in selections:
    add(f'tree, immediate, {selection}', ('env', 'agent', 'turn'),
        selection=selection)
  for selection, num in itertools.product(selections, (1, 4)):
    add(f'tree, monte_carlo {num}, {selection}', ('env', 'agent', 'turn'),
        selection=selection, return_type='monte_carlo', num_continuations=num)
  for return_type, group_key in (
      ('episode_return', ('env',)), ('immediate', ('env', 'agent', 'turn')),
      ('return_to_go', ('env', 'agent', 'turn')),
      ('episode_return', ('env', 'agent', 'turn'))):
    add(f'parallel, {return_type}, {"+".join(group_key)}', group_key,
        mode='parallel', selection='all', return_type=return_type)
  branch = ('env', 'agent', 'turn', 'branch')
  for update_order, suffix in (
      ('mixed', ''), ('last_turn', ', an update for each turn')):
    add(f'joint, return_to_go, all{suffix}', branch, mode='joint',
        selection='all', return_type='return_to_go', update_order=update_order)
  for selection in ('team_greedy', 'uniform', 'first'):
    add(f'joint, immediate, {selection}', branch, mode='joint',
        selection=selection, return_type='immediate')
  for name, (gae_lambda, selection), kind in itertools.product(
      CRITICS, [(0.0, 'first'), (LAMBDA, 'first'), (LAMBDA, 'all')],
      ['exact', 'learned']):
    critic = dataclasses.replace(
        spec_lib.CriticSpec(**_CONFIG.critic), kind=CRITICS[name],
        gae_lambda=gae_lambda)
    # The group key of a value critic only selects what is scaled together.
    add(f'{name}, lambda {gae_lambda:g}, {kind}, {selection}',
        ('agent', 'turn'), critic, kind == 'exact',
        'last_turn' if selection == 'all' else 'mixed', mode='joint',
        selection=selection, return_type='bootstrapped')
  return found
