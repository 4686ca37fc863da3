"""Evaluation: what is played, what is counted, and what is written down."""

from concurrent import futures
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import model
from atgrpo_jax.huggingface import safetensors_file
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.runtime import workdir as workdir_lib
from configs import plan_path as plan_path_config
from environments import datasets
from environments.boards.plan_path import demonstrations
from environments.boards.plan_path import maze
from tests.rollout import scripted

# Every reported number can be told from the file alone.
REQUIRED = {
    'task', 'team', 'policy_map', 'num_tasks', 'success', 'clusters',
    'interval', 'mean_turns', 'mean_turns_to_solve', 'budget', 'split_hash',
    'seed', 'step', 'sampling'}


@pytest.mark.parametrize('num_success, num_trials, low, high', [
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
    # Their mirror images, and one task.
    (28, 29, 0.8282, 0.9939),
    (20, 20, 0.8389, 1.0),
    (0, 1, 0.0, 0.7935),
])
def test_wilson_interval(num_success, num_trials, low, high):
  found = evaluate.wilson_interval(num_success, num_trials)
  assert found == pytest.approx((low, high), abs=5e-5)
  assert 0 <= found[0] <= num_success / num_trials <= found[1] <= 1


@pytest.mark.parametrize('num_success, num_trials', [(0, 0), (3, 2), (-1, 2)])
def test_what_is_no_proportion(num_success, num_trials):
  with pytest.raises(ValueError, match=f'{num_success} successes'):
    evaluate.wilson_interval(num_success, num_trials)


TASKS = [{'task_id': name, 'goal': goal} for name, goal in (
    ('A', 5), ('B', 2), ('C', 9), ('D', 1))]


def test_exact_result(monkeypatch):
  """One candidate of each prompt; an episode that is over asks nobody.

  That of C is over when its sandbox breaks.
  """
  scripted.follow_scripts(monkeypatch)
  one = {  # Plays role a.
      'A/a turn 0 total 0': ['1'], 'A/a turn 1 total 3': ['2'],
      'B/a turn 0 total 0': ['2'],
      'C/a turn 0 total 0': ['x'], 'C/a turn 1 total 1': ['4 broken'],
      'D/a turn 0 total 0': ['0']}
  two = {  # Plays role b.
      'A/b turn 0 total 1': ['2'],
      'C/b turn 0 total 0': ['1'],
      'D/b turn 0 total 0': ['1']}
  runner = scripted.make_runner(
      {'one': one, 'two': two}, {'a': 'one', 'b': 'two'}, seed=3,
      train_step=7)
  result = evaluate.evaluate(runner, TASKS)
  assert result == {
      'num_tasks': 4,
      'success': 0.75,
      'successes': '1101',
      'clusters': [0, 1, 2, 3],
      'interval': evaluate.wilson_interval(3, 4),
      'mean_turns': (2 + 1 + 2 + 1) / 4,
      'mean_turns_to_solve': (2 + 1 + 1) / 3,
      'truncated': 0.0,
      'outcomes': {
          'a': {'ok': 4, 'parse_error': 1, 'infrastructure': 1},
          'b': {'ok': 3}},
      'budget': runner.counters.ledger(),
      'policy_map': {'a': 'one', 'b': 'two'},
      'split_hash': datasets.split_hash(TASKS),
      'seed': 3,
      'step': 7,
      'sampling': {'temperature': 1.0, 'max_new_tokens': 12},
  }
  assert result['budget']['model_calls'] == len(one) + len(two)
  assert result['budget']['environment_steps'] == len(one) + len(two)


def test_tasks_of_a_kind_are_one_cluster():
  kinds = 'xyxzyx'
  tasks = [{'task_id': str(i), 'kind': kind} for i, kind in enumerate(kinds)]
  assert evaluate.clusters(tasks) == [0, 1, 0, 3, 1, 0]
  assert evaluate.clusters(tasks[1:]) == [0, 1, 2, 0, 1]
  assert evaluate.clusters(TASKS) == [0, 1, 2, 3]


def test_agents_may_act_at_once(monkeypatch):
  """Neither sees the other's answer; both enter one step."""
  scripted.follow_scripts(monkeypatch)
  script = {
      'A/a turn 0 total 0': ['1'], 'A/b turn 0 total 0': ['2'],
      'A/a turn 1 total 3': ['1'], 'A/b turn 1 total 3': ['1'],
      'B/a turn 0 total 0': ['1'], 'B/b turn 0 total 0': ['1']}
  runner = scripted.make_runner(
      {'one': script}, {'a': 'one', 'b': 'one'},
      scripted.Counting(phases=(('a', 'b'),)))
  result = evaluate.evaluate(runner, TASKS[:2])
  assert result['success'] == 1.0
  assert result['mean_turns'] == 1.5
  assert result['outcomes'] == {'a': {'ok': 3}, 'b': {'ok': 3}}
  assert runner.counters.model_calls == 6
  assert runner.counters.environment_steps == 3


# A whole run.


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model folder as a run finds it: small, and knowing nothing."""
  folder = tmp_path_factory.mktemp('model')
  demonstration = demonstrations.REPERTOIRE.demonstrate(
      np.random.default_rng(0), 'solo', {'invent': 1.0}, 1, (2,))
  tokenizer_lib.train(
      [message['content'] for message in demonstration.messages], 400, folder)
  config = model.ModelConfig(
      vocab_size=400, hidden_size=16, intermediate_size=32, num_layers=1,
      num_heads=2, num_kv_heads=1, head_dim=8, rope_theta=10_000.0,
      norm_eps=1e-6,
      tied_head=True, max_positions=1024, init_std=0.3)
  params = model.init_params(jax.random.key(0), config)
  safetensors_file.save(folder, params, config, jnp.float32)
  return folder


@pytest.fixture
def config(folder, monkeypatch):
  rng = np.random.default_rng(0)
  tasks = {
      split: [{'task_id': f'{split}/{i}', **maze.random_task(rng)}
              for i in range(3)] for split in ('test[:2]', 'test')}
  monkeypatch.setattr(
      datasets, 'load', lambda builder, split, *where: tasks[split])
  config = plan_path_config.get_config('debug').unlock()
  config.model.folder = str(folder)
  config.policies = 'per_role'
  config.rollout.max_new_tokens = 3
  config.buckets.prompt = (1024,)
  return config


def build(config):
  # No sandbox: this model writes no programs.
  return experiment_lib.build(
      config, sandbox=None, executor=futures.ThreadPoolExecutor(1))


def test_evaluate_run_writes_what_it_did(config, tmp_path, capsys):
  config.evaluation.policies = 'tool=planner,planner=tool'
  config.evaluation.name = 'swapped'
  config.evaluation.temperature = 0.0
  config.environment.max_turns = 2
  evaluate.evaluate_run(build(config), tmp_path)
  path = tmp_path / 'evals' / 'swapped.json'
  result = json.loads(path.read_text())
  assert result.keys() >= REQUIRED
  assert result.pop('budget')['completion_tokens'] == 12 * 3
  low, high = result.pop('interval')
  assert (low, high) == pytest.approx(evaluate.wilson_interval(0, 3))
  assert result == {
      'task': 'environments.boards.plan_path.env', 'team': 'pair',
      'successes': '000', 'clusters': [0, 1, 2],
      'split': 'test[:2]', 'max_turns': 2,
      'config_hash': workdir_lib.config_hash(config.to_dict()),
      'num_tasks': 3, 'success': 0.0, 'mean_turns': 2.0,
      'mean_turns_to_solve': None, 'truncated': 1.0,
      'outcomes': {
          'tool': {'parse_error': 6}, 'planner': {'parse_error': 6}},
      'policy_map': {'tool': 'planner', 'planner': 'tool'},
      'split_hash': datasets.split_hash(datasets.load('', 'test[:2]', None)),
      'seed': config.seed, 'step': 0,
      'sampling': {'temperature': 0.0, 'max_new_tokens': 3},
  }
  printed = capsys.readouterr().out
  assert str(path) in printed
  assert 'swapped' in printed and '0.0 %' in printed


@pytest.mark.parametrize('text', [
    '', '[]', '{}',
    '{"successes": "01", "num_tasks": 3, "clusters": [0, 1, 2]}',
    '{"successes": "011", "num_tasks": 3, "clusters": [0, 1]}'])
def test_what_is_no_evaluation_is_named(text, tmp_path):
  with pytest.raises(errors.UserError, match='No such file.*after.json'):
    evaluate.read(tmp_path, 'after')
  (tmp_path / 'evals').mkdir()
  (tmp_path / 'evals/after.json').write_text(text)
  with pytest.raises(errors.UserError, match='after.json is no evaluation'):
    evaluate.read(tmp_path, 'after')


def test_an_evaluation_of_an_older_version_is_named(tmp_path):
  (tmp_path / 'evals').mkdir()
  (tmp_path / 'evals/after.json').write_text(
      '{"successes": "011", "num_tasks": 3}')
  with pytest.raises(errors.UserError) as error:
    evaluate.read(tmp_path, 'after')
  assert '\n' not in str(error.value)
  assert 'without clusters of tasks' in str(error.value)
  assert f'delete {tmp_path} and run it again' in str(error.value)


def test_policies_that_the_run_does_not_train_are_named(config, tmp_path):
  config.evaluation.policies = 'tool=tool,planner=critic'
  with pytest.raises(
      errors.UserError, match=r"'critic'\], but the run trains \['planner', "):
    evaluate.evaluate_run(build(config), tmp_path)
  assert not (tmp_path / 'evals').exists()
