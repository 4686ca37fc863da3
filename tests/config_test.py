"""A config becomes typed objects; bad values are refused before any work."""

import contextlib
import json
import math
import re

import jax
import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import workdir as workdir_lib
from configs import common
from tests import echo

IAC = common.MAGRPO | common.IAC
PLAN_PATH = 'environments.boards.plan_path.env'


@pytest.mark.parametrize('name, value', [
    ('rollout.group_size', 1), ('rollout.num_tasks', 0),
    ('rollout.max_new_tokens', 3), ('rollout.max_new_tokens', 0),
    *(('rollout.temperature', value)
      for value in (0.0, -1.0, 1e-9, math.inf, math.nan)),
    ('rollout.selection_temperature', math.inf), ('rollout.selection', 'best'),
    ('policies', 'one'), ('policy_map', (('first', 'a'),)),
    ('advantage.baseline', 'rms'),
    ('train.update_order', 'last'), ('train.updates_per_rollout', 0),
    ('train.checkpoint_every', 0), ('train.groups_every', 0),
    ('train.diagnose_every', -1), ('evaluation.validate_every', 0),
    *(('evaluation.temperature', value)
      for value in (-1.0, 1e-9, math.inf, math.nan)),
    *(('seed', value) for value in (-1, 2**32, 2**70)),
    *((f'optimizer.{name}', value)
      for name in ('learning_rate', 'weight_decay', 'max_grad_norm', 'b1', 'b2')
      for value in (math.inf, math.nan)),
    ('optimizer.learning_rate', -1.0), ('optimizer.max_grad_norm', 0.0),
    ('optimizer.b1', 2.0),
    *((f'loss.{name}', value)
      for name in (
          'clip_low', 'clip_high', 'dual_clip', 'importance_cap',
          'kl_coefficient', 'entropy_coefficient')
      for value in (math.inf, math.nan)),
    *((f'loss.{name}', -1.0)
      for name in ('dual_clip', 'importance_cap', 'kl_coefficient')),
    ('loss.clip_low', -0.1), ('loss.aggregation', 'mean'),
    ('loss.kl_estimator', 'k3'), ('model.dtype', 'float99'),
    ('buckets.prompt', ()), ('buckets.prompt', (16, 8)),
    ('buckets.groups', (0,)), ('buckets.groups', (4, 4)),
    ('buckets.completion', ('a',)), ('buckets.microbatch_tokens', 0),
    ('environment.module', 'environments.chess'), ('environment.module', ''),
    ('environment.module', 'environments.env_api'),
])
def test_bad_values_are_named(name, value, echo_folder):
  key = name.rpartition('.')[2]
  with pytest.raises(
      errors.UserError, match=re.escape(f'{key}={value!r}')):
    echo.experiment(echo_folder, **{name: value})


@pytest.mark.parametrize('changes, words', [
    ({'policies': 'lora_per_role', 'model.trained': 'none'}, "'lora_per_role'"),
    ({'environment.module': PLAN_PATH, 'environment.reward': 'both'},
     "reward='both'"),
    ({'environment.module': PLAN_PATH, 'environment.team': 'solo'},
     "'echo/train/0'.*'grid'"),
    ({'advantage.baseline': 'critic'}, 'critic.*none'),
    ({'critic.kind': 'one'}, "critic.kind='one'"),
    ({'critic.kind': 'central'}, "'central'.*'tree'"),
    (IAC | {'critic.learning_rate': -1.0}, 'learning_rate=-1.0'),
    *(({'model.trained': 'lora', 'lora.alpha': alpha}, f'lora.alpha={alpha}')
      for alpha in (math.nan, math.inf, 0.0, -1.0)),
    ({'per_policy': (('shared', 'optimizer.learning_rate', 1e999),)},
     'learning_rate=inf'),
    (IAC | {'critic.prompt_buckets': (8, 4)}, 'critic.prompt_buckets'),
    ({'dataset.builder': 'environments.no_dataset_builder'}, 'dataset.builder'),
    ({'per_policy': ('shared',)}, "'shared'"),
    ({'per_policy': ((['shared'], 'model.trained', 'all'),)}, 'per_policy'),
    ({'per_policy': (('shared', 'lora.rank', 2), ('shared', 'lora.rank', 2))},
     'lora.rank of shared twice'),
    ({'policy_map': ((1, 'a'), ('second', 'b'))}, 'policy_map'),
    ({'mesh.pools': (('shared', '0', 8),)}, 'mesh.pools'),
    ({'advantage.group_key': (['env'],)}, 'group_key'),
])
def test_contradictions_are_named(changes, words, echo_folder):
  with pytest.raises(errors.UserError, match=words):
    echo.experiment(echo_folder, **changes).tasks('train')


@pytest.mark.parametrize('changes, names', [
    ({}, ['shared']),
    ({'policies': 'per_role'}, ['first', 'second']),
    ({'policy_map': (('second', 'a'), ('first', 'b'))}, ['b', 'a']),
])
def test_every_policy_has_its_own_buffers(changes, names, echo_folder):
  experiment = echo.experiment(echo_folder, **changes)
  states = experiment.initial_states()
  assert list(states) == names

  def signature(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

  assert signature(states) == signature(experiment.state_template())
  # An update donates the buffers of its policy, so no other may hold them.
  first, *others = (state.params for state in states.values())
  jax.tree.map(lambda x: x.delete(), first)
  for params in others:
    assert float(params['embedding'].sum()) != 0.0


def test_the_config_hash_covers_what_a_run_computes():
  def hash_with(**changes):
    config = echo.get_config()
    config.update_from_flattened_dict(changes)
    return workdir_lib.config_hash(config.to_dict())

  for name, value in (
      ('train.num_steps', 7), ('evaluation.temperature', 0.0)):
    assert hash_with(**{name: value}) == hash_with(), name
  hashes = [hash_with(), hash_with(seed=1), hash_with(policies='per_role'),
            hash_with(**{'buckets.prompt': (4, 8)})]
  assert len(set(hashes)) == len(hashes)


def test_a_workdir_has_one_config_and_one_trainer(tmp_path):
  config = echo.get_config()
  with contextlib.closing(workdir_lib.Lock(tmp_path)):
    # A kill may leave this file behind.
    (tmp_path / 'config.unfinished').touch()
    assert not workdir_lib.check_config(tmp_path, config.to_dict())
    workdir_lib.write_config(tmp_path, config.to_dict())
    with pytest.raises(errors.UserError, match='Another process trains'):
      workdir_lib.Lock(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['config.json']
  assert json.loads((tmp_path / 'config.json').read_text()) == {
      'hash': workdir_lib.config_hash(config.to_dict()),
      'config': json.loads(config.to_json())}

  config.update_from_flattened_dict(
      {'train.num_steps': 7, 'evaluation.name': 'x'})
  assert workdir_lib.check_config(tmp_path, config.to_dict())
  config.update_from_flattened_dict(
      {'seed': 3, 'loss.clip_high': 0.3, 'buckets.prompt': (4, 8)})
  with pytest.raises(errors.UserError) as error:
    workdir_lib.check_config(tmp_path, config.to_dict())
  for words in ('buckets.prompt was [4], is now [4, 8]',
                'loss.clip_high was 0.2, is now 0.3', 'seed was 0, is now 3'):
    assert words in str(error.value)
