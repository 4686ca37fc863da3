"""What the user gives wrong ends with status 2 and one sentence.

Each case damages one thing of a run that would do: its model folder, adapter,
config, modules, data set or workdir. The program is run in this process, from
the command line to the printed sentence, without worker processes and sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import sys
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
from ml_collections import config_flags
import pytest
from safetensors import numpy as safetensors_numpy

from atgrpo_jax import evaluate
from atgrpo_jax import main
from atgrpo_jax import model
from atgrpo_jax import pretrain as pretrain_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import signals
from environments import datasets
from tests import checkout
from tests import echo

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Place:
  """What a case may damage.

  Attributes:
    model: folder of the model.
    adapter: of a PEFT adapter of it; used if it is asked for.
    data: of the data sets, with that of `tests.letters_dataset_builder`; used
      if it is asked for.
    home: empty; on the path of modules.
    workdir: not there yet.
  """

  model: pathlib.Path
  adapter: pathlib.Path
  data: pathlib.Path
  home: pathlib.Path
  workdir: pathlib.Path


# Changes a place, and returns arguments that a run needs beside the usual.
Damage = Callable[[Place], Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Case:
  """What is done, and words of the sentence; '{model}' stands for a folder."""

  name: str
  damage: Damage
  words: tuple[str, ...]


CASES: list[Case] = []


def case(name: str, damage: Damage, *words: str) -> None:
  CASES.append(Case(name, damage, words))


# Ways to damage something.


def config(*items: str) -> Damage:
  """Values of the config, such as 'seed=3'."""
  return lambda place: [f'--config.{item}' for item in items]


def mode(name: str, *items: str) -> Damage:
  return lambda place: [f'--mode={name}', *config(*items)(place)]


def pretrain(*items: str) -> Damage:
  return lambda place: [
      '--config=configs/nano.py', *mode('pretrain', *items)(place)]


def write(folder: str, file: str, content: str | bytes) -> Damage:
  """A file of the folder, which is an attribute of `Place`."""
  def damage(place):
    path = getattr(place, folder) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else
                     content.encode())
    return []
  return damage


def remove(folder: str, file: str) -> Damage:
  def damage(place):
    (getattr(place, folder) / file).unlink()
    return []
  return damage


def make_folder(folder: str, file: str) -> Damage:
  """Where a file was, or nothing."""
  def damage(place):
    path = getattr(place, folder) / file
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    return []
  return damage


def make_pipe(folder: str, file: str) -> Damage:
  def damage(place):
    path = getattr(place, folder) / file
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return []
  return damage


def edit(folder: str, file: str, **fields: Any) -> Damage:
  """Sets fields of a JSON file."""
  def damage(place):
    path = getattr(place, folder) / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return []
  return damage


def change_bytes(
    folder: str, file: str, change_fn: Callable[[bytes], bytes]) -> Damage:
  def damage(place):
    path = getattr(place, folder) / file
    path.write_bytes(change_fn(path.read_bytes()))
    return []
  return damage


def set_weight(folder: str, file: str, tensor: str, value: float) -> Damage:
  """One number of a tensor."""
  def damage(place):
    path = getattr(place, folder) / file
    tensors = safetensors_numpy.load_file(path)
    tensors[tensor].flat[3] = value
    safetensors_numpy.save_file(tensors, path)
    return []
  return damage


def both(*damages: Damage) -> Damage:
  return lambda place: [
      argument for damage in damages for argument in damage(place)]


def config_file(content: str | bytes) -> Damage:
  def damage(place):
    write('home', 'config.py', content)(place)
    return [f'--config={place.home / "config.py"}']
  return damage


def echo_without(change: str) -> Damage:
  """A config of the echo game, changed by a statement."""
  return config_file(
      'from tests import echo\n'
      'def get_config():\n'
      '  c = echo.get_config()\n'
      '  with c.unlocked():\n'
      f'    {change}\n'
      '  return c\n')


def module(key: str, content: str) -> Damage:
  """A module of the user's, named by `key` of the config."""
  def damage(place):
    name = f'hostile_{next(_numbers)}'
    write('home', f'{name}.py', content)(place)
    return config(f'{key}={name}')(place)
  return damage


def use_adapter(place: Place) -> Sequence[str]:
  return config('model.trained=lora', f'lora.folder={place.adapter}')(place)


def use_data(place: Place) -> Sequence[str]:
  return config(
      'dataset.builder=tests.letters_dataset_builder',
      f'dataset.data_dir={place.data}')(place)


def letters(change: str) -> Damage:
  """A data set that is made in the run, its splits changed by a statement."""
  builder = module('dataset.builder', (
      'from tests import letters_dataset_builder\n'
      'class Builder(letters_dataset_builder.Builder):\n'
      '  name = __name__\n'
      '  def splits(self):\n'
      '    splits = super().splits()\n'
      f'    {change}\n'
      '    return splits\n'))
  return lambda place: [
      *builder(place), f'--config.dataset.data_dir={place.data}']


# Model folders.

_BROKEN = {
    'cut off': '{"a": ', 'a list': '[]', 'empty': '', 'binary': b'\xff\xfe\x80',
    'nested': '[' * 100_000}
for _file in (
    'config.json', 'generation_config.json', 'tokenizer.json',
    'tokenizer_config.json'):
  for _how, _content in _BROKEN.items():
    case(f'{_file}, {_how}', write('model', _file, _content),
         f'{{model}}/{_file} ', 'copy or download it again')
  case(f'{_file}, a folder', make_folder('model', _file), f'{{model}}/{_file} ')
for _file in ('config.json', 'tokenizer.json', 'tokenizer_config.json'):
  case(f'{_file}, missing', remove('model', _file),
       f'{{model}}/{_file} does not exist')
case('tokenizer.json, without anything', write('model', 'tokenizer.json', '{}'),
     '{model}: tokenizer.json,', 'download them again')
case('tokenizer.json, of an unknown type',
     edit('model', 'tokenizer.json', model={'type': 'Unknown'}),
     '{model}: tokenizer.json,', 'untagged enum')
case('tokenizer.json, added tokens',
     edit('model', 'tokenizer.json', added_tokens=3), '{model}: tokenizer.json')

for _name, _value, _words in (
    ('hidden_size', '32', 'a whole number of at least 1'),
    ('num_hidden_layers', 0, 'a whole number of at least 1'),
    ('num_attention_heads', None, 'a whole number of at least 1'),
    ('vocab_size', 16.0, 'a whole number of at least 1'),
    ('max_position_embeddings', -1, 'a whole number of at least 1'),
    ('rope_theta', 0.0, 'a finite number above 0'),
    ('rms_norm_eps', math.nan, 'a finite number above 0'),
    ('initializer_range', math.inf, 'a finite number above 0'),
    ('tie_word_embeddings', 1, 'true or false'),
    ('rope_parameters', 'default', 'must be a JSON object'),
    ('layer_types', 'full_attention', 'is not supported'),
    ('model_type', 'llama', "expected 'qwen3'")):
  case(f'config.json, {_name}={_value}',
       edit('model', 'config.json', **{_name: _value}),
       f'{{model}}/config.json: {_name}={_value!r}', _words)
case('config.json, of more experts',
     edit('model', 'config.json', num_experts=8), 'config.json', 'num_experts')
case('config.json, of another tokenizer',
     edit('model', 'config.json', vocab_size=15),
     'tokenizer has 16 ids, the model only 15')
case('config.json, of another model',
     edit('model', 'config.json', num_hidden_layers=3),
     'do not fit its config.json', 'missing model.layers.2.')

for _value in (
    '<end>', 16, -1, True, 1.5, 10**30, {'id': 0}, [0, 99], ['<end>'], [[0]],
    [0, None]):
  case(f'eos_token_id={_value}',
       edit('model', 'generation_config.json', eos_token_id=_value),
       f'{{model}}/generation_config.json: eos_token_id={_value!r}',
       'from 0 to 15')
case('no eos token', both(
    edit('model', 'generation_config.json', eos_token_id=[]),
    edit('model', 'tokenizer_config.json', eos_token=None)),
     'names an eos token')

for _template, _words in {
    '{% for m in messages %}': ['TemplateSyntaxError', 'endfor'],
    "{{ raise_exception('no system role') }}": ['no system role'],
    '{{ messages[7].content }}': ['UndefinedError'],
    '{{ messages | nofilter }}': ["No filter named 'nofilter'"],
    '{{ 1 + messages }}': ['TypeError'],
    '{{ 1 / 0 }}': ['ZeroDivisionError'],
    '': ["leaves out or changes a message of the role 'user'"],
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}":
        ["leaves out or changes a message of the role 'user'"],
    '{{ messages[0].content | upper }}': ['leaves out or changes'],
    '{{ messages[0].content }}'
    + '{% for _ in range(range(1000) | random) %} a{% endfor %} b' * 3:
        ['renders the same message in several ways'],
}.items():
  case(f'chat template {_template!r}',
       write('model', 'chat_template.jinja', _template),
       '{model}: the chat template', *_words, 'take that of Qwen3')
case('chat template, binary', write('model', 'chat_template.jinja', b'\xff'),
     '{model}: ', 'chat_template.jinja', 'UnicodeDecodeError')
case('chat template, missing', remove('model', 'chat_template.jinja'),
     '{model}: tokenizer_config.json has no chat_template')

for _value in (3, [{'name': 'other', 'template': 'x'}]):
  case(f'chat template, {_value}', both(
      remove('model', 'chat_template.jinja'),
      edit('model', 'tokenizer_config.json', chat_template=_value)),
       '{model}: ')

_WEIGHTS = 'model.safetensors'
case('weights missing', remove('model', _WEIGHTS), '{model} has neither')
case('weights, a folder', make_folder('model', _WEIGHTS), '{model} has neither')
for _size in (0, 7, 1000, -1):
  case(f'weights cut to {_size}',
       change_bytes('model', _WEIGHTS, lambda old, size=_size: old[:size]),
       f'{{model}}/{_WEIGHTS} is not a whole safetensors file')
case('weights with another header',
     write('model', _WEIGHTS, (10).to_bytes(8, 'little') + b'{"a": [1]}'),
     f'{{model}}/{_WEIGHTS} is not a whole safetensors file')
for _value in (math.nan, math.inf):
  case(f'weights with {_value}',
       set_weight('model', _WEIGHTS, 'model.norm.weight', _value),
       f'{{model}}/{_WEIGHTS}: model.norm.weight holds NaN or infinity')
case('bfloat16 weights that overflow', both(
    set_weight('model', _WEIGHTS, 'model.norm.weight', 3.4e38),
    config('model.trained=lora', 'model.dtype=bfloat16')),
     'model.norm.weight holds NaN or infinity, as bfloat16')

_INDEX = 'model.safetensors.index.json'
for _content, _words in {
    '{': 'is no JSON', '[]': 'holds a list',
    '{}': 'has no weight_map', '{"weight_map": {}}': 'has no weight_map',
    '{"weight_map": ["a"]}': 'has no weight_map',
    '{"weight_map": {"a": 3}}': 'has no weight_map'}.items():
  case(f'index {_content}', both(
      remove('model', _WEIGHTS), write('model', _INDEX, _content)),
       f'{{model}}/{_INDEX} {_words}')
case('index of a file that is not there', both(
    remove('model', _WEIGHTS),
    write('model', _INDEX, '{"weight_map": {"a": "x.safetensors"}}')),
     '{model} lacks x.safetensors')

case('model.folder is a file',
     lambda place: config(f'model.folder={place.model}/config.json')(place),
     '{model}/config.json', 'is not a folder')
case('model.folder is empty', config('model.folder='), "'' is not a folder")
case('model.folder is a file in a file',
     lambda place: config(f'model.folder={place.model}/config.json/x')(place),
     'is not a folder')

# Adapters.

_ADAPTER = 'adapter_config.json'
for _how, _content in _BROKEN.items():
  case(f'{_ADAPTER}, {_how}',
       both(write('adapter', _ADAPTER, _content), use_adapter),
       f'{{adapter}}/{_ADAPTER} ', 'download it again')
for _name, _value in (
    *(('r', value) for value in ('x', 0, -2, True, 2.0, None)),
    *(('lora_alpha', value) for value in ('x', 0, -1, math.nan, None)),
    ('target_modules', [1]), ('target_modules', 'q_proj'), ('bias', [])):
  case(f'{_ADAPTER}, {_name}={_value!r}',
       both(edit('adapter', _ADAPTER, **{_name: _value}), use_adapter),
       f'{{adapter}}/{_ADAPTER}: {_name}={_value!r}')
case('adapter missing',
     config('model.trained=lora', 'lora.folder=no/such'),
     f'no/such/{_ADAPTER} does not exist')
case('adapter cut off', both(
    change_bytes('adapter', 'adapter_model.safetensors', lambda old: old[:99]),
    use_adapter), 'adapter_model.safetensors is not a whole')
case('adapter with NaN', both(
    set_weight(
        'adapter', 'adapter_model.safetensors',
        'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight',
        math.nan),
    use_adapter),
     'adapter_model.safetensors: the adapter of self_attn.q_proj holds NaN')
for _targets, _words in {
    "('attention/[',)": "'attention/[' is no regular expression",
    "('*',)": "'*' is no regular expression",
    '(1,)': '1 is no regular expression',
    "('x',)": "'x' matches no kernel", '()': 'is empty'}.items():
  case(f'lora.targets={_targets}',
       config('model.trained=lora', f'lora.targets={_targets}'),
       'lora.targets', _words)

# Configs.

for _content, _words in {
    'def get_config(:\n': ['config.py cannot be read: SyntaxError'],
    b'\x00\xff': ['config.py cannot be read: SyntaxError'],
    '1 / 0\n': ['config.py, line 1: ZeroDivisionError'],
    'import no_such_module\n': ['config.py, line 1: ModuleNotFoundError'],
    'open("no/such/file")\n': ['config.py: ', "'no/such/file'"],
    'x = 1\n': ['config.py: ', 'get_config'],
    'def get_config(arg):\n  pass\n': [
        'config.py: ', 'missing 1 required positional'],
    'def get_config():\n  raise RuntimeError("no luck")\n': [
        ', line 2: RuntimeError: no luck'],
    'def get_config():\n  raise ValueError("no luck")\n': [
        'config.py: no luck'],
    'def get_config():\n  return {}["size"]\n': [", line 2: KeyError: 'size'"],
    'def get_config():\n  return None.size\n': [', line 2: AttributeError'],
    'def get_config():\n  return {"seed": 1}\n': ["returned {'seed': 1}"],
    'def get_config():\n  pass\n': ['get_config() returned None'],
    'import sys\ndef get_config():\n  sys.exit(0)\n': [
        ', line 3: SystemExit: 0'],
    'from ml_collections import config_dict\n'
    'def get_config():\n  return config_dict.ConfigDict()\n': [
        'has no seed, policies'],
}.items():
  case(f'config {_content!r}', config_file(_content), *_words)
case('config without a section', echo_without('del c.loss'),
     'the config has no loss; give one like configs/plan_path.py')
case('config whose seed is a text', echo_without(
    'del c.seed; c.seed = "x"'), "seed='x', but must be a number")
case('config is a folder', lambda place: [f'--config={place.home}'],
     'there is no file')
case('config of pretraining', lambda place: ['--config=configs/nano.py'],
     'the config has no policies')
case('config of a run, to pretrain', mode('pretrain'),
     'the config has no init_folder', 'configs/nano.py')
case('config without a topology', mode('compile_check'),
     'the config has no compile_check', 'configs/pod.py')

for _item, _words in {
    'seed=4294967296': 'below 4294967296', 'seed=-1': 'at least 0',
    'optimizer.learning_rate=inf': 'finite',
    'loss.kl_coefficient=nan': 'finite', 'loss.dual_clip=0.5': 'more than 1',
    'loss.importance_cap=-1': 'at least 0',
    'rollout.temperature=inf': 'finite', 'evaluation.temperature=1e-9': 'or 0',
    'train.num_steps=-3': 'never end', 'rollout.alpha=nan': 'finite',
    'environment.max_turns=x': 'invalid literal',
    'optimizer.learning_rate=fast': 'could not convert',
    'optimizer=3': 'is not a dict', "buckets.prompt=('a',)": 'whole numbers',
    'buckets.prompt=(4': 'whole numbers', 'buckets.groups=(4,2)': 'smallest',
    'mesh.fsdp=3': 'does not divide', 'mesh.pools=x=0:9': 'every policy',
    'per_policy=shared.model': 'POLICY.SECTION.KEY=VALUE',
    'per_policy=shared.optimizer.b1=x': 'should be a float',
    'policies=first=,second=b': 'every role',
    'policies=first=../evals,second=b': "'../evals' cannot name a policy",
    'policies=first=a,second=b.c': "'b.c' cannot name a policy",
    f'policies=first=a,second={"b" * 65}': 'at most 64 letters',
    'per_policy=shared.optimizer.b1=0.5;shared.optimizer.b1=0.5':
        'shared.optimizer.b1 is given twice',
    'optimizer.learning_rate=1e39': 'below 3.4e38 as a float32',
    'rollout.alpha=1e300': 'below 3.4e38', 'loss.clip_high=1e39': 'finite',
    "train.writers=('os',)": "names 'os', which is none of",
    "train.writers=('tensorboard','tensorboard')": 'twice'}.items():
  case(_item, config(_item), _item.partition('=')[0], _words)
case('lora.alpha=nan', config('model.trained=lora', 'lora.alpha=nan'),
     'lora.alpha=nan', 'finite')
case('lora.rank', config('model.trained=lora', 'lora.rank=1000000'),
     'lora.rank=1000000 is more than the hidden size of the model')
case('seed on two lines', config('seed=1\n2'), 'seed', "'1\\n2'")
case('export.dtype', mode('export', 'export.dtype=int8'),
     "export.dtype='int8' is not one of")
case('nothing to export', mode('export'), '{workdir} holds no run to export')
case('evaluation.name', mode('evaluate', 'evaluation.name=../x'),
     "evaluation.name='../x'")
case('evaluation.policies', mode('evaluate', 'evaluation.policies=first=x'),
     "evaluation.policies='first=x'")

for _item, _words in {
    'seed=4294967296': 'below 4294967296', 'log_every=0': 'at least 1',
    'num_checked=0': 'at least 1', 'save_dtype=int8': 'is not one of',
    'tokenizer.num_demonstrations=0': 'at least 1',
    'optimizer.learning_rate=nan': 'finite',
    'tasks.sudoku.module=no.such': 'with a REPERTOIRE',
    'tasks.sudoku.module=environments.env_api': 'with a REPERTOIRE'}.items():
  case(f'pretrain, {_item}', pretrain(_item), _item.partition('=')[0], _words)
case('pretrain, rope_theta', pretrain('model.rope_theta=0.0'),
     'rope_theta=0.0 must be')
case('pretrain, heads', pretrain('model.num_heads=3'),
     'num_attention_heads=3 is not a multiple')
case('pretrain, init_folder', pretrain('init_folder=no/such'),
     "'no/such' is not a folder")

# Prompts that do not fit, the longest of 48; one task alone is too long.

case('prompts too long for the buckets', config('buckets.prompt=(2,)'),
     "prompt of role 'first' in task 'echo/train/", 'only 2 fit')
case('no room for a prompt',
     edit('model', 'config.json', max_position_embeddings=2),
     'The model has 2 positions', 'leaves none for a prompt')
case('prompts too long for the model',
     edit('model', 'config.json', max_position_embeddings=4),
     'has 3 tokens, but only 2 fit', '4 positions of the model')
case('one prompt too long', letters(
    "splits['train'][7]['letter'] = 'a a a'"),
     "'first' in task 'letters/train/7', turn 1, has 5 tokens", 'only 4 fit')

# Modules of the user's.

_ENV = 'environment.module'
for _content, _words in {
    'def f(:\n': 'SyntaxError', 'raise RuntimeError("no luck")\n': 'no luck',
    'import no_such_module\n': 'no_such_module',
    'x = 1\n': 'make_environment', 'make_environment = 3\n': 'not callable',
    'def make_environment(team): pass\n': 'unexpected keyword argument',
    'def make_environment(**_): pass\n': 'has no roles, phases',
    'def make_environment(**_): raise ValueError("no luck")\n': 'no luck',
    'def make_environment(reward, **_): return {}[reward]\n': "'mixed'",
    'from tests import echo\n'
    'class Env(echo.Echo):\n  phases = (("third",),)\n'
    'def make_environment(**_): return Env(1)\n': 'must act in one',
}.items():
  case(f'environment {_content!r}', module(_ENV, _content), _words)
_OBSERVES = (
    'from tests import echo\n'
    'class Env(echo.Echo):\n'
    '  def observe(self, state, role):\n'
    '    return {}\n'
    'def make_environment(**_): return Env(1)\n')
for _messages in (
    "'text'", '3', "[{'content': 'a'}]", "[{'role': 'user', 'content': 3}]",
    "[{'role': 'user', 'content': ['a']}]"):
  case(f'messages {_messages}', module(_ENV, _OBSERVES.format(_messages)),
       "cannot begin the task 'echo/train/0'", 'Error: ')
case('environment that ends the program', module(
    _ENV, 'import sys\nsys.exit(0)\n'), 'cannot be used (SystemExit: 0)')
case('environment with a flag of ours', module(
    _ENV, 'from absl import flags\nflags.DEFINE_string("x", "", "")\n'
    'flags.DEFINE_string("x", "", "")\n'), 'DuplicateFlagError')
case('turns without an end', config('environment.max_turns=2147483648'),
     'max_turns=2147483648, but must be at least 1 and below 10000')
case('max_turns of an environment', config('environment.max_turns=0'),
     'max_turns=0, but must be at least 1')
case('environment.module, relative', config(f'{_ENV}=.x'), f"{_ENV}='.x'")
case('environment.options', echo_without(
    'c.environment.options.colour = "red"'),
     'make_environment cannot be called', "'colour'")
_PLAN = (f'{_ENV}=environments.boards.plan_path.env',)
case('environment.team', config(*_PLAN, 'environment.team=crowd'),
     "environment.team='crowd' is not one of")
case('environment.reward', config(*_PLAN, 'environment.reward=both'),
     "environment.reward='both' is not one of")
case('environment.max_turns', config(*_PLAN, 'environment.max_turns=0'),
     'environment.max_turns=0')
case('a team that writes programs, without a sandbox', config(*_PLAN),
     "sandbox=None, but ('tool', 'planner') write programs")

_BUILDER = 'dataset.builder'
for _content, _words in {
    'def f(:\n': 'SyntaxError', 'raise RuntimeError("no luck")\n': 'no luck',
    'import no_such_module\n': 'no_such_module',
    'x = 1\n': 'has no class Builder', 'Builder = 3\n': 'has no class Builder',
}.items():
  case(f'builder {_content!r}', module(_BUILDER, _content),
       "dataset.builder='hostile_", _words, 'expected a module')
for _name in ('', '.x'):
  case(f'dataset.builder={_name!r}', config(f'{_BUILDER}={_name}'),
       f'dataset.builder={_name!r}', 'expected a module')
case('dataset.builder missing', config(f'{_BUILDER}=no.such'),
     "dataset.builder: no builder module 'no.such'")
case('dataset.config', both(use_data, config('dataset.config=x')),
     "has no config 'x'")
case('tasks of another environment',
     both(use_data, config(*_PLAN, 'environment.team=solo')),
     "cannot begin the task 'letters/train/0'", "KeyError: 'grid'")

# Data sets that are made.

for _change, _words in {
    "splits['train'][3]['task_id'] = splits['train'][2]['task_id']":
        ["row 3: task_id='letters/train/2' is there twice"],
    "splits['test'][5]['task_id'] = ''": ["row 5: task_id=''"],
    "splits['train'] = []": ['cannot be made', 'No examples'],
    "del splits['validation']": ["no split 'validation'", 'test (8 tasks)'],
    "raise RuntimeError('no luck')": ['cannot be made', 'no luck'],
    "splits['train'][3]['letter'] = 3": ['cannot be made', '`letter`'],
    "del splits['train'][3]['letter']": ['cannot be made', "'letter'"],
    "splits['train'][3]['surplus'] = 3": ['cannot be made', "'surplus'"],
}.items():
  case(f'rows: {_change}', letters(_change), *_words)
case('rows of a split are too few', both(
    use_data, config('rollout.num_tasks=41')), "'train' has 40 tasks")
case('a slice that is empty', both(
    use_data, config('evaluation.test=test[3:3]')),
     "split 'test[3:3]' of echo_letters has no tasks")
case('a split without a name', both(use_data, config('dataset.train=')),
     "echo_letters has no split ''")
case('a split taken twice', both(
    use_data, config('dataset.train=train+train')),
     "'letters/train/0' is there twice")

# Data sets from files.

_ROW = '{"prompt": "a b", "completion": "c"}\n'
for _rows, _words in {
    _ROW + '{"prompt": 3, "completion": "c"}\n': 'row 2: expected str',
    _ROW + '{"completion": "c"}\n': "row 2: no field 'prompt'",
    _ROW * 4 + _ROW[:20]: 'row 5: the line is no JSON',
    _ROW + '[]\n': 'row 2: the line is no JSON object', '': 'has no rows',
}.items():
  _folder = 'downloads/manual/tldr'
  case(f'rows of a file {_rows!r}', both(*(
      write('data', f'{_folder}/{split}.jsonl', _rows if split == 'train'
            else _ROW) for split in ('train', 'validation', 'test')),
      config('dataset.builder=environments.writing.tldr.tldr_dataset_builder'),
      lambda place: [f'--config.dataset.data_dir={place.data}']),
       f'{{data}}/{_folder}/train.jsonl', _words)

# Data sets on disk.

_SET = 'echo_letters/1.0.0'
_DAMAGED = f'{{data}}/{_SET} is damaged: the split'


def _flipped(content: bytes, at: int) -> bytes:
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


for _split in ('train', 'test'):
  _file = f'{_SET}/echo_letters-{_split}.array_record-00000-of-00001'
  case(f'{_split}: file missing', both(use_data, remove('data', _file)),
       _DAMAGED, 'No such file', _file)
  for _how, _change in {
      'empty': lambda old: b'', 'cut': lambda old: old[:70000],
      'cut in the header': lambda old: old[:100],
      'cut at its end': lambda old: old[:-1000],
      'other bytes': lambda old: b'x' * len(old),
      'flipped header': lambda old: _flipped(old, 70),
      'flipped block': lambda old: _flipped(old, 65536),
      'flipped data': lambda old: _flipped(old, 65600)}.items():
    case(f'{_split}: {_how}',
         both(use_data, change_bytes('data', _file, _change)), _DAMAGED)
for _how, _content in (_BROKEN | {'other': '{"a": 1}', 'bare': '{}'}).items():
  case(f'dataset_info.json, {_how}',
       both(use_data, write('data', f'{_SET}/dataset_info.json', _content)),
       'echo_letters in {data}: its dataset_info.json', 'makes it anew')
case('dataset_info.json, missing',
     both(use_data, remove('data', f'{_SET}/dataset_info.json')),
     f'{{data}}/{_SET} holds no complete data set')
for _path in ('config.json', 'config.json/x'):
  case(f'data_dir={_path}', lambda place, path=_path: config(
      'dataset.builder=tests.letters_dataset_builder',
      f'dataset.data_dir={place.model}/{path}')(place),
       f'dataset.data_dir: {{model}}/{_path}', 'name another folder')
case('data_dir is remote', config(
    'dataset.builder=tests.letters_dataset_builder',
    'dataset.data_dir=gs://bucket/data'), "'gs://bucket/data' is remote")

# Workdirs.

for _mode in ('train', 'evaluate', 'export'):
  case(f'workdir is a file, {_mode}',
       both(write('home', '../workdir', 'x'), mode(_mode)),
       '{workdir} is a file, but must be a folder')
  for _name in ('checkpoints', 'evals'):
    case(f'{_name} is a file, {_mode}',
         both(write('workdir', _name, 'x'), mode(_mode)),
         f'{{workdir}}/{_name} is a file, but must be a folder')
for _name in ('config.json', 'metrics.jsonl'):
  case(f'{_name} of a workdir is a folder', make_folder('workdir', _name),
       f'{{workdir}}/{_name} is a folder, but must be a file')
  case(f'{_name} of a workdir is a pipe', make_pipe('workdir', _name),
       f'{{workdir}}/{_name} is a pipe or device, but must be a file')
case('workdir in a file',
     lambda place: [f'--workdir={place.model}/config.json/x'],
     '{model}/config.json is a file')
for _mode in ('train', 'evaluate'):
  case(f'workdir that nobody may make, {_mode}',
       both(mode(_mode), lambda place: ['--workdir=/sys/run']),
       '--workdir=/sys/run cannot be written to', 'make it writable')
case('workdir with a long name',
     lambda place: [f'--workdir={place.home}/{"x" * 300}'],
     '--workdir cannot be used', 'too long')
case('workdir of something else', write('workdir', 'thesis.tex', 'x'),
     '{workdir} is not empty and holds no config.json')
for _how, _content in _BROKEN.items():
  case(f'config.json of a workdir, {_how}',
       write('workdir', 'config.json', _content),
       '{workdir}/config.json is no config that was written here')
case('workdir of another config', write(
    'workdir', 'config.json', '{"config": {"seed": 5}}'),
     '{workdir} holds a run of another config (advantage.baseline: there None')


# Running a case.


@pytest.fixture(scope='module')
def sources(echo_folder, tmp_path_factory):
  """Model, adapter and data that are sound; never written to."""
  folder = tmp_path_factory.mktemp('sources')
  shutil.copytree(echo_folder, folder / 'model')
  (folder / 'model' / 'generation_config.json').write_text(
      '{"eos_token_id": [0]}')
  spec = model.LoraSpec(rank=2, alpha=4.0, targets=('attention/q/kernel',))
  peft.save(
      folder / 'adapter', model.init_lora(
          jax.random.key(0), hub.load_config(folder / 'model'), spec, 1),
      0, alpha=4.0, base_folder='x', dtype=jnp.float32)
  datasets.load('tests.letters_dataset_builder', 'train', str(folder / 'data'))
  (folder / 'home').mkdir()
  return folder


@pytest.fixture(scope='module')
def compiles():
  return metrics_lib.CompileCounter()


@pytest.fixture
def place(sources, tmp_path, monkeypatch):
  for folder in ('model', 'adapter', 'data', 'home'):
    shutil.copytree(sources / folder, tmp_path / folder)
  monkeypatch.chdir(checkout.ROOT)
  monkeypatch.syspath_prepend(tmp_path / 'home')
  monkeypatch.delitem(sys.modules, 'config_config', raising=False)
  return Place(*(
      tmp_path / field.name for field in dataclasses.fields(Place)))


def _run(argv, monkeypatch):
  """Runs a command line as `main.run` does; returns the exit status."""
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values)
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  flags.DEFINE_string('mode', 'train', '', flag_values=values)
  argv = ['main.py', *argv]
  monkeypatch.setattr(sys, 'argv', argv)  # Where overrides are looked up.

  def run_app(_, flags_parser):
    flags_parser(argv, values)
    main.check_sections(values.mode, values.config)
    if values.mode == 'pretrain':
      pretrain_lib.pretrain(values.config, pathlib.Path(values.workdir))
    with echo.Thread(1) as executor:
      sys.exit(main.run_mode(
          values.mode, values.config, pathlib.Path(values.workdir),
          sandbox=None, executor=executor, stop=signals.StopFlag()))

  monkeypatch.setattr(main.app, 'run', run_app)
  with pytest.raises(SystemExit) as end:
    main.run()
  return end.value.code


def _argv(place, arguments):
  """With what every run has; a later flag takes the place of an earlier one."""
  own = [x for x in arguments if x.startswith('--config=')]
  rest = [x for x in arguments if x not in own]
  folder = f'--config.model.folder={place.model}'
  return [
      f'--workdir={place.workdir}', *(own or ['--config=tests/echo.py']),
      *([] if own and 'echo' not in _text(own) else [folder]), *rest]


def _text(own):
  """The config file that a case wrote."""
  path = pathlib.Path(own[0].partition('=')[2])
  return path.read_bytes().decode(errors='replace') if path.is_file() else ''


@pytest.mark.parametrize('case', CASES, ids=[case.name for case in CASES])
def test_bad_input_is_one_sentence(
    case, place, compiles, monkeypatch, capsys):
  argv = _argv(place, case.damage(place))
  capsys.readouterr()
  compiles.lap()
  status = _run(argv, monkeypatch)
  stderr = capsys.readouterr().err
  line, = re.findall('(?m)^error: (.*)$', stderr)
  assert status == 2 and stderr.endswith(f'error: {line}\n'), stderr
  folders = {
      field.name: getattr(place, field.name)
      for field in dataclasses.fields(Place)}
  for words in case.words:
    for name, folder in folders.items():
      words = words.replace(f'{{{name}}}', str(folder))
    assert words in line
  # Weights are looked at on the devices.
  assert 'holds NaN or infinity' in line or not any(compiles.lap().values())


def test_what_is_damaged_would_do(place, monkeypatch):
  # Bite: a case that fails whatever it damages.
  quick = config('train.num_steps=1', 'model.trained=lora')(place)
  for arguments in (use_adapter(place), use_data(place)):
    shutil.rmtree(place.workdir, ignore_errors=True)
    assert _run(_argv(place, [*arguments, *quick]), monkeypatch) == 0


def test_a_workdir_that_vanishes_is_one_sentence(
    place, monkeypatch, capsys):
  monkeypatch.setattr(
      evaluate, 'evaluate', lambda *_: shutil.rmtree(place.workdir) or {})
  assert _run(_argv(place, mode('evaluate')(place)), monkeypatch) == 1
  line, = re.findall('(?m)^error: (.*)$', capsys.readouterr().err)
  assert line == (
      f'{place.workdir} has vanished under the run, which cannot go on.')
  assert not place.workdir.exists()
