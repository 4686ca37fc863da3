"""Bad input ends with exit status 2 and one line that names it.

Each case damages one input of a valid run: its model folder, adapter, config,
modules, data set or workdir. The whole program runs in this process, from the
command line to the printed line, without workers or a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import json
import math
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

from atgrpo_jax import main
from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import peft
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import signals
from environments import datasets
from tests import checkout
from tests import echo

_module_ids = itertools.count()


@dataclasses.dataclass(frozen=True)
class Run:
  """The folders of a run that a case may damage.

  Attributes:
    model: the model folder.
    adapter: a PEFT adapter of the model; see `use_adapter`.
    data: data sets of `tests.letters_dataset_builder`; see `use_data`.
    home: an empty folder on the module path.
    workdir: does not exist yet.
  """

  model: pathlib.Path
  adapter: pathlib.Path
  data: pathlib.Path
  home: pathlib.Path
  workdir: pathlib.Path


# Damages a run; returns additional command line arguments.
Damage = Callable[[Run], Sequence[str]]
# Name -> (damages, words of the message); '{model}' stands for the folder.
CASES: dict[str, tuple[Sequence[Damage], Sequence[str]]] = {}


def case(name: str, words: Sequence[str], *damages: Damage) -> None:
  assert name not in CASES
  CASES[name] = damages, words


# ---- Ways to damage a run ---------------------------------------------------


def config(*items: str) -> Damage:
  return lambda run: [f'--config.{item}' for item in items]


def mode(name: str) -> Damage:
  return lambda run: [f'--mode={name}']


def write(folder: str, file: str, content: str | bytes) -> Damage:
  def damage(run):
    path = getattr(run, folder) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode())
    return []
  return damage


def change(folder: str, file: str, change_fn: Callable) -> Damage:
  """Applies `change_fn` to the path."""
  def damage(run):
    change_fn(getattr(run, folder) / file)
    return []
  return damage


def remove(folder: str, file: str) -> Damage:
  return change(folder, file, pathlib.Path.unlink)


def edit(folder: str, file: str, **fields: Any) -> Damage:
  return change(folder, file, lambda path: path.write_text(
      json.dumps(json.loads(path.read_text()) | fields)))


def truncate(folder: str, file: str, size: int) -> Damage:
  return change(
      folder, file, lambda path: path.write_bytes(path.read_bytes()[:size]))


def set_weight(folder: str, file: str, tensor: str, value: float) -> Damage:
  def replace(path):
    tensors = safetensors_numpy.load_file(path)
    tensors[tensor].flat[3] = value
    safetensors_numpy.save_file(tensors, path)
  return change(folder, file, replace)


def config_file(content: str) -> Damage:
  return lambda run: [
      *write('home', 'config.py', content)(run),
      f'--config={run.home / "config.py"}']


def changed_echo(statement: str) -> Damage:
  """The config of the echo game, changed by a statement."""
  return config_file(
      'from tests import echo\n'
      'def get_config():\n'
      '  c = echo.get_config()\n'
      '  with c.unlocked():\n'
      f'    {statement}\n'
      '  return c\n')


def module(key: str, content: str) -> Damage:
  """A user's module that `key` of the config names."""
  def damage(run):
    name = f'hostile_{next(_module_ids)}'
    write('home', f'{name}.py', content)(run)
    return config(f'{key}={name}')(run)
  return damage


def environment(*lines: str) -> Damage:
  """The echo game with other lines in its class."""
  return module('environment.module', '\n'.join([
      'from tests import echo', 'class Env(echo.Echo):', *lines,
      'def make_environment(**_): return Env(1)', '']))


def use_adapter(run: Run) -> Sequence[str]:
  return config('model.trained=lora', f'lora.folder={run.adapter}')(run)


def use_data(run: Run) -> Sequence[str]:
  return config(
      'dataset.builder=tests.letters_dataset_builder',
      f'dataset.data_dir={run.data}')(run)


def letters(statement: str) -> Damage:
  """A data set that the run builds, its splits changed by a statement."""
  builder = module('dataset.builder', (
      'from tests import letters_dataset_builder\n'
      'class Builder(letters_dataset_builder.Builder):\n'
      '  name = __name__\n'
      '  def splits(self):\n'
      '    splits = super().splits()\n'
      f'    {statement}\n'
      '    return splits\n'))
  return lambda run: [*builder(run), f'--config.dataset.data_dir={run.data}']


# ---- Model folders ----------------------------------------------------------

for _file in ('config.json', 'tokenizer.json', 'tokenizer_config.json'):
  case(f'{_file}, truncated', [f'{{model}}/{_file}'],
       write('model', _file, '{"a": '))
  case(f'{_file}, missing', [f'{{model}}/{_file}'], remove('model', _file))
for _content in ('[]', b'\xff\xfe\x80', '[' * 100_000):
  case(f'generation_config.json, {_content[:3]!r}',
       ['{model}/generation_config.json'],
       write('model', 'generation_config.json', _content))
case('tokenizer.json, unknown type', ['{model}: tokenizer.json'],
     edit('model', 'tokenizer.json', model={'type': 'Unknown'}))
for _key, _value in (
    ('hidden_size', '32'), ('rms_norm_eps', math.nan),
    ('rope_parameters', 'default'), ('model_type', 'unknown')):
  case(f'config.json, {_key}', ['{model}/config.json', _key, repr(_value)],
       edit('model', 'config.json', **{_key: _value}))
case('config.json, mixture of experts', ['config.json', 'num_experts'],
     edit('model', 'config.json', num_experts=8))
case('config.json of another tokenizer', ['16', '15'],
     edit('model', 'config.json', vocab_size=15))
case('config.json of another model', ['model.layers.2.'],
     edit('model', 'config.json', num_hidden_layers=3))
for _value in ('<end>', [0, 99]):
  case(f'eos_token_id={_value}',
       ['{model}/generation_config.json', f'eos_token_id={_value!r}'],
       edit('model', 'generation_config.json', eos_token_id=_value))
for _template, _words in {
    '{% for m in messages %}': 'TemplateSyntaxError',
    "{{ raise_exception('no system role') }}": 'no system role',
    '': "'user'",
}.items():
  case(f'chat template {_template!r}', ['{model}', 'chat template', _words],
       write('model', 'chat_template.jinja', _template))
case('chat template, missing', ['{model}', 'chat_template'],
     remove('model', 'chat_template.jinja'))

_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
case('weights, missing', ['{model}'], remove('model', _WEIGHTS))
for _size in (0, 1000):
  case(f'weights, {_size} bytes', [f'{{model}}/{_WEIGHTS}'],
       truncate('model', _WEIGHTS, _size))
case('weights, NaN',
     ['{model}', 'model.norm.weight', 'NaN or infinity'],
     set_weight('model', _WEIGHTS, 'model.norm.weight', math.nan))
case('weights that overflow bfloat16',
     ['model.norm.weight', 'NaN or infinity', 'bfloat16'],
     set_weight('model', _WEIGHTS, 'model.norm.weight', 3.4e38),
     config('model.trained=lora', 'model.dtype=bfloat16'))
for _content, _words in {
    '{"weight_map": {"a": 3}}': f'{{model}}/{_INDEX}',
    '{"weight_map": {"a": "x.safetensors"}}': 'x.safetensors'}.items():
  case(f'index {_content}', ['{model}', _words],
       remove('model', _WEIGHTS), write('model', _INDEX, _content))
case('model.folder is a file', ['{model}/config.json'],
     lambda run: config(f'model.folder={run.model}/config.json')(run))
case('model.folder is empty', ["''"], config('model.folder='))

# ---- Adapters ---------------------------------------------------------------

_ADAPTER = 'adapter_config.json'
_ADAPTER_WEIGHTS = 'adapter_model.safetensors'
for _key, _value in (
    ('r', 'x'), ('lora_alpha', math.nan)):
  case(f'{_ADAPTER}, {_key}={_value!r}', [f'{{adapter}}/{_ADAPTER}', _key],
       edit('adapter', _ADAPTER, **{_key: _value}), use_adapter)
case('adapter, missing', [f'no/such/{_ADAPTER}'],
     config('model.trained=lora', 'lora.folder=no/such'))
case('adapter, truncated', [_ADAPTER_WEIGHTS],
     truncate('adapter', _ADAPTER_WEIGHTS, 99), use_adapter)
case('adapter, NaN', [_ADAPTER_WEIGHTS, 'self_attn.q_proj', 'NaN'],
     set_weight(
         'adapter', _ADAPTER_WEIGHTS,
         'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight',
         math.nan), use_adapter)
for _targets in ("('attention/[',)", '()'):
  case(f'lora.targets={_targets}', ['lora.targets'],
       config('model.trained=lora', f'lora.targets={_targets}'))

# ---- Configs ----------------------------------------------------------------

for _content, _words in {
    'def get_config(:\n': ['config.py', 'SyntaxError'],
    'import no_such_module\n': ['config.py, line 1', 'no_such_module'],
    'x = 1\n': ['config.py', 'get_config'],
    'def get_config():\n  raise ValueError("no luck")\n': [
        'config.py', 'no luck'],
    'def get_config():\n  return {"seed": 1}\n': ["{'seed': 1}"],
}.items():
  case(f'config {_content!r}', _words, config_file(_content))
case('config with a text as seed', ["seed='x'"],
     changed_echo('del c.seed; c.seed = "x"'))
case('config is a folder', ['{home}'], lambda run: [f'--config={run.home}'])
for _item in (
    'seed=4294967296', 'optimizer=3', 'optimizer.learning_rate=fast',
    'environment.max_turns=0', 'buckets.prompt=(4', 'mesh.fsdp=3',
    'train.num_steps=0', "policy_map=(('first', '../evals'), ('second', 'b'))",
    f"policy_map=(('first', 'a'), ('second', '{'b' * 65}'))",
    "per_policy=(('shared', 'optimizer.b1', 'x'),)", "train.writers=('os',)",
    "train.writers=('tensorboard','tensorboard')", 'environment.module=.x',
    'dataset.builder=no.such'):
  case(_item, [_item.partition('=')[0].rpartition('.')[2]], config(_item))
case('lora.rank', ['lora.rank=1000000'],
     config('model.trained=lora', 'lora.rank=1000000'))
case('export.dtype', ["export.dtype='int8'"],
     mode('export'), config('export.dtype=int8'))
case('export without a run', ['{workdir}'], mode('export'))
case('evaluation.name', ["evaluation.name='../x'"],
     mode('evaluate'), config('evaluation.name=../x'))

# ---- Prompts that do not fit ------------------------------------------------

case('prompts longer than the buckets', ["'first'", 'buckets.prompt'],
     config('buckets.prompt=(2,)'))
case('prompts longer than the model', ['4 positions'],
     edit('model', 'config.json', max_position_embeddings=4))
case('no positions for a prompt', ['rollout.max_new_tokens=2'],
     edit('model', 'config.json', max_position_embeddings=2))
case('one prompt too long', ["'first'", "'letters/train/7'", '5 tokens'],
     letters("splits['train'][7]['letter'] = 'a a a'"))

# ---- Modules of the user ----------------------------------------------------

_ENV = 'environment.module'
for _content, _words in {
    'def f(:\n': 'SyntaxError', 'import sys\nsys.exit(0)\n': 'SystemExit',
    'x = 1\n': 'make_environment', 'def make_environment(**_): pass\n': 'roles',
    'def make_environment(team): pass\n': 'unexpected keyword argument',
}.items():
  case(f'environment {_content!r}', [_ENV, _words], module(_ENV, _content))
case('environment with an unknown role', [_ENV, 'phases'],
     environment('  phases = (("third",),)'))
for _messages in ("'text'", "[{'content': 'a'}]"):
  case(f'messages {_messages}', ["'echo/train/0'"], environment(
      '  def observe(self, state, role):', f'    return {_messages}'))
case('environment.options', ["'colour'"],
     changed_echo('c.environment.options.colour = "red"'))
_PLAN = f'{_ENV}=environments.boards.plan_path.env'
case('environment.team', ["environment.team='crowd"],
     config(_PLAN, 'environment.team=crowd'))
case('programs without a sandbox', ['sandbox'], config(_PLAN))
for _content in ('def f(:\n', 'x = 1\n'):
  case(f'builder {_content!r}', ["dataset.builder='hostile_"],
       module('dataset.builder', _content))

# ---- Data sets --------------------------------------------------------------

for _statement, _words in {
    "splits['train'][3]['task_id'] = splits['train'][2]['task_id']":
        'letters/train/2',
    "splits['train'] = []": 'No examples',
    "del splits['validation']": "'validation'",
    "del splits['train'][3]['letter']": "'letter'",
}.items():
  case(f'rows: {_statement}', [_words], letters(_statement))
case('dataset.config', ["'x'"], use_data, config('dataset.config=x'))
case('too few tasks', ['40'], use_data, config('rollout.num_tasks=41'))
case('an empty slice', ["'test[3:3]'"],
     use_data, config('evaluation.test=test[3:3]'))
case('a split taken twice', ["'letters/train/0'"],
     use_data, config('dataset.train=train+train'))

_SET = 'echo_letters/1.0.0'
_FILE = f'{_SET}/echo_letters-train.array_record-00000-of-00001'
case('records, missing', [_FILE], use_data, remove('data', _FILE))
case('records, truncated', [f'{{data}}/{_SET}'],
     use_data, truncate('data', _FILE, 100))
case('records, flipped', [f'{{data}}/{_SET}'], use_data, change(
    'data', _FILE, lambda path: path.write_bytes(
        path.read_bytes()[:65600] + b'x' + path.read_bytes()[65601:])))
case('dataset_info.json', ['dataset_info.json'],
     use_data, write('data', f'{_SET}/dataset_info.json', '[]'))

# ---- Workdirs ---------------------------------------------------------------

for _mode in ('train', 'evaluate'):
  case(f'workdir is a file, {_mode}', ['{workdir}'],
       write('home', '../workdir', 'x'), mode(_mode))
case('unwritable workdir', ['/sys/run'], lambda run: ['--workdir=/sys/run'])
case('workdir with a long name', ['--workdir'],
     lambda run: [f'--workdir={run.home}/{"x" * 300}'])
case('workdir with other files', ['{workdir}'],
     write('workdir', 'thesis.tex', 'x'))
case('config.json of a workdir', ['{workdir}/config.json'],
     write('workdir', 'config.json', '[]'))
case('workdir of another config', ['{workdir}', 'advantage.baseline'],
     write('workdir', 'config.json', '{"config": {"seed": 5}}'))


# ---- Running a case ---------------------------------------------------------


@pytest.fixture(scope='module')
def sources(echo_folder, tmp_path_factory):
  """An undamaged model, adapter and data set. Tests must not write to it."""
  folder = tmp_path_factory.mktemp('sources')
  shutil.copytree(echo_folder, folder / 'model')
  (folder / 'model' / 'generation_config.json').write_text(
      '{"eos_token_id": [0]}')
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
def run(sources, tmp_path, monkeypatch):
  for folder in ('model', 'adapter', 'data', 'home'):
    shutil.copytree(sources / folder, tmp_path / folder)
  monkeypatch.chdir(checkout.ROOT)
  monkeypatch.syspath_prepend(tmp_path / 'home')
  monkeypatch.delitem(sys.modules, 'config_config', raising=False)
  return Run(*(tmp_path / field.name for field in dataclasses.fields(Run)))


def _run_program(run, arguments, monkeypatch):
  """Runs a command line as `main.run` does; returns the exit status."""
  configs = [x for x in arguments if x.startswith('--config=')]
  argv = [
      'main.py', f'--workdir={run.workdir}',
      *(configs or ['--config=tests/echo.py']),
      *([x for x in arguments if x not in configs])]
  config_path = pathlib.Path(configs[0][9:]) if configs else None
  if config_path is None or config_path.is_file() and (
      b'echo' in config_path.read_bytes()):
    argv.insert(3, f'--config.model.folder={run.model}')
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values)
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  flags.DEFINE_string('mode', 'train', '', flag_values=values)
  monkeypatch.setattr(sys, 'argv', argv)  # config_flags looks here.

  def run_app(_, flags_parser):
    flags_parser(argv, values)
    with echo.Thread(1) as executor:
      sys.exit(main.run_mode(
          values.mode, values.config, pathlib.Path(values.workdir),
          sandbox=None, executor=executor, stop=signals.StopFlag()))

  monkeypatch.setattr(main.app, 'run', run_app)
  with pytest.raises(SystemExit) as end:
    main.run()
  return end.value.code


@pytest.mark.parametrize('damages, words', CASES.values(), ids=CASES)
def test_bad_input_is_named(
    damages, words, run, compiles, monkeypatch, capsys):
  arguments = [argument for damage in damages for argument in damage(run)]
  capsys.readouterr()
  compiles.lap()
  assert _run_program(run, arguments, monkeypatch) == 2
  line, = re.findall('(?m)^error: (.*)$', capsys.readouterr().err)
  for word in words:
    for field in dataclasses.fields(run):
      word = word.replace(f'{{{field.name}}}', str(getattr(run, field.name)))
    assert word in line
  # Nothing is compiled before bad input is found, except to check weights.
  assert 'NaN or infinity' in line or not any(compiles.lap().values())


def test_an_undamaged_run_works(run, monkeypatch):
  quick = config('train.num_steps=1', 'model.trained=lora')(run)
  for arguments in (use_adapter(run), use_data(run)):
    shutil.rmtree(run.workdir, ignore_errors=True)
    assert _run_program(run, [*arguments, *quick], monkeypatch) == 0
