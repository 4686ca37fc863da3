"""Bad input raises one UserError that names it, before anything compiles.

Each case damages one input of a valid run: its model folder, adapter, config,
modules, data set or workdir. The whole program runs in this process, without
workers or a sandbox; `main_test` covers the exit status and the printed line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import itertools
import json
import math
import pathlib
import re
import shutil
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from safetensors import numpy as safetensors_numpy

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import main
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.io import metrics as metrics_lib
from environments import datasets
from tests import command_line

_module_ids = itertools.count()

# Damages the run in a folder, which has the folders model, adapter (of PEFT),
# data and home (on the module path); returns more command line arguments.
Damage = Callable[[pathlib.Path], Sequence[str]]
# (regular expression for the message, damages)
CASES: list[tuple[str, Sequence[Damage]]] = []


def case(message: str, *damages: Damage) -> None:
  CASES.append((message, damages))


# ---- Ways to damage a run ---------------------------------------------------


def config(*items: str) -> Damage:
  return lambda root: [f'--config.{item}'.format(root=root) for item in items]


def flag(text: str) -> Damage:
  return lambda root: [f'--{text}'.format(root=root)]


def change(file: str, change_fn: Callable[[pathlib.Path], Any]) -> Damage:
  """Applies `change_fn` to the path of a file."""
  def damage(root):
    (root / file).parent.mkdir(exist_ok=True)
    change_fn(root / file)
    return []
  return damage


def write(file: str, content: str) -> Damage:
  return change(file, lambda path: path.write_text(content))


def remove(file: str) -> Damage:
  return change(file, pathlib.Path.unlink)


def truncate(file: str, size: int) -> Damage:
  return change(
      file, lambda path: path.write_bytes(path.read_bytes()[:size]))


def edit(file: str, **fields: Any) -> Damage:
  return change(file, lambda path: path.write_text(
      json.dumps(json.loads(path.read_text()) | fields)))


def set_weight(file: str, tensor: str, value: float) -> Damage:
  def replace(path):
    tensors = safetensors_numpy.load_file(path)
    tensors[tensor].flat[3] = value
    safetensors_numpy.save_file(tensors, path)
  return change(file, replace)


def module(key: str, *lines: str) -> Damage:
  """A user's module that `key` of the config names."""
  def damage(root):
    name = f'hostile_{next(_module_ids)}'
    write(f'home/{name}.py', '\n'.join(lines))(root)
    return [f'--config.{key}={name}']
  return damage


def environment(*lines: str) -> Damage:
  """The echo game with more lines in its class."""
  return module(
      'environment.module', 'from tests import echo', 'class Env(echo.Echo):',
      *(f'  {line}' for line in lines),
      'def make_environment(**_): return Env(1)')


def letters(statement: str) -> Damage:
  """A data set that the run builds, its splits changed by a statement."""
  builder = module(
      'dataset.builder', 'from tests import letters_dataset_builder',
      'class Builder(letters_dataset_builder.Builder):',
      '  name = __name__', '  def splits(self):',
      '    splits = super().splits()', f'    {statement}', '    return splits')
  return lambda root: [
      *builder(root), f'--config.dataset.data_dir={root}/data']


LORA = config('model.trained=lora')
USE_ADAPTER = config('model.trained=lora', 'lora.folder={root}/adapter')
USE_DATA = config(
    'dataset.builder=tests.letters_dataset_builder',
    'dataset.data_dir={root}/data')

# ---- Model folders ----------------------------------------------------------

_GENERATION = 'model/generation_config.json'
case('model/config.json', write('model/config.json', '{"a": '))
case('model/tokenizer.json', remove('model/tokenizer.json'))
case(_GENERATION, change(_GENERATION, lambda path: path.write_bytes(b'\xff')))
case(re.escape('eos_token_id=[0, 99]'), edit(_GENERATION, eos_token_id=[0, 99]))
case(r'model: tokenizer\.json',
     edit('model/tokenizer.json', model={'type': 'Unknown'}))
case('config.json.*num_experts=8', edit('model/config.json', num_experts=8))
case('16 .* 15', edit('model/config.json', vocab_size=15))
case(r'model\.layers\.2\.', edit('model/config.json', num_hidden_layers=3))
for _template, _message in {
    '{% for m in messages %}': 'TemplateSyntaxError',
    "{{ raise_exception('no system role') }}": 'no system role'}.items():
  case(f'model.* chat template.*{_message}',
       write('model/chat_template.jinja', _template))
case('model.*chat_template', remove('model/chat_template.jinja'))

_WEIGHTS = 'model/model.safetensors'
_INDEX = 'model/model.safetensors.index.json'
case('/model', remove(_WEIGHTS))
case(_WEIGHTS, truncate(_WEIGHTS, 1000))
case('model.norm.weight.*NaN or infinity.*bfloat16',
     set_weight(_WEIGHTS, 'model.norm.weight', 3.4e38), LORA,
     config('model.dtype=bfloat16'))
for _weight_map, _message in {
    '{"a": 3}': _INDEX, '{"a": "../model.safetensors"}': 'of other folders',
    '{"a": "x.safetensors"}': 'x.safetensors is not a complete'}.items():
  case(_message, remove(_WEIGHTS),
       write(_INDEX, f'{{"weight_map": {_weight_map}}}'))
case('model/config.json', config('model.folder={root}/model/config.json'))
case("''", config('model.folder='))

_ADAPTER_WEIGHTS = 'adapter/adapter_model.safetensors'
case('adapter_config.json.*r=0', USE_ADAPTER,
     edit('adapter/adapter_config.json', r=0))
case("'no/such' is not a folder", LORA, config('lora.folder=no/such'))
case(_ADAPTER_WEIGHTS, truncate(_ADAPTER_WEIGHTS, 99), USE_ADAPTER)
case(f'{_ADAPTER_WEIGHTS}.*self_attn.q_proj.*NaN', USE_ADAPTER, set_weight(
    _ADAPTER_WEIGHTS,
    'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight', math.nan))
case('lora.targets', LORA, config("lora.targets=('attention/[',)"))

# ---- Configs ----------------------------------------------------------------

_FILE = flag('config={root}/home/config.py')
for _content, _message in {
    'def get_config(:\n': 'config.py.*SyntaxError',
    'x = 1\n': 'config.py.*get_config',
    'import no_such_module\n': 'config.py, line 1.*no_such_module',
    'def get_config():\n  raise ValueError("no luck")\n': 'config.py.*no luck',
    'def get_config():\n  return {"seed": 1}\n': "{'seed': 1}"}.items():
  case(_message, write('home/config.py', _content), _FILE)
for _item in (
    'optimizer=3', 'optimizer.learning_rate=fast', 'buckets.prompt=(4',
    'mesh.fsdp=3', "policy_map=(('first', '../evals'), ('second', 'b'))",
    "per_policy=(('shared', 'optimizer.b1', 'x'),)", "train.writers=('os',)",
    'environment.module=.x', 'environment.options.colour=red'):
  case(_item.partition('=')[0].rpartition('.')[2], config(_item))
case('lora.rank=1000000', LORA, config('lora.rank=1000000'))
case("export.dtype='int8'", flag('mode=export'), config('export.dtype=int8'))
case('/workdir', flag('mode=export'))
case(r"evaluation.name='\.\./x'",
     flag('mode=evaluate'), config('evaluation.name=../x'))

# ---- Prompts that do not fit ------------------------------------------------

case('4 positions', edit('model/config.json', max_position_embeddings=4))
case('rollout.max_new_tokens=2',
     edit('model/config.json', max_position_embeddings=2))
case("'first'.*'letters/train/7'.*5 tokens",
     letters("splits['train'][7]['letter'] = 'a a a'"))

# ---- Modules of the user ----------------------------------------------------

_ENV = 'environment.module'
for _content, _message in {
    'import sys\nsys.exit(0)\n': 'SystemExit', 'x = 1\n': 'make_environment',
    'def make_environment(**_): pass\n': 'roles',
    'def make_environment(team): pass\n': 'unexpected keyword argument'
}.items():
  case(f'{_ENV}.*{_message}', module(_ENV, _content))
case(f'{_ENV}.*phases', environment('phases = (("third",),)'))
for _function, _problem in {
    'observe(self, state): return 3': 'positional argument',
    'reset(self, task): raise SystemExit(3)': 'SystemExit: 3',
    'reset(self, task): return lambda: 3': 'pickle',
    'show(self, state): return 3': 'returned int 3'}.items():
  case(f'Env.{_function.partition("(")[0]}.*{re.escape(_problem)}',
       environment(f'def {_function}'))
_PLAN = f'{_ENV}=environments.boards.plan_path.env'
case("environment.team='crowd'", config(_PLAN, 'environment.team=crowd'))
case('sandbox', config(_PLAN))
case("dataset.builder='hostile_", module('dataset.builder', 'x = 1\n'))

# ---- Data sets --------------------------------------------------------------

for _statement, _message in {
    "splits['train'][3]['task_id'] = splits['train'][2]['task_id']":
        'letters/train/2',
    "splits['train'] = []": 'No examples',
    "del splits['validation']": "'validation'",
    "del splits['train'][3]['letter']": "'letter'"}.items():
  case(_message, letters(_statement))
for _item, _message in {
    'dataset.config=x': "'x'", 'rollout.num_tasks=41': '40',
    'evaluation.test=exam': "'exam'.*test \\(",
    'dataset.train=train+train': "'letters/train/0'"}.items():
  case(_message, USE_DATA, config(_item))


def data_set(file: str, change_fn: Callable[[pathlib.Path], Any]) -> Damage:
  """Applies `change_fn` to the file of the prepared data set."""
  def damage(root):
    path, = root.glob(f'data/echo_letters_*/1.0.0/{file}')
    change_fn(path)
    return []
  return damage


_RECORDS = '*-train.array_record-00000-of-00001'
case('echo_letters_.*train.array_record', USE_DATA,
     data_set(_RECORDS, pathlib.Path.unlink))
case('echo_letters_.*/1.0.0', USE_DATA, data_set(
    _RECORDS, lambda path: path.write_bytes(
        path.read_bytes()[:65600] + b'x' + path.read_bytes()[65601:])))
case('dataset_info.json', USE_DATA, data_set(
    'dataset_info.json', lambda path: path.write_text('[]')))

# ---- Workdirs ---------------------------------------------------------------

case('/workdir', write('workdir', 'x'))
case('/sys/run', flag('workdir=/sys/run'))
case('--workdir', flag(f'workdir={"x" * 300}'))
case('/workdir', write('workdir/thesis.tex', 'x'))
case('workdir/config.json', write('workdir/config.json', '[]'))
case('workdir.*advantage.baseline',
     write('workdir/config.json', '{"config": {"seed": 5}}'))


# ---- Running a case ---------------------------------------------------------


@pytest.fixture(scope='module')
def sources(echo_folder, tmp_path_factory):
  """An undamaged model, adapter and data set. Tests must not write to it."""
  folder = tmp_path_factory.mktemp('sources')
  shutil.copytree(echo_folder, folder / 'model')
  (folder / _GENERATION).write_text('{"eos_token_id": [0]}')
  spec = model.LoraSpec(rank=2, alpha=4.0, targets=('attention/q/kernel',))
  peft.save(
      folder / 'adapter', model.init_lora(
          jax.random.key(0), hub.load_config(folder / 'model'), spec),
      alpha=4.0, base_folder='x', dtype=jnp.float32)
  datasets.load('tests.letters_dataset_builder', 'train', str(folder / 'data'))
  (folder / 'home').mkdir()
  return folder


@pytest.fixture(scope='module')
def compiles():
  return metrics_lib.CompileCounter()


@pytest.fixture
def root(sources, tmp_path, monkeypatch):
  shutil.copytree(sources, tmp_path, dirs_exist_ok=True)
  monkeypatch.syspath_prepend(tmp_path / 'home')
  monkeypatch.delitem(sys.modules, 'config_config', raising=False)
  return tmp_path


def _run_program(root, arguments, monkeypatch):
  """Runs a command line; returns the exit status."""
  defaults = [f'--workdir={root}/workdir']
  if not any(argument.startswith('--config=') for argument in arguments):
    defaults += [
        '--config=tests/echo.py', f'--config.model.folder={root}/model']
  values = command_line.parse_main([*defaults, *arguments], monkeypatch)
  with futures.ThreadPoolExecutor(1) as executor, api.Run(
      values.config, values.workdir, executor=executor) as run:
    return main.run_mode(values.mode, run)


@pytest.mark.parametrize('message, damages', CASES, ids=range(len(CASES)))
def test_bad_input_is_named(message, damages, root, compiles, monkeypatch):
  arguments = [argument for damage in damages for argument in damage(root)]
  compiles.lap()
  with pytest.raises(errors.UserError, match=message) as error:
    _run_program(root, arguments, monkeypatch)
  # Nothing compiles before bad input is found, except to check weights.
  assert 'NaN or infinity' in str(error.value) or not any(
      compiles.lap().values())


def test_undamaged_run_works(root, monkeypatch):
  arguments = [
      *USE_ADAPTER(root), *USE_DATA(root),
      *config('train.num_steps=1', 'rollout.num_tasks=4')(root)]
  assert _run_program(root, arguments, monkeypatch) == 0
