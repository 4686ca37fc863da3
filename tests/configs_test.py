"""Every config builds and locks, and training reads every leaf."""

from concurrent import futures
import dataclasses
import importlib
import json
import re
import shlex
import subprocess

from ml_collections import config_dict
import numpy as np
import pytest

from atgrpo_jax import api
from atgrpo_jax import main
from atgrpo_jax import settings
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from configs import common
from configs import depot
from environments import datasets
from environments import sandbox
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from environments.math_problems import stories_dataset_builder
from environments.programming import benchmarks_dataset_builder
from tests import checkout
from tests import command_line
from tests import commands
from tests import echo
from tests.environments import echo_sandbox
from tests.environments.programming import examples

NAMES = sorted(
    path.stem for path in (checkout.ROOT / 'configs').glob('*.py')
    if path.stem not in ('__init__', 'common'))
# Mode of the command in the config's docstring, if it is not training.
MODES = {'pod': 'compile_check'}
TRAINING = [name for name in NAMES if name not in MODES]
WITH_SIZES = [name for name in TRAINING if name != 'quickstart']


def _get_config(name, arg=''):
  get_config = importlib.import_module(f'configs.{name}').get_config
  return get_config(arg) if arg else get_config()


@pytest.mark.parametrize('name, arg', [
    *((name, '') for name in NAMES),
    *((name, arg) for name in WITH_SIZES
      for arg in ('debug', *(f'size={size}' for size in common.MODELS)))])
def test_config_is_built_and_locked(name, arg):
  config = _get_config(name, arg)
  assert config.is_locked
  with pytest.raises(AttributeError):
    config.no_such_key = 1
  if name in TRAINING:  # Later updates would be off policy.
    assert config.train.updates_per_rollout == 1


@pytest.mark.parametrize('name, arg, message', [
    ('plan_path', 'system=grpo', "system='grpo' .*'mas_grpo'"),
    ('plan_path', 'system=sa_grpo,team=trio', "team='trio' .*'sa_grpo'"),
    ('quickstart', 'debug', "'debug' is not one of"),
    ('contests', 'size=nano,data=apps', "size='nano' .*data='apps'"),
    ('pod', 'topology=v5x-16', "topology='v5x-16'")])
def test_bad_config_arguments_are_named(name, arg, message):
  with pytest.raises(ValueError, match=message):
    _get_config(name, arg)


@pytest.mark.parametrize('name, arg', [
    *((name, f'system={system}') for name in ('plan_path', 'sokoban', 'sudoku')
      for system in ('magrpo', 'iac', 'maac')),
    *((name, f'system={system}') for name in ('writing', 'functions')
      for system in ('magrpo', 'magrpo_cross', 'iac', 'maac'))])
def test_magrpo_and_actor_critic_do_not_clip(name, arg):
  config = _get_config(name, arg)
  assert config.loss.surrogate == 'unclipped'
  assert config.optimizer.max_grad_norm == 1e9


def test_episodes_of_depot_have_two_tokens_for_each_order():
  for system in depot.SYSTEMS:
    for num_orders in (1, 6):
      config = depot.get_config(f'system={system},T={num_orders}')
      environment = settings.make_environment(config, None)
      num_tokens = config.rollout.max_new_tokens * len(
          environment.phases) * environment.max_turns
      assert num_tokens == 2 * num_orders, system
      assert config.rollout.keep_truncated
      assert config.buckets.prompt[-1] == max(4, 3 + num_orders)


@pytest.mark.parametrize('name, layout', [
    ('v5litepod-8', 'v5e:2x4'), ('v5p:2x2x4', 'v5p:2x2x4'),
    ('v4-8', 'v4:2x2x1')])  # v4 and v5p count cores, two per chip.
def test_gcloud_names_give_the_topology(name, layout):
  config = _get_config('pod', f'topology={name}')
  assert config.compile_check.topology == layout


@pytest.mark.parametrize('name', NAMES)
def test_header_command_runs_this_config(name, monkeypatch):
  module = importlib.import_module(f'configs.{name}')
  command = re.search(
      r'^  (python .*?[^\\])$', module.__doc__, re.MULTILINE | re.DOTALL)[1]
  python, m, program, *args = shlex.split(command.replace('\\\n', ' '))
  assert (python, m, program) == ('python', '-m', 'atgrpo_jax.main')
  values = command_line.parse_main(args, monkeypatch)
  file, _, arg = values['config'].config_filename.partition(':')
  assert file == f'configs/{name}.py'
  assert values.config.to_json() == _get_config(name, arg).to_json()
  assert values.mode == MODES.get(name, 'train')


# Every leaf is read.


def _leaves(part, prefix=''):
  """Dotted name of each leaf -> (its section, its key there)."""
  leaves = {}
  for name, value in part.items():
    if isinstance(value, config_dict.ConfigDict):
      leaves |= _leaves(value, f'{prefix}{name}.')
    else:
      leaves[prefix + name] = (part, name)
  return leaves


def test_every_leaf_of_a_training_config_is_read(
    echo_folder, tmp_path, monkeypatch):
  config = echo.get_config()
  config.update_from_flattened_dict({
      'model.folder': str(echo_folder), 'train.num_steps': 1})
  leaves = _leaves(config)
  for name in TRAINING:
    shared = {
        leaf for leaf in _leaves(_get_config(name))
        if not leaf.startswith('environment.options.')}
    assert shared == leaves.keys(), name
  read, get = set(), config_dict.ConfigDict.__getitem__

  def record_get(self, name):
    read.add((id(self), name))
    return get(self, name)

  with futures.ThreadPoolExecutor(1) as executor, api.Run(
      config, tmp_path, executor=executor) as run:
    leaves, stored = _leaves(run.config), run.config.to_dict()
    monkeypatch.setattr(config_dict.ConfigDict, '__getitem__', record_get)
    # Storing the whole config reads no leaf.
    monkeypatch.setattr(
        config_dict.ConfigDict, 'to_dict', lambda self, *args: stored)
    for mode in ('train', 'evaluate', 'export'):
      assert main.run_mode(mode, run) == 0
  # `main` starts the sandbox and the workers.
  unread = {
      name for name, (part, key) in leaves.items()
      if (id(part), key) not in read}
  assert unread == {
      'environment.num_workers', 'environment.program_slots', 'sandbox.url'}


# The largest prompt bucket holds every prompt.


@pytest.mark.parametrize('status, stdout, stderr', [
    (sandbox.Status.ERROR, '█' * 9999, '\ufffd' * 9999),
    (sandbox.Status.OK, '😀' * 999 + '\n["U"' + ', "D"' * 99 + ']', '')])
@pytest.mark.parametrize('name, make_task, team', [
    ('plan_path', plan_path.random_task, 'septet'),
    ('sokoban', sokoban.random_task, 'septet'),
    ('sudoku', lambda rng: sudoku.random_task(rng, 4), 'septet'),
    ('maths', lambda rng: stories_dataset_builder.make_splits(
        {'test': 1})['test'][0], 'pair')])
@pytest.mark.parametrize('size', ['nano', '8b'])
def test_longest_prompts_of_games_and_maths_fit(
    size, name, make_task, team, status, stdout, stderr):
  config = _get_config(name, f'size={size}')
  config.environment.team = team
  longest = config.rollout.max_new_tokens
  # Both tokenizers need at most one token per byte; only nano's is stored. An
  # undecodable byte is one token, shown as a character of three bytes.
  tokenizer = tokenizer_lib.Tokenizer('models/nano')
  program = '```python\n' + '\ufffd' * (longest - 12) + '\n```'
  half = '\ufffd' * (longest // 2 - 8)
  actions = {'reasoner': half + '\\boxed{' + half + '}'}
  environment = settings.make_environment(
      config, echo_sandbox.Constant(status, stdout, stderr))
  state = environment.reset(
      {'task_id': '0', **make_task(np.random.default_rng(0))})
  for _ in range(config.environment.max_turns if name == 'maths' else 1):
    for role in environment.roles:
      prompt = tokenizer.encode_prompt(environment.observe(state, role))
      assert len(prompt) <= config.buckets.prompt[-1]
      state = environment.step(state, {role: actions.get(role, program)}).state
  if size == 'nano' and name != 'maths':
    model_config = hub.load_config(config.model.folder)
    assert config.buckets.prompt[-1] + longest == model_config.max_positions


@pytest.mark.parametrize('name', ['contests', 'functions'])
def test_longest_prompts_of_programming_fit(name):
  config = _get_config(name, 'size=1.7b')
  longest = benchmarks_dataset_builder.MAX_STATEMENT_BYTES // 3
  fields = {'statement': '\ufffd' * longest, 'starter_code': ''}
  if name == 'functions':
    config.environment.options.feedback_tests = 0
    problem = examples.make_check(check='def check(candidate):\n' + ''.join(
        f'  assert candidate({i}, {i}) == "{"█" * 999}"\n' for i in range(99)),
        **fields, preamble='')
  else:
    problem = examples.make([(str(i), ['1']) for i in range(5)], **fields)
  task = dataclasses.asdict(problem)
  large = '\ufffd' * 9999
  actions = {
      'coder': f'```python\nprint("{large}")\n```',
      'aux': f'def aux(x):\n  return "{large}"',
      'main': f'def add(x, y):\n  return "{large}"',
      'tester': 5 * f'```input\n{large}\n```\n```output\n{large}\n```\n'}
  with sandbox.SandboxServer(2) as server:
    environment = settings.make_environment(
        config, sandbox.Sandbox(server.address))
    state = environment.reset(task)
    for phase in environment.phases * 2:
      for role in phase:
        prompt = json.dumps(
            environment.observe(state, role), ensure_ascii=False)
        assert len(prompt.encode()) <= config.buckets.prompt[-1]
      state = environment.step(
          state, {role: actions[role] for role in phase}).state


def test_debug_edition_runs(tmp_path):
  workdir = tmp_path / 'run'
  done = subprocess.run(
      commands.train('configs/plan_path.py:debug', workdir, {
          'environment.max_turns': 1, 'rollout.max_new_tokens': 32}),
      cwd=checkout.ROOT, text=True, capture_output=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.endswith(f'report: {workdir}/report.html\n')
  log = (workdir / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in log] == [1, 2]


@pytest.mark.parametrize('size', ['135m', '1.7b'])
def test_splits_of_the_factbook_exist(size):
  config = _get_config('writing', f'kind=factbook,size={size}')
  for split in (
      config.dataset.train, config.evaluation.validation,
      config.evaluation.test):
    assert len(datasets.load(config.dataset.builder, split)) >= 16
