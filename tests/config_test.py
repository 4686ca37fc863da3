"""A config becomes typed objects; bad values raise errors before any work."""

import json
import math
import os

import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.io import workdir as workdir_lib
from configs import common
from tests import echo

IAC = common.MAGRPO | common.IAC

# One value for each kind of check. A UserError names the key and the value.
BAD_VALUES = {
    'seed': 2**32,
    'policies': 'one',
    'model.dtype': 'float99',
    'rollout.num_tasks': 0,
    'rollout.group_size': 1,
    'rollout.selection': 'all',
    'rollout.selection_temperature': math.inf,
    'rollout.return_type': 'return_to_go',
    'rollout.discount': math.nan,
    'rollout.temperature': 1e-9,
    'rollout.max_new_tokens': 3,
    'rollout.stop': None,
    'advantage.group_key': ('env', 'env'),
    'advantage.extra_terms': (('immediate', ('env',), -1.0),),
    'critic.kind': 'central',
    'loss.surrogate': 'ppo',
    'loss.kl_coefficient': 0.1,
    'optimizer.b1': 2.0,
    'buckets.prompt': (16, 8),
    'mesh.pools': (('shared', '0', 8),),
    'evaluation.temperature': 1e-9,
    'evaluation.top_p': math.nan,
}


@pytest.mark.parametrize('name, value', BAD_VALUES.items())
def test_bad_value_is_named(name, value, echo_folder):
  with pytest.raises(errors.UserError) as error:
    echo.experiment(echo_folder, **{name: value}).tasks('train')
  assert name.rpartition('.')[2] in str(error.value)
  assert repr(value).strip('()') in str(error.value)


@pytest.mark.parametrize('changes, words', [
    ({'environment.module': 'environments.boards.plan_path.env',
      'environment.team': 'solo'}, "'echo/train/0'.*'grid'"),
    ({'rollout.mode': 'joint', 'rollout.return_type': 'return_to_go',
      'rollout.selection': 'first'}, "selection='first'"),
    ({'train.num_steps': 0}, 'never end'),
    ({'train.update_order': 'nodes', 'train.updates_per_rollout': 2},
     "update_order='nodes'"),
    ({'advantage.baseline': 'none'}, "baseline='none' with scale='std'"),
    ({'advantage.extra_terms': (('return_to_go', ('env',), 1.0),)},
     "mode='tree'.*extra_terms.*'return_to_go'"),
    (IAC | {'advantage.extra_terms': (('bootstrapped', ('env',), 1.0),)},
     "extra_terms.*baseline='critic'"),
    (IAC | {'critic.kind': 'none'}, "critic.kind='none'.*'bootstrapped'"),
    (IAC | {'critic.kind': 'central', 'critic.prompt_buckets': (4,)},
     'critic/central .* at most 4 fit'),
    ({'model.trained': 'lora', 'lora.alpha': math.nan}, 'lora.alpha=nan'),
    ({'per_policy': (('shared', 'rollout.mode', 'tree'),)}, 'per_policy'),
    ({'per_policy': (('shared', 'evaluation.top_p', None),)},
     "of 'shared': evaluation.top_p"),
    ({'per_policy': (('shared', 'rollout.stop', ('',)),)}, "rollout.stop=.'',"),
    ({'per_policy': (('shared', 'rollout.max_new_tokens', 3),)},
     'max_new_tokens=3.*below 3'),
    ({'per_policy': (('second', 'evaluation.temperature', -1),)},
     "of 'second': evaluation.temperature"),
    ({'per_policy': (('second', 'lora.rank', 2),)}, "'second'.*'shared'")])
def test_contradiction_is_named(changes, words, echo_folder):
  with pytest.raises(errors.UserError, match=words):
    echo.experiment(echo_folder, **changes).tasks('train')


@pytest.mark.parametrize('pages, remat, recomputes', [
    # An eighth of 8 KiB is too little for a microbatch.
    (2**20, 'auto', False), (2, 'auto', True), (2**20, 'True', True),
    (2, 'False', False)])
def test_products_are_recomputed_where_memory_is_short(
    echo_folder, monkeypatch, pages, remat, recomputes):
  sizes = {'SC_PAGE_SIZE': 4096, 'SC_PHYS_PAGES': pages}
  monkeypatch.setattr(os, 'sysconf', sizes.get)
  experiment = echo.experiment(
      echo_folder, **{'model.remat': remat, 'model.dtype': 'auto'})
  learner = experiment.policies['shared'].learner
  assert learner.remat is recomputes
  assert learner.dtype == model.fastest_dtype('cpu')


def test_workdir_has_one_config_and_one_trainer(tmp_path):
  config = echo.get_config()
  with workdir_lib.lock(tmp_path):
    # A kill may leave this file behind.
    (tmp_path / 'config.unfinished').touch()
    assert not workdir_lib.check_config(tmp_path, config.to_dict())
    workdir_lib.write_config(tmp_path, config.to_dict(), {})
    with pytest.raises(errors.UserError, match='Another process trains'):
      workdir_lib.lock(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['config.json']
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored['config'] == json.loads(config.to_json())
  # The hash covers what a run computes.
  for changes, is_equal in (
      ({'train.num_steps': 7, 'evaluation.name': 'x'}, True),
      ({'buckets.prompt': (4, 8), 'seed': 3}, False)):
    config.update_from_flattened_dict(changes)
    changed_hash = workdir_lib.config_hash(config.to_dict())
    assert (changed_hash == stored['hash']) == is_equal
    if is_equal:
      assert workdir_lib.check_config(tmp_path, config.to_dict())
