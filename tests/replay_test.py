"""Replays equal the record; differences are located.

Most tests replay one finished run and do not write to it.
"""

import gzip
import json
import shutil
import sys

from absl import flags
from ml_collections import config_flags
import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax import errors
from atgrpo_jax import main
from atgrpo_jax import replay
from atgrpo_jax import saved_config
from atgrpo_jax import train
from atgrpo_jax.rollout import tree as tree_lib
from tests import echo

# Steps 2 and 4 have checkpoints.
CHANGES = {
    'environment.max_turns': 2, 'train.num_steps': 4,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 2}
ALGORITHMS = {
    'at_grpo': {},
    'grpo': {
        'rollout.mode': 'parallel', 'rollout.selection': 'all',
        'rollout.return_type': 'episode_return',
        'advantage.group_key': ('env',)},
    'magrpo': {
        'rollout.mode': 'joint', 'rollout.selection': 'all',
        'rollout.return_type': 'return_to_go',
        'advantage.group_key': ('env', 'agent', 'turn', 'branch'),
        'rollout.group_size': 2}}


@pytest.fixture(scope='module', params=ALGORITHMS)
def finished(request, echo_folder, tmp_path_factory):
  """The workdir of a run of each algorithm."""
  return _run(request.param, echo_folder, tmp_path_factory)


@pytest.fixture(scope='module')
def at_grpo(echo_folder, tmp_path_factory):
  return _run('at_grpo', echo_folder, tmp_path_factory)


def _run(algorithm, echo_folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp(algorithm)
  changes = CHANGES | ALGORITHMS[algorithm]
  assert train.train(echo.experiment(echo_folder, **changes), workdir)
  return workdir


def _replay(workdir, step, task_id=None, **changes):
  config = saved_config.get_config(str(workdir))
  config.update_from_flattened_dict(changes)
  recorded = replay.recorded_config(
      config, saved_config.get_config(str(workdir)))
  executor = echo.Thread(1)
  return replay.replay(
      *(config_lib.build(x, sandbox=None, executor=executor)
        for x in (recorded, config)),
      workdir, step=step, task_id=task_id)


def _alter(path, change):
  """Changes the first tree of a record."""
  trees = [tree.to_json() for tree in tree_lib.read(path)]
  change(trees[0])
  with gzip.open(path, 'wt') as file:
    file.writelines(json.dumps(tree) + '\n' for tree in trees)


def _some_task(workdir, step):
  *_, last = tree_lib.read(tree_lib.groups_path(workdir, step))
  return last.task_id


def test_a_replay_equals_its_record(finished, capsys):
  # From the start; from a checkpoint; and beyond one.
  for step, start in (
      ('0', 'from the start to step 0'),
      ('2', 'from the checkpoint of step 2 to step 2'),
      ('3', 'from the checkpoint of step 2 to step 3'),
      ('before', 'from the start to step 0'),
      ('after', 'from the checkpoint of step 4 to step 4')):
    assert _replay(finished, step)
    out = capsys.readouterr().out
    assert start in out
    assert ('repeated step 2' in out) == (step == '3')
    assert 'equal to the record: ' in out
    assert 'tasks' not in out and 'differ' not in out
  recorded = tree_lib.groups_path(finished, 3)
  assert (finished / 'replays' / recorded.name).read_bytes() == (
      recorded.read_bytes())
  assert (finished / 'replays/after.jsonl.gz').read_bytes() == (
      finished / 'evals/after.jsonl.gz').read_bytes()


def test_a_single_task_equals_its_record(finished, capsys):
  for step in ('2', '3'):
    task_id = _some_task(finished, int(step))
    assert _replay(finished, step, task_id)
    assert 'equal to the record' in capsys.readouterr().out
    tree, = tree_lib.read(
        finished / f'replays/00000{step}.jsonl.gz')
    assert tree.task_id == task_id


@pytest.mark.parametrize('name, value', [
    ('seed', 7), ('rollout.temperature', 0.5),
    ('rollout.selection', 'uniform')])
def test_a_changed_config_is_played_and_listed(at_grpo, name, value, capsys):
  assert _replay(at_grpo, '2', **{name: value})
  out = capsys.readouterr().out
  then = saved_config.get_config(str(at_grpo))
  for part in name.split('.'):
    then = then[part]
  assert f'changed: {name} from {then!r} to {value!r}' in out
  assert ' trees differ. First: task ' in out
  recorded, replayed = [
      line.split()[1:] for line in out.splitlines()
      if line.startswith(('recorded', 'replayed'))]
  assert recorded != replayed


def test_a_malformed_record_is_an_error(at_grpo, tmp_path):
  workdir = shutil.copytree(at_grpo, tmp_path / 'run')
  path = tree_lib.groups_path(workdir, 2)
  path.write_bytes(gzip.compress(b'{"a": 1}\n'))
  with pytest.raises(errors.UserError, match='is not a record of trees'):
    _replay(workdir, '2')


def test_the_first_candidate_that_differs_is_named(at_grpo, tmp_path, capsys):
  workdir = shutil.copytree(at_grpo, tmp_path / 'run')
  path = tree_lib.groups_path(workdir, 2)

  def change(tree):
    group, = tree['nodes'][1]['groups']
    group['candidates'][3]['text'] = 'something'
    tree['nodes'][1]['chosen'] = 7  # Follows from that.

  _alter(path, change)
  assert not _replay(workdir, '2')
  assert (
      'turn 1, second, candidate 3, text: recorded \'something\', replayed'
  ) in capsys.readouterr().out


@pytest.mark.parametrize('step, task_id, changes, words', [
    ('9', None, {}, ['--step=9', "'2', '3', 'after', 'before'"]),
    ('exam', None, {}, ['--step=exam', "'2', '3', 'after', 'before'"]),
    ('2', 'nobody', {},
     ['--task=nobody', 'which has 16 tasks, such as echo/train/']),
    ('2', None, {'optimizer.learning_rate': 0.5},
     ['--config.optimizer.learning_rate=0.5', 'the run had']),
    ('2', None, {'rollout.num_tasks': 3}, ['--config.rollout.num_tasks=3'])])
def test_invalid_steps_tasks_and_keys_are_errors(
    at_grpo, step, task_id, changes, words):
  with pytest.raises(errors.UserError) as error:
    _replay(at_grpo, step, task_id, **changes)
  for word in words:
    assert word in str(error.value)


def test_a_workdir_replaces_the_config_flag(at_grpo, monkeypatch):
  def parse(*args):
    values = flags.FlagValues()
    config_flags.DEFINE_config_file('config', flag_values=values)
    for name in ('workdir', 'mode'):
      flags.DEFINE_string(name, None, '', flag_values=values)
    argv = ['main.py', *args]
    monkeypatch.setattr(sys, 'argv', argv)
    main.parse_flags(argv, values)
    return values.config

  config = parse('--mode=evaluate', f'--workdir={at_grpo}')
  assert config.to_dict() == echo.experiment(
      config.model.folder, **CHANGES).config.to_dict()
  config = parse(
      '--workdir', str(at_grpo), '--config.rollout.stop_above=0.5',
      '--config.buckets.groups=(8,16)', '--config.evaluation.name=x')
  assert config.rollout.stop_above == 0.5
  assert config.buckets.groups == (8, 16)
  assert config.evaluation.name == 'x'
  with pytest.raises(errors.UserError, match='Did you mean "group_size"'):
    parse(f'--workdir={at_grpo}', '--config.rollout.group_sise=3')
  # Another config may be given, and a report takes none.
  config = parse('--config=tests/echo.py', f'--workdir={at_grpo}')
  assert config.model.folder == ''
  assert parse('--mode=report', f'--workdir={at_grpo}') is None
