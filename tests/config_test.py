"""What a config describes is built, and what cannot work is refused early."""

import contextlib
import json
import math
import shutil

import jax
import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import workdir as workdir_lib
from configs import common
from tests import echo

IAC = common.MAGRPO | common.IAC
PLAN_PATH = 'environments.boards.plan_path.env'


@pytest.mark.parametrize('name, value, words', [
    ('rollout.group_size', 1, 'group_size=1.*at least 2'),
    ('rollout.num_tasks', 0, 'rollout.num_tasks=0.*at least 1'),
    ('rollout.max_new_tokens', 3,
     r'max_new_tokens=3 .* buckets.completion=\(2,\)'),
    ('rollout.read_of_cut', 'half', "read_of_cut='half' is not one of 'all'"),
    ('rollout.max_new_tokens', 0, 'max_new_tokens=0.*at least 1'),
    *(('rollout.temperature', value, f'rollout.temperature={value}.*at least')
      for value in (0.0, -1.0, 1e-9, math.inf, math.nan)),
    ('rollout.selection_temperature', math.inf,
     'rollout.selection_temperature=inf.*finite'),
    ('rollout.selection', 'best', "selection='best' .*'acting_greedy'"),
    ('policies', 'one', "policies='one' .*'first=a,second=a'"),
    ('policies', 'first=a', "policies='first=a' .*every role"),
    ('advantage.baseline', 'rms', "baseline='rms' .*'leave_one_out'"),
    ('train.update_order', 'last', "update_order='last' .*'last_turn'"),
    ('loss.aggregation', 'mean', "aggregation='mean' .*'token_mean'"),
    ('loss.kl_estimator', 'k3', "kl_estimator='k3' and kl_coefficient=0.0"),
    ('loss.clip_low', -0.1, 'clip_low=-0.1.*at least 0'),
    ('train.updates_per_rollout', 0, 'updates_per_rollout=0.*at least 1'),
    ('train.checkpoint_every', 0, 'checkpoint_every=0.*at least 1'),
    ('train.groups_every', 0, 'groups_every=0.*at least 1'),
    ('train.diagnose_every', -1, 'diagnose_every=-1.*at least 0'),
    ('evaluation.validate_every', 0, 'validate_every=0.*at least 1'),
    *(('evaluation.temperature', value,
       f'evaluation.temperature={value}.*at least 1e-06, or 0')
      for value in (-1.0, 1e-9, math.inf, math.nan)),
    *(('seed', value, f'seed={value}.*at least 0 and below 4294967296')
      for value in (-1, 2**32, 2**70)),
    *((f'optimizer.{name}', value, f'optimizer.{name}={value}.*finite')
      for name in (
          'learning_rate', 'final_share', 'weight_decay', 'max_grad_norm',
          'b1', 'b2')
      for value in (math.inf, math.nan)),
    *((f'loss.{name}', value, f'loss.{name}={value}.*finite')
      for name in (
          'clip_low', 'clip_high', 'dual_clip', 'importance_cap',
          'kl_coefficient', 'entropy_coefficient')
      for value in (math.inf, math.nan)),
    *((f'loss.{name}', -1.0, f'loss.{name}=-1.0.*at least 0')
      for name in ('dual_clip', 'importance_cap', 'kl_coefficient')),
    ('model.dtype', 'float99', "dtype='float99' .*'bfloat16'"),
    ('model.folder', 'no/such/folder', "'no/such/folder' is not a folder"),
    ('buckets.prompt', (), r'buckets.prompt=\(\).*above 0'),
    ('buckets.prompt', (16, 8), r'buckets.prompt=\(16, 8\).*smallest first'),
    ('buckets.groups', (0,), r'buckets.groups=\(0,\).*above 0'),
    ('buckets.groups', (4, 4), r'buckets.groups=\(4, 4\).*each once'),
    ('buckets.completion', ('a',), r"buckets.completion=\('a',\).*whole"),
    ('buckets.microbatch_tokens', 0, 'microbatch_tokens=0.*at least 1'),
    ('optimizer.learning_rate', -1.0, 'learning_rate=-1.0.*at least 0'),
    ('optimizer.max_grad_norm', 0.0, 'max_grad_norm=0.0.*above 0'),
    ('optimizer.b1', 2.0, 'b1=2.0.*below 1'),
    ('environment.module', 'environments.chess',
     "environment.module='environments.chess'.*make_environment"),
    ('environment.module', '', "environment.module=''.*make_environment"),
    ('environment.module', 'environments.env_api',
     "environment.module='environments.env_api'.*make_environment"),
])
def test_what_cannot_work_is_refused(name, value, words, echo_folder):
  with pytest.raises(errors.UserError, match=words):
    echo.experiment(echo_folder, **{name: value})


@pytest.mark.parametrize('changes, words', [
    ({'optimizer.decay_updates': 5, 'optimizer.warmup_updates': 5},
     'decay_updates=5 .*of 5 updates'),
    ({'policies': 'lora_per_role', 'model.trained': 'none'},
     "'lora_per_role'.*'per_role'"),
    ({'environment.module': PLAN_PATH, 'environment.reward': 'both'},
     "reward='both' .*'outcome'"),
    ({'environment.module': PLAN_PATH, 'environment.team': 'solo'},
     "task 'echo/train/0', number 0 .*KeyError: 'grid'"),
    ({'advantage.baseline': 'critic'},
     "baseline='critic' with critic.kind='none'"),
    ({'critic.form': 'q'}, "critic.form='q' with critic.kind='none'"),
    ({'critic.kind': 'one'}, "critic.kind='one' .*'independent'"),
    ({'critic.kind': 'central'}, "'central' with rollout.mode='tree'"),
    (IAC | {'critic.learning_rate': -1.0}, 'learning_rate=-1.0.*at least 0'),
    (IAC | {'critic.value_clip': math.nan}, 'critic.value_clip=nan.*finite'),
    *(({'model.trained': 'lora', 'lora.alpha': alpha},
       f'lora.alpha={alpha}.*above 0')
      for alpha in (math.nan, math.inf, 0.0, -1.0)),
    ({'per_policy': 'shared.optimizer.learning_rate=1e999'},
     'optimizer.learning_rate=inf.*finite'),
    (IAC | {'critic.updates_per_rollout': 0}, 'per_rollout=0.*at least 1'),
    (IAC | {'critic.prompt_buckets': (8, 4)}, 'smallest first'),
    (IAC | {'critic.trunk': 'policy', 'critic.folder': 'x'}, "folder='x' with"),
    (IAC | {'critic.trunk': 'policy', 'critic.kind': 'central'},
     "trunk='policy' with kind='central'"),
    (IAC | {'critic.trunk': 'policy', 'policies': 'lora_per_role'},
     "policy 'first' has model.trained='lora'"),
    (IAC | {'critic.folder': 'no/such/folder'}, 'is not a folder'),
    ({'dataset.builder': 'environments.no_dataset_builder'},
     'no builder module'),
])
def test_what_does_not_fit_together_is_refused(changes, words, echo_folder):
  with pytest.raises(errors.UserError, match=words):
    echo.experiment(echo_folder, **changes).tasks('train')


def test_tokenizer_of_a_larger_model_is_refused(echo_folder, tmp_path):
  folder = shutil.copytree(echo_folder, tmp_path / 'model')
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(config | {'vocab_size': 15}))
  with pytest.raises(errors.UserError, match='has 16 ids, the model only 15'):
    echo.experiment(folder)


@pytest.mark.parametrize('policies, names', [
    ('shared', ['shared']),
    ('per_role', ['first', 'second']),
    ('second=a,first=b', ['b', 'a']),
])
def test_states(policies, names, echo_folder):
  experiment = echo.experiment(echo_folder, policies=policies)
  states = experiment.initial_states()
  assert list(states) == names

  def signature(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

  assert signature(states) == signature(experiment.state_template())
  # An update of one policy donates its buffers, so no other may hold them.
  first, *others = (state.params for state in states.values())
  jax.tree.map(lambda x: x.delete(), first)
  for params in others:
    assert float(params['embedding'].sum()) != 0.0


def test_hash_names_what_a_run_computes():
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


def test_a_workdir_is_of_one_config_and_one_trainer(tmp_path):
  config = echo.get_config()
  with contextlib.closing(workdir_lib.Lock(tmp_path)):
    # Neither what it writes nor what a kill leaves behind is in the way.
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
  for words in ('buckets.prompt: there [4], now [4, 8]',
                'loss.clip_high: there 0.2, now 0.3', 'seed: there 0, now 3'):
    assert words in str(error.value)


@pytest.mark.parametrize('text', ['', '{"hash": "0', '[]', '{"hash": "0"}'])
def test_config_that_is_cut_off_is_refused(text, tmp_path):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(errors.UserError, match='config.json is no config'):
    workdir_lib.check_config(tmp_path, echo.get_config().to_dict())


def test_foreign_folder_is_refused(tmp_path):
  assert not workdir_lib.check_config(tmp_path, echo.get_config().to_dict())
  (tmp_path / 'thesis.tex').touch()
  with pytest.raises(errors.UserError, match='not empty .* no config.json'):
    workdir_lib.check_config(tmp_path, echo.get_config().to_dict())
