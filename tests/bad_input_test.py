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
# (damage, words of the message); '{model}' stands for the folder.
CASES: dict[str, tuple[Damage, tuple[str, ...]]] = {}


def case(name: str, damage: Damage, *words: str) -> None:
  assert name not in CASES
  CASES[name] = damage, words


# ---- Ways to damage a run ---------------------------------------------------


def config(*items: str) -> Damage:
  return lambda run: [f'--config.{item}' for item in items]


def mode(name: str, *items: str) -> Damage:
  return lambda run: [f'--mode={name}', *config(*items)(run)]


def both(*damages: Damage) -> Damage:
  return lambda run: [
      argument for damage in damages for argument in damage(run)]


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


def change_bytes(
    folder: str, file: str, change_fn: Callable[[bytes], bytes]) -> Damage:
  return change(
      folder, file, lambda path: path.write_bytes(change_fn(path.read_bytes())))


def set_weight(folder: str, file: str, tensor: str, value: float) -> Damage:
  def replace(path):
    tensors = safetensors_numpy.load_file(path)
    tensors[tensor].flat[3] = value
    safetensors_numpy.save_file(tensors, path)
  return change(folder, file, replace)


def config_file(content: str | bytes) -> Damage:
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

_BROKEN_JSON = {
    'truncated': '{"a": ', 'list': '[]', 'binary': b'\xff\xfe\x80',
    'nested': '[' * 100_000}
for _file in (
    'config.json', 'generation_config.json', 'tokenizer.json',
    'tokenizer_config.json'):
  for _how, _content in _BROKEN_JSON.items():
    case(f'{_file}, {_how}', write('model', _file, _content),
         f'{{model}}/{_file}')
for _file in ('config.json', 'tokenizer.json', 'tokenizer_config.json'):
  case(f'{_file}, missing', remove('model', _file), f'{{model}}/{_file}')
case('tokenizer.json, unknown type',
     edit('model', 'tokenizer.json', model={'type': 'Unknown'}),
     '{model}: tokenizer.json')
for _key, _value in (
    ('hidden_size', '32'), ('num_hidden_layers', 0), ('rms_norm_eps', math.nan),
    ('tie_word_embeddings', 1), ('rope_parameters', 'default'),
    ('model_type', 'unknown')):
  case(f'config.json, {_key}={_value}',
       edit('model', 'config.json', **{_key: _value}),
       '{model}/config.json', f'{_key}={_value!r}')
case('config.json, mixture of experts',
     edit('model', 'config.json', num_experts=8), 'config.json', 'num_experts')
case('config.json of another tokenizer',
     edit('model', 'config.json', vocab_size=15), '16', '15')
case('config.json of another model',
     edit('model', 'config.json', num_hidden_layers=3), 'model.layers.2.')
for _value in ('<end>', 16, True, [0, 99]):
  case(f'eos_token_id={_value}',
       edit('model', 'generation_config.json', eos_token_id=_value),
       '{model}/generation_config.json', f'eos_token_id={_value!r}')
for _template, _words in {
    '{% for m in messages %}': ['TemplateSyntaxError'],
    "{{ raise_exception('no system role') }}": ['no system role'],
    '': ["'user'"],
    '{{ messages[0].content | upper }}': [],
}.items():
  case(f'chat template {_template!r}',
       write('model', 'chat_template.jinja', _template),
       '{model}', 'chat template', *_words)
case('chat template, missing', remove('model', 'chat_template.jinja'),
     '{model}', 'chat_template')

_WEIGHTS = 'model.safetensors'
case('weights, missing', remove('model', _WEIGHTS), '{model}')
for _size in (0, 1000):
  case(f'weights, {_size} bytes',
       change_bytes('model', _WEIGHTS, lambda old, size=_size: old[:size]),
       f'{{model}}/{_WEIGHTS}')
for _value in (math.nan, math.inf):
  case(f'weights, {_value}',
       set_weight('model', _WEIGHTS, 'model.norm.weight', _value),
       '{model}', 'model.norm.weight', 'NaN or infinity')
case('weights that overflow bfloat16', both(
    set_weight('model', _WEIGHTS, 'model.norm.weight', 3.4e38),
    config('model.trained=lora', 'model.dtype=bfloat16')),
     'model.norm.weight', 'NaN or infinity', 'bfloat16')
_INDEX = 'model.safetensors.index.json'
for _content in ('{', '{"weight_map": {"a": 3}}'):
  case(f'index {_content}', both(
      remove('model', _WEIGHTS), write('model', _INDEX, _content)),
       f'{{model}}/{_INDEX}')
case('index of a missing file', both(
    remove('model', _WEIGHTS),
    write('model', _INDEX, '{"weight_map": {"a": "x.safetensors"}}')),
     '{model}', 'x.safetensors')
case('model.folder is a file',
     lambda run: config(f'model.folder={run.model}/config.json')(run),
     '{model}/config.json')
case('model.folder is empty', config('model.folder='), "''")

# ---- Adapters ---------------------------------------------------------------

_ADAPTER = 'adapter_config.json'
_ADAPTER_WEIGHTS = 'adapter_model.safetensors'
for _key, _value in (
    ('r', 'x'), ('r', 0), ('lora_alpha', math.nan)):
  case(f'{_ADAPTER}, {_key}={_value!r}',
       both(edit('adapter', _ADAPTER, **{_key: _value}), use_adapter),
       f'{{adapter}}/{_ADAPTER}', _key)
case('adapter, missing',
     config('model.trained=lora', 'lora.folder=no/such'), f'no/such/{_ADAPTER}')
case('adapter, truncated', both(
    change_bytes('adapter', _ADAPTER_WEIGHTS, lambda old: old[:99]),
    use_adapter), _ADAPTER_WEIGHTS)
case('adapter, NaN', both(
    set_weight(
        'adapter', _ADAPTER_WEIGHTS,
        'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight',
        math.nan),
    use_adapter), _ADAPTER_WEIGHTS, 'self_attn.q_proj', 'NaN')
for _targets in ("('attention/[',)", "('x',)", '()'):
  case(f'lora.targets={_targets}',
       config('model.trained=lora', f'lora.targets={_targets}'), 'lora.targets')

# ---- Configs ----------------------------------------------------------------

for _content, _words in {
    'def get_config(:\n': ['config.py', 'SyntaxError'],
    '1 / 0\n': ['config.py, line 1', 'ZeroDivisionError'],
    'import no_such_module\n': ['config.py, line 1', 'no_such_module'],
    'x = 1\n': ['config.py', 'get_config'],
    'def get_config(arg):\n  pass\n': ['config.py', 'positional'],
    'def get_config():\n  raise ValueError("no luck")\n': [
        'config.py', 'no luck'],
    'def get_config():\n  return {"seed": 1}\n': ["{'seed': 1}"],
}.items():
  case(f'config {_content!r}', config_file(_content), *_words)
case('config with a text as seed', changed_echo(
    'del c.seed; c.seed = "x"'), "seed='x'")
case('config is a folder', lambda run: [f'--config={run.home}'], '{home}')
for _item in (
    'seed=4294967296', 'optimizer.learning_rate=1e39', 'optimizer=3',
    'optimizer.learning_rate=fast', 'rollout.alpha=1e300',
    'environment.max_turns=x', 'environment.max_turns=0', 'buckets.prompt=(4',
    'mesh.fsdp=3', 'train.num_steps=0',
    'policies=x', "policy_map=(('first', 'a'),)",
    "policy_map=(('first', '../evals'), ('second', 'b'))",
    f"policy_map=(('first', 'a'), ('second', '{'b' * 65}'))",
    "per_policy=(('shared', 'model'),)",
    "per_policy=(('shared', 'optimizer.b1', 'x'),)", "train.writers=('os',)",
    "train.writers=('tensorboard','tensorboard')", 'environment.module=.x',
    'dataset.builder=', 'dataset.builder=no.such'):
  case(_item, config(_item), _item.partition('=')[0].rpartition('.')[2])
case('lora.rank', config('model.trained=lora', 'lora.rank=1000000'),
     'lora.rank=1000000')
case('export.dtype', mode('export', 'export.dtype=int8'), "export.dtype='int8'")
case('export without a run', mode('export'), '{workdir}')
case('evaluation.name', mode('evaluate', 'evaluation.name=../x'),
     "evaluation.name='../x'")

# ---- Prompts that do not fit ------------------------------------------------

case('prompts longer than the buckets', config('buckets.prompt=(2,)'),
     "'first'", 'buckets.prompt')
case('prompts longer than the model',
     edit('model', 'config.json', max_position_embeddings=4), '4 positions')
case('no positions for a prompt',
     edit('model', 'config.json', max_position_embeddings=2),
     'rollout.max_new_tokens=2')
case('one prompt too long', letters("splits['train'][7]['letter'] = 'a a a'"),
     "'first'", "'letters/train/7'", '5 tokens')

# ---- Modules of the user ----------------------------------------------------

_ENV = 'environment.module'
for _content, _words in {
    'def f(:\n': 'SyntaxError', 'raise RuntimeError("no luck")\n': 'no luck',
    'import sys\nsys.exit(0)\n': 'SystemExit', 'x = 1\n': 'make_environment',
    'def make_environment(team): pass\n': 'unexpected keyword argument',
    'def make_environment(**_): pass\n': 'roles',
    'from tests import echo\n'
    'class Env(echo.Echo):\n  phases = (("third",),)\n'
    'def make_environment(**_): return Env(1)\n': 'phases',
}.items():
  case(f'environment {_content!r}', module(_ENV, _content), _ENV, _words)
for _messages in ("'text'", "[{'content': 'a'}]",
                  "[{'role': 'user', 'content': 3}]"):
  case(f'messages {_messages}', module(_ENV, (
      'from tests import echo\n'
      'class Env(echo.Echo):\n'
      '  def observe(self, state, role):\n'
      f'    return {_messages}\n'
      'def make_environment(**_): return Env(1)\n')), "'echo/train/0'")
case('environment.options', changed_echo(
    'c.environment.options.colour = "red"'), "'colour'")
_PLAN = f'{_ENV}=environments.boards.plan_path.env'
for _item in ('environment.team=crowd', 'environment.reward=both'):
  case(_item, config(_PLAN, _item), _item.replace('=', "='"))
case('programs without a sandbox', config(_PLAN), 'sandbox')
for _content in ('def f(:\n', 'x = 1\n'):
  case(f'builder {_content!r}', module('dataset.builder', _content),
       "dataset.builder='hostile_")
case('dataset.config', both(use_data, config('dataset.config=x')), "'x'")
case('tasks of another environment',
     both(use_data, config(_PLAN, 'environment.team=solo')),
     "'letters/train/0'", "'grid'")

# ---- Data sets --------------------------------------------------------------

for _statement, _words in {
    "splits['train'][3]['task_id'] = splits['train'][2]['task_id']":
        'letters/train/2',
    "splits['test'][5]['task_id'] = ''": "task_id=''",
    "splits['train'] = []": 'No examples',
    "del splits['validation']": "'validation'",
    "splits['train'][3]['letter'] = 3": 'letter',
    "del splits['train'][3]['letter']": "'letter'",
}.items():
  case(f'rows: {_statement}', letters(_statement), _words)
case('too few tasks', both(use_data, config('rollout.num_tasks=41')), '40')
case('an empty slice', both(
    use_data, config('evaluation.test=test[3:3]')), "'test[3:3]'")
case('a split taken twice', both(
    use_data, config('dataset.train=train+train')), "'letters/train/0'")
_ROW = '{"prompt": "a b", "completion": "c"}\n'
_MANUAL = 'downloads/manual/tldr'
for _rows, _words in {
    _ROW + '{"prompt": 3, "completion": "c"}\n': 'row 2',
    _ROW + '{"completion": "c"}\n': "'prompt'", _ROW * 4 + _ROW[:20]: 'row 5',
    _ROW + '[]\n': 'row 2', '': 'no rows'}.items():
  case(f'rows of a file {_rows!r}', both(
      *(write('data', f'{_MANUAL}/{split}.jsonl',
              _rows if split == 'train' else _ROW)
        for split in ('train', 'validation', 'test')),
      config('dataset.builder=environments.writing.tldr.tldr_dataset_builder'),
      lambda run: [f'--config.dataset.data_dir={run.data}']),
       f'{{data}}/{_MANUAL}/train.jsonl', _words)


def _flip(content: bytes, at: int) -> bytes:
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


_SET = 'echo_letters/1.0.0'
_FILE = f'{_SET}/echo_letters-train.array_record-00000-of-00001'
case('records, missing', both(use_data, remove('data', _FILE)), _FILE)
for _how, _change in {
    'truncated header': lambda old: old[:100],
    'truncated': lambda old: old[:-1000],
    'flipped data': lambda old: _flip(old, 65600)}.items():
  case(f'records, {_how}', both(
      use_data, change_bytes('data', _FILE, _change)), f'{{data}}/{_SET}')
case('dataset_info.json',
     both(use_data, write('data', f'{_SET}/dataset_info.json', '[]')),
     'dataset_info.json')
case('data_dir is a file', lambda run: config(
    'dataset.builder=tests.letters_dataset_builder',
    f'dataset.data_dir={run.model}/config.json')(run), '{model}/config.json')

# ---- Workdirs ---------------------------------------------------------------

for _mode in ('train', 'evaluate', 'export'):
  case(f'workdir is a file, {_mode}',
       both(write('home', '../workdir', 'x'), mode(_mode)), '{workdir}')
case('workdir inside a file',
     lambda run: [f'--workdir={run.model}/config.json/x'],
     '{model}/config.json')
case('unwritable workdir', lambda run: ['--workdir=/sys/run'], '/sys/run')
case('workdir with a long name',
     lambda run: [f'--workdir={run.home}/{"x" * 300}'], '--workdir')
case('workdir with other files', write('workdir', 'thesis.tex', 'x'),
     '{workdir}')
case('config.json of a workdir', write('workdir', 'config.json', '[]'),
     '{workdir}/config.json')
case('workdir of another config', write(
    'workdir', 'config.json', '{"config": {"seed": 5}}'),
     '{workdir}', 'advantage.baseline')


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


@pytest.mark.parametrize('damage, words', CASES.values(), ids=CASES)
def test_bad_input_is_named(
    damage, words, run, compiles, monkeypatch, capsys):
  arguments = damage(run)
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
