"""The specs of the default config of a small model, with changes."""

from atgrpo_jax import config as config_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rl import losses
from configs import common

_CONFIG = common.game_config('plan_path', 'size=nano')


def rollout(mode='tree', **changes) -> spec_lib.RolloutSpec:
  names = spec_lib.RolloutSpec.__dataclass_fields__
  values = {name: _CONFIG.rollout[name] for name in names} | {
      'mode': mode, 'selection': spec_lib.SELECTIONS.get(mode, ('all',))[0]}
  return spec_lib.RolloutSpec(**values | changes)


def advantage(**changes) -> spec_lib.AdvantageSpec:
  return spec_lib.AdvantageSpec(**{**_CONFIG.advantage, **changes})


def critic(**changes) -> spec_lib.CriticSpec:
  return spec_lib.CriticSpec(**{**_CONFIG.critic, **changes})


def loss(**changes) -> losses.LossSpec:
  section = _CONFIG.copy_and_resolve_references().loss
  section.update(changes)
  return config_lib.loss_spec(section)


def optimizer(**changes) -> policy_lib.OptimizerSpec:
  return policy_lib.OptimizerSpec(**{**_CONFIG.optimizer, **changes})


def learner(**changes) -> policy_lib.LearnerSpec:
  values = {
      'optimizer': optimizer(learning_rate=1e-2), 'loss': loss(),
      'dtype': 'float32', 'remat': False,
      'adapter_scale': None}
  return policy_lib.LearnerSpec(**values | changes)
