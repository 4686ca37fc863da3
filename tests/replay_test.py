"""Replays equal the record; differences are located.

Most tests replay one finished run and do not write to it.
"""

from concurrent import futures
import functools
import gzip
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import saved_config
from atgrpo_jax import train
from atgrpo_jax.rollout import tree as tree_lib
from configs import common
from tests import command_line
from tests import echo

# Steps 2 and 4 have checkpoints.
CHANGES = {
    'environment.max_turns': 2, 'rollout.num_tasks': 4, 'train.num_steps': 4,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 2, 'rollout.stop': ('e', 'F')}
ALGORITHMS = {
    'at_grpo': {},
    'magrpo': common.MAGRPO | {'rollout.group_size': 2},
    'rules': {
        key: f'{__name__}:{key.partition(".")[2]}' for key in (
            'rollout.selection', 'advantage.baseline', 'advantage.scale',
            'loss.surrogate')} | {
                'advantage.group_key': ('env', f'{__name__}:group_key')}}


def selection(returns, team_returns, spec, rng):
  return rng.choice(len(returns))


def baseline(returns, weights, episodes, values):
  return returns - np.median(returns)


def scale(differences, returns, weights):
  return differences / np.abs(differences).max()


def group_key(key, prompts):
  return key.role, prompts[0]


def surrogate(ratio, logprobs, advantages, spec):
  return advantages * jnp.tanh(ratio)


@pytest.fixture(scope='module')
def finished(echo_folder, tmp_path_factory):
  """Returns the workdir of a run of an algorithm."""
  @functools.cache
  def train_run(algorithm):
    workdir = tmp_path_factory.mktemp(algorithm)
    changes = CHANGES | ALGORITHMS[algorithm]
    assert train.train(echo.experiment(echo_folder, **changes), workdir)
    return workdir
  return train_run


@pytest.fixture
def at_grpo(finished):
  return finished('at_grpo')


def _replay(workdir, step, **changes):
  config = saved_config.get_config(str(workdir))
  config.update_from_flattened_dict(changes)
  with api.Run(config, workdir, executor=futures.ThreadPoolExecutor(1)) as run:
    return run.replay(step)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_replay_equals_its_record(algorithm, finished, capsys):
  workdir = finished(algorithm)
  # From the start, and beyond a checkpoint.
  starts = {
      '0': 'from the start to step 0',
      '3': 'from the checkpoint of step 2 to step 3',
      'after': 'from the checkpoint of step 4 to step 4'}
  for step in starts if algorithm == 'at_grpo' else ('3',):
    assert _replay(workdir, step)
    out = capsys.readouterr().out
    assert starts[step] in out
    assert ('repeated step 2' in out) == (step == '3')
    assert 'equal to the record: ' in out
    assert 'differ' not in out


def test_first_difference_is_named(at_grpo, tmp_path, capsys):
  workdir = shutil.copytree(at_grpo, tmp_path / 'run')
  path = tree_lib.groups_path(workdir, 2)
  trees = [tree.to_json() for tree in tree_lib.read(path)]
  node = trees[0]['nodes'][1]
  group, = node['groups']
  group['candidates'][3]['text'] = 'something'
  node['chosen'] = 7  # Follows from that.
  with gzip.open(path, 'wt') as file:
    file.writelines(json.dumps(tree) + '\n' for tree in trees)
  assert not _replay(workdir, '2')
  out = capsys.readouterr().out
  assert "/nodes/1/groups/0/candidates/3/text: recorded 'something', r" in out


@pytest.mark.parametrize('step, changes, words', [
    ('9', {}, "--step=9.*'000003', 'after', 'before'"),
    ('2', {'seed': 7}, 'another config.*seed was 0, is now 7')])
def test_other_steps_and_configs_are_refused(at_grpo, step, changes, words):
  with pytest.raises(errors.UserError, match=words):
    _replay(at_grpo, step, **changes)


def test_workdir_replaces_the_config_flag(at_grpo, monkeypatch):
  def parse(*args):
    return command_line.parse_main(args, monkeypatch).config

  config = parse('--mode=evaluate', f'--workdir={at_grpo}')
  assert config.to_dict() == echo.experiment(
      config.model.folder, **CHANGES).config.to_dict()
  config = parse(
      '--workdir', str(at_grpo), '--config.rollout.alpha=0.5',
      '--config.buckets.groups=(8,16)', '--config.evaluation.name=x')
  assert config.rollout.alpha == 0.5
  assert config.buckets.groups == (8, 16)
  assert config.evaluation.name == 'x'
  # Another config may be given, and a report takes none.
  config = parse('--config=tests/echo.py', f'--workdir={at_grpo}')
  assert config.model.folder == ''
  assert parse('--mode=report', f'--workdir={at_grpo}') is None
