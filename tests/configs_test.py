"""Every config builds, runs, is read to its last leaf, and tells the truth."""

import dataclasses
import importlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import types

import jax
from ml_collections import config_dict
import numpy as np
import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax import main
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import workdir as workdir_lib
from configs import common
from environments import sandbox
from environments.boards.plan_path import maze
from environments.boards.sokoban import room
from environments.boards.sudoku import grid
from environments.math_problems.stories import stories_dataset_builder
from environments.programming import problems_dataset_builder
from tests import command_line
from tests import echo
from tests.environments import echo_sandbox
from tests.environments.programming import examples

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = sorted(
    path.stem for path in (ROOT / 'configs').glob('*.py')
    if path.stem not in ('__init__', 'common', 'slices'))
# What the command in a config's docstring does with it.
MODES = {
    'pod': 'compile_check'}
TRAINING = [name for name in NAMES if name not in MODES]
# Their default is Qwen3-1.7B.
LARGE = 'contests', 'functions'


def _get_config(name, arg=''):
  get_config = importlib.import_module(f'configs.{name}').get_config
  return get_config(arg) if arg else get_config()


@pytest.mark.parametrize('name, arg', [
    *((name, '') for name in NAMES),
    *((name, arg) for name in TRAINING
      for arg in ('debug', *(f'size={size}' for size in common.SIZES)))])
def test_config_is_built_and_locked(name, arg):
  config = _get_config(name, arg)
  assert config.is_locked
  with pytest.raises(AttributeError):
    config.no_such_key = 1
  if name in TRAINING:  # Later updates of a rollout would be off policy.
    assert config.train.updates_per_rollout == 1


@pytest.mark.parametrize('system', common.SYSTEMS)
def test_a_system_changes_what_it_says(system):
  found, plain = (
      {leaf: part[key] for leaf, (part, key) in _leaves(
          _get_config('sokoban', f'system={name}')).items()}
      for name in (system, 'at_grpo'))
  if system == 'at_grpo_lora':
    plain['optimizer.learning_rate'] *= 10
  assert found == plain | common.SYSTEMS[system]


def test_versions_of_magrpo_differ_in_what_is_listed():
  paper, released = (
      {leaf: part[key] for leaf, (part, key) in _leaves(
          _get_config('writing', f'preset={name}')).items()}
      for name in ('paper', 'comlrl143'))
  assert released == paper | common.MAGRPO_PRESETS['comlrl143']
  assert {leaf for leaf in paper if paper[leaf] != released[leaf]} == (
      common.MAGRPO_PRESETS['paper'].keys())


@pytest.mark.parametrize('name, arg, message', [
    ('plan_path', 'system=grpo', "system='grpo' is not one of .*'mas_grpo'"),
    ('plan_path', 'system=sa_grpo,team=trio',
     "team='trio' .*system='sa_grpo'"),
    ('maths', 'system=sa_grpo,team=pair',
     "team='pair' .*system='sa_grpo'"),
    ('maths', 'system=sa', "system='sa' is not one of .*'mas_grpo'"),
    ('writing', 'system=sa_grpo,team=pair',
     "team='pair' .*system='sa_grpo'.*team='solo'"),
    ('writing', 'system=mas_grpo',
     "system='mas_grpo' is not one of .*'magrpo'"),
    ('writing', 'preset=v2', "preset='v2' is not one of .*'comlrl143'"),
    ('contests', 'size=nano,data=apps', "size='nano' .*data='apps'"),
    ('contests', 'data=recipes', "size='1.7b' .*data='recipes'"),
    ('functions', 'size=nano,kind=mbpp', "size='nano' .*kind='mbpp'"),
    ('functions', 'kind=recipes', "size='1.7b' .*kind='recipes'"),
    ('functions', 'size=nano,turns=2', r'turns=2 is not one of \[1\]|\(1,\)'),
    ('contests', 'data=humaneval', "data='humaneval' is not one of .*'apps'"),
    ('contests', 'system=sa_grpo,team=pair', "team='pair' .*'sa_grpo'"),
    ('functions', 'kind=apps', "kind='apps' is not one of .*'mbpp'"),
    ('functions', 'turns=3', r'turns=3 is not one of \[1, 2\]'),
    ('functions', 'system=sa_grpo,team=pair', "system='sa_grpo'.*team="),
    ('functions', 'preset=comlrl143,system=at_grpo', 'preset=.*at_grpo'),
    ('writing', 'preset=comlrl143,system=at_grpo', 'preset=.*at_grpo'),
])
def test_bad_config_arguments_are_named(name, arg, message):
  with pytest.raises(ValueError, match=message):
    _get_config(name, arg)


@pytest.mark.parametrize('kind', ['tldr', 'arxiv_a', 'arxiv_b'])
@pytest.mark.parametrize('debug', ['true', 'false'])
def test_writers_take_splits_that_their_data_set_has(kind, debug):
  config = _get_config('writing', f'kind={kind},size=1.7b,debug={debug}')
  builder = importlib.import_module(config.dataset.builder).Builder
  evaluation = config.evaluation
  splits = [
      split.partition('[')[0] for split in (
          config.dataset.train, evaluation.validation, evaluation.test)]
  assert set(splits) == set(builder.SPLIT_FILES)
  assert evaluation.validation != evaluation.test or debug == 'true'


@pytest.mark.parametrize('kind, folder', [
    ('posts', 'posts'), ('tldr', 'tldr'), ('arxiv_a', 'arxiv')])
def test_each_writer_has_half_of_the_chips(kind, folder):
  config = _get_config('writing', f'kind={kind},size=1.7b,topology=v5e:2x4')
  assert config.dataset.builder == (
      f'environments.writing.{folder}.{folder}_dataset_builder')
  environment = config_lib.make_environment(config, sandbox=None)
  first, second = environment.roles
  assert config.mesh.pools == ((first, 0, 4), (second, 4, 8))
  assert (config.mesh.fsdp, config.mesh.tensor) == (0, 0)


def test_maths_has_the_numbers_of_the_paper():
  config = _get_config('maths', 'size=8b')
  assert (config.rollout.num_tasks, config.rollout.group_size) == (128, 4)
  assert (config.environment.max_turns, config.train.num_steps) == (4, 150)
  assert config.optimizer.learning_rate == 1e-6
  assert config.buckets.prompt[-1] == 8192
  assert config.rollout.max_new_tokens == config.buckets.completion[-1] == 4096
  assert config.environment.options.program_seconds == 20.0


def test_contests_have_the_numbers_of_the_paper():
  for size, data in (('1.7b', 'apps'), ('8b', 'code_contests')):
    config = _get_config('contests', f'size={size}')
    assert config.model.folder == f'Qwen/Qwen3-{size.upper()}'
    assert f'.{data}.' in config.dataset.builder
    assert (config.rollout.num_tasks, config.rollout.group_size) == (128, 4)
    assert (config.environment.max_turns, config.train.num_steps) == (4, 150)
    assert config.optimizer.learning_rate == 1e-6
    assert (config.rollout.max_new_tokens, config.rollout.temperature) == (
        4096, 1.0)
    assert config.evaluation.temperature == 0.6


@pytest.mark.parametrize('arg, num_tasks, steps, turns, temperature', [
    ('', 2, 390, 2, 0.7), ('turns=1', 2, 650, 1, 0.7),
    ('kind=coop_humaneval,size=8b', 4, 132, 2, 0.8),
    ('kind=mbpp,turns=1', 2, 1200, 1, 0.8)])
def test_functions_have_the_numbers_of_the_paper(
    arg, num_tasks, steps, turns, temperature):
  config = _get_config('functions', arg)
  assert (config.rollout.num_tasks, config.rollout.group_size) == (num_tasks, 4)
  assert config.train.num_steps == steps
  assert config.environment.max_turns == turns
  assert config.rollout.temperature == config.evaluation.temperature == (
      temperature)
  assert (config.optimizer.learning_rate, config.rollout.max_new_tokens) == (
      2e-5, 256)
  assert config.environment.options.feedback_tests == 1
  importlib.import_module(config.dataset.builder)
  environment = config_lib.make_environment(config, sandbox=None)
  assert environment.phases == (('aux', 'main'),)


def test_each_programmer_has_half_of_the_chips():
  config = _get_config('functions', 'topology=v5e:2x4')
  assert config.mesh.pools == (('aux', 0, 4), ('main', 4, 8))


@pytest.mark.parametrize('name, layout', [
    ('v5litepod-1', 'v5e:1x1'), ('v5litepod-8', 'v5e:2x4'),
    ('v5e-16', 'v5e:4x4'), ('v6e-32', 'v6e:4x8'), ('v6e-256', 'v6e:16x16'),
    # Counted in cores, of which a chip has two.
    ('v4-8', 'v4:2x2x1'), ('v5p-16', 'v5p:2x2x2'), ('v5p-64', 'v5p:2x4x4'),
    ('v5p:2x2x4', 'v5p:2x2x4')])
def test_slices_have_the_names_that_gcloud_gives_them(name, layout):
  config = _get_config('pod', f'topology={name}')
  assert config.compile_check.topology == layout


@pytest.mark.parametrize('name, words', [
    ('v5p-4', 'give the chips, as in v5p:4x4x4'),
    ('v5e-12', 'give the chips, as in v5e:4x4'),
    ('v5litepod', "'v5litepod' is unknown"), ('v5e:x', "'v5e:x' is unknown")])
def test_names_of_no_slice_are_refused(name, words):
  with pytest.raises(ValueError, match=words):
    _get_config('pod', f'topology={name}')


@pytest.mark.parametrize('size', ['0.6b', '1.7b', '4b', '8b'])
@pytest.mark.parametrize('name, without', [
    ('pod', 'plan_path'), ('maths', 'maths'), ('contests', 'contests')])
def test_a_slice_changes_nothing_that_training_reads(size, name, without):
  config = _get_config(name, f'size={size},topology=v5e:4x4')
  assert config.mesh.to_dict() == {'fsdp': 0, 'tensor': 0, 'pools': ()}
  assert config.model.folder == f'Qwen/Qwen3-{size.upper()}'
  with config.unlocked():
    del config.compile_check
  assert _leaves(config) == _leaves(_get_config(without, f'size={size}'))


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
  if values.mode != 'compile_check':
    assert values.workdir == f'runs/{name}'


@pytest.mark.parametrize('name', ['plan_path', *MODES])
def test_printed_config_is_a_command_line(name, monkeypatch, capsys):
  config = _get_config(name)
  config.seed = 7
  workdir_lib.print_config(config.to_dict())
  *lines, last = capsys.readouterr().out.splitlines()
  assert last == f'config hash {workdir_lib.config_hash(config.to_dict())}'
  values = command_line.parse_main(
      [f'--config=configs/{name}.py', *lines], monkeypatch)
  assert values.config.to_json() == config.to_json()


# Every leaf is read.


def _leaves(part, prefix=''):
  """Name of each leaf -> (its part of the config, its name there)."""
  leaves = {}
  for name, value in part.items():
    if isinstance(value, config_dict.ConfigDict):
      leaves |= _leaves(value, f'{prefix}{name}.')
    else:
      leaves[prefix + name] = (part, name)
  return leaves


def _record_reads(monkeypatch):
  """What is read from now on, as (id of a part, name).

  Whoever turns a whole config into a dict, to print it, does not read it.
  """
  read, printers = set(), []
  get, to_dict = (
      config_dict.ConfigDict.__getitem__, config_dict.ConfigDict.to_dict)

  def record_get(self, name):
    if not printers:
      read.add((id(self), name))
    return get(self, name)

  def print_whole(self, *args):
    printers.append(self)
    whole = to_dict(self, *args)
    printers.pop()
    return whole

  monkeypatch.setattr(config_dict.ConfigDict, '__getitem__', record_get)
  monkeypatch.setattr(config_dict.ConfigDict, 'to_dict', print_whole)
  return read


def _unread(leaves, read):
  return {
      name for name, (part, key) in leaves.items()
      if (id(part), key) not in read}


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
  read = _record_reads(monkeypatch)

  def set_flag(name, value):
    monkeypatch.setattr(
        main, name, types.SimpleNamespace(value=value, present=False))

  set_flag('_CONFIG', config)
  set_flag('_WORKDIR', str(tmp_path))
  for flag in ('_DISTRIBUTED', '_COORDINATOR', '_NUM_PROCESSES',
               '_PROCESS_ID', '_STEP', '_TASK'):
    set_flag(flag, None)
  set_flag('_CHECKPOINT', 'latest')
  exported = {'export.dtype', 'export.merged'}
  for mode, unread in (
      ('train', {'evaluation.name', 'evaluation.policy_map'} | exported),
      ('evaluate', exported), ('export', set())):
    set_flag('_MODE', mode)
    assert main.main([]) == 0
    assert _unread(leaves, read) == unread


# What a model or its program says must not end a run.


class _Printing:
  """A sandbox in which every program prints the same."""

  def __init__(self, status, stdout, stderr):
    self._result = sandbox.ProgramResult(status, 0, stdout, stderr, 0.0, 0.0)

  def run(self, source, stdin):
    return self._result


@pytest.mark.parametrize('result', [
    (sandbox.Status.ERROR, '█' * 9999, '\ufffd' * 9999),
    (sandbox.Status.OK, '😀' * 999 + '\n["U"' + ', "D"' * 99 + ']', ''),
])
@pytest.mark.parametrize('name, random_task', [
    ('plan_path', maze.random_task), ('sokoban', room.random_task),
    ('sudoku', lambda rng: grid.random_task(rng, 4))])
@pytest.mark.parametrize('size', ['nano', '8b'])
def test_prompts_hold_whatever_is_said(size, name, random_task, result):
  config = _get_config(name, f'size={size}')
  # Both need at most a token for a byte; the larger one is not at hand.
  tokenizer = tokenizer_lib.Tokenizer('models/nano')
  longest = config.rollout.max_new_tokens
  # Bytes that are no text, each a token, and shown as a sign of three bytes.
  fence = len(tokenizer.encode_completion('```python\n\n```'))
  program = '```python\n' + '\ufffd' * (longest - fence) + '\n```'
  task = {'task_id': '0', **random_task(np.random.default_rng(0))}
  for team in ('pair', 'septet'):
    config.environment.team = team
    environment = config_lib.make_environment(config, _Printing(*result))
    state = environment.reset(task)
    for role in environment.roles:
      prompt = tokenizer.encode_prompt(environment.observe(state, role))
      assert len(prompt) <= config.buckets.prompt[-1]
      state = environment.step(state, {role: program}).state
  if size == 'nano':
    model_config = hub.load_config(config.model.folder)
    assert config.buckets.prompt[-1] + longest == model_config.max_positions


@pytest.mark.parametrize('status, stdout, stderr', [
    (sandbox.Status.ERROR, '█' * 9999, '\ufffd' * 9999),
    (sandbox.Status.OK, '😀' * 9999, '')])
@pytest.mark.parametrize('size', ['nano', '8b'])
def test_prompts_of_maths_hold_whatever_is_said(size, status, stdout, stderr):
  config = _get_config('maths', f'size={size}')
  tokenizer = tokenizer_lib.Tokenizer('models/nano')
  longest = config.rollout.max_new_tokens
  answers = {
      'tool': '```python\n' + '\ufffd' * (longest - 12) + '\n```',
      'reasoner': '\ufffd' * (longest // 2 - 8) + (
          '\\boxed{' + '\ufffd' * (longest // 2 - 8) + '}')}
  environment = dataclasses.replace(
      config_lib.make_environment(config, None),
      sandbox=echo_sandbox.Constant(status, stdout, stderr))
  state = environment.reset(stories_dataset_builder.make_splits(
      {'test': 1})['test'][0])
  for _ in range(config.environment.max_turns):
    for role in environment.roles:
      prompt = tokenizer.encode_prompt(environment.observe(state, role))
      assert len(prompt) <= config.buckets.prompt[-1]
      state = environment.step(state, {role: answers[role]}).state


@pytest.mark.parametrize('name', LARGE)
@pytest.mark.parametrize('team', ['pair', 'solo'])
def test_prompts_hold_whatever_programmers_say(name, team):
  config = _get_config(name)
  config.environment.team = team
  config.environment.options.update(
      {'feedback_tests': 0} if name == 'functions' else {})
  longest = problems_dataset_builder.MAX_STATEMENT_BYTES
  tests = [(str(i), ['1']) for i in range(5)]
  fields = dict(statement='\ufffd' * (longest // 3), starter_code='')
  if name == 'functions':
    problem = examples.make_check(check='def check(candidate):\n' + ''.join(
        f'  assert candidate({i}, {i}) == "{"█" * 999}"\n' for i in range(99)),
        **fields, preamble='')
  else:
    problem = examples.make(tests, **fields)
  task = dataclasses.asdict(problem)
  task['tests'] = task.pop('packed_tests')
  large = '\ufffd' * 9999
  actions = {
      'coder': f'```python\nprint("{large}")\n```',
      'solo': f'```python\ndef add(x, y):\n  return "{large}"\n```',
      'aux': f'def aux(x):\n  return "{large}"',
      'main': f'def add(x, y):\n  return "{large}"',
      'tester': 5 * f'```input\n{large}\n```\n```output\n{large}\n```\n'}
  with sandbox.SandboxServer(2) as server:
    environment = config_lib.make_environment(
        config, sandbox.Sandbox(server.address))
    state = environment.reset(task)
    for phase in environment.phases * 2:
      for role in phase:
        prompt = json.dumps(
            environment.observe(state, role), ensure_ascii=False)
        assert len(prompt.encode()) <= config.buckets.prompt[-1]
      state = environment.step(
          state, {role: actions[role] for role in phase}).state
  assert config.buckets.prompt[-1] + config.rollout.max_new_tokens <= 40960


def test_debug_edition_runs(tmp_path):
  config = dataclasses.replace(
      hub.load_config('models/nano'), hidden_size=16, intermediate_size=16,
      num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8)
  folder, workdir = tmp_path / 'model', tmp_path / 'run'
  folder.mkdir()
  safetensors_lib.save(
      folder, model.init_params(jax.random.key(0), config), config,
      np.dtype('float32'))
  tokenizer_lib.Tokenizer('models/nano').save(folder)
  done = subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main',
       '--config=configs/plan_path.py:debug', f'--workdir={workdir}',
       f'--config.model.folder={folder}'],
      cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert done.returncode == 0, done.stderr
  *_, success, report = done.stdout.splitlines()
  assert re.fullmatch(
      r'held-out success: before \d+\.\d %, after \d+\.\d % \(2 tasks\)',
      success)
  assert report == f'report: {workdir}/report.html'
  log = (workdir / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in log] == [1, 2]
