"""Bad input raises one UserError that names it, before anything compiles.

Each case damages one input of a valid run: its model folder, adapter, config,
modules, data set or workdir. The whole program runs in this process, without
workers or a sandbox; `main_test` covers the exit status and the printed line.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import itertools
import json
import math
import re
import shutil
import sys

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

# Old content of a file -> new content.
Change = Callable[[bytes], bytes | str]
# An argument, without '--config.' if it sets a key; or the name of a file ->
# its new content, or None to delete it. The folder of a run, {root}, holds the
# folders model, adapter (of PEFT), data and home (on the module path).
Damage = str | Mapping[str, bytes | str | Change | None]
# (regular expression for the message, damages)
CASES: list[tuple[str, Sequence[Damage]]] = []


def case(message: str, *damages: Damage) -> None:
  CASES.append((message, damages))


# ---- Ways to damage a run ---------------------------------------------------


def truncate(size: int) -> Change:
  return lambda content: content[:size]


def edit(**fields) -> Change:
  return lambda content: json.dumps(json.loads(content) | fields)


def set_weight(tensor: str, value: float) -> Change:
  def change(content):
    tensors = safetensors_numpy.load(content)
    tensors[tensor] = tensors[tensor].copy()
    tensors[tensor].flat[3] = value
    return safetensors_numpy.save(tensors)
  return change


def module(key: str, *lines: str) -> list[Damage]:
  """A user's module that `key` of the config names."""
  name = f'hostile_{next(_module_ids)}'
  return [f'{key}={name}', {f'home/{name}.py': '\n'.join(lines)}]


def environment(*lines: str) -> list[Damage]:
  """The echo game with more lines in its class."""
  return module(
      'environment.module', 'from environments import env_api',
      'from tests import echo', 'class Env(echo.Echo):',
      *(f'  {line}' for line in lines),
      'def make_environment(**_): return Env(1)')


def letters(statement: str) -> list[Damage]:
  """A data set that the run builds, its splits changed by a statement."""
  return ['dataset.data_dir={root}/data', *module(
      'dataset.builder', 'from tests import letters_dataset_builder',
      'class Builder(letters_dataset_builder.Builder):',
      '  name = __name__', '  def splits(self):',
      '    splits = super().splits()', f'    {statement}', '    return splits')]


LORA = 'model.trained=lora'
ADAPTER = LORA, 'lora.folder={root}/adapter'
DATA = (
    'dataset.builder=tests.letters_dataset_builder',
    'dataset.data_dir={root}/data')

# ---- Model folders ----------------------------------------------------------

_CONFIG = 'model/config.json'
_GENERATION = 'model/generation_config.json'
_TEMPLATE = 'model/chat_template.jinja'
case(_CONFIG, {_CONFIG: '{"a": '})
case('model/tokenizer.json', {'model/tokenizer.json': None})
case(re.escape('eos_token_id=[0, 99]'),
     {_GENERATION: edit(eos_token_id=[0, 99])})
case(r'model: tokenizer\.json',
     {'model/tokenizer.json': edit(model={'type': 'Unknown'})})
case('config.json.*num_experts=8', {_CONFIG: edit(num_experts=8)})
case('16 .* 15', {_CONFIG: edit(vocab_size=15)})
case(r'model\.layers\.2\.', {_CONFIG: edit(num_hidden_layers=3)})
case('chat template.*TemplateSyntaxError',
     {_TEMPLATE: '{% for m in messages %}'})
case('chat template.*no system role',
     {_TEMPLATE: "{{ raise_exception('no system role') }}"})
case('model.*chat_template', {_TEMPLATE: None})

_WEIGHTS = 'model/model.safetensors'
_INDEX = 'model/model.safetensors.index.json'
case('/model', {_WEIGHTS: None})
case(_WEIGHTS, {_WEIGHTS: truncate(1000)})
case('model.norm.weight.*NaN or infinity.*bfloat16', LORA,
     'model.dtype=bfloat16',
     {_WEIGHTS: set_weight('model.norm.weight', 3.4e38)})
case('of other folders', {
    _WEIGHTS: None, _INDEX: '{"weight_map": {"a": "../model.safetensors"}}'})
case(_CONFIG, 'model.folder={root}/model/config.json')
case("''", 'model.folder=')

_ADAPTER_WEIGHTS = 'adapter/adapter_model.safetensors'
case('adapter_config.json.*r=0', *ADAPTER,
     {'adapter/adapter_config.json': edit(r=0)})
case("'no/such' is not a folder", LORA, 'lora.folder=no/such')
case(_ADAPTER_WEIGHTS, *ADAPTER, {_ADAPTER_WEIGHTS: truncate(99)})
case(f'{_ADAPTER_WEIGHTS}.*self_attn.q_proj.*NaN', *ADAPTER, {
    _ADAPTER_WEIGHTS: set_weight(
        'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight',
        math.nan)})
case('lora.targets', LORA, "lora.targets=('attention/[',)")

# ---- Configs ----------------------------------------------------------------

for _content, _message in {
    'def get_config(:\n': 'config.py.*SyntaxError',
    'import no_such_module\n': 'config.py, line 1.*no_such_module',
    'def get_config():\n  raise ValueError("no luck")\n': 'config.py.*no luck',
    'def get_config():\n  return {"seed": 1}\n': "{'seed': 1}",
    **{f'from tests import echo\ndef get_config():\n'
       f'  c = echo.get_config().unlock()\n  del c.{key}\n  return c':
           f"not fit this version.*'{message}'"
       for key, message in (
           ('rollout.stop', 'stop'), ('loss.clip_low', 'loss.clip_low'))},
}.items():
  case(_message, '--config={root}/home/config.py',
       {'home/config.py': _content})
for _item in (
    'optimizer=3', 'buckets.prompt=(4', 'mesh.fsdp=3',
    "policy_map=(('first', '../evals'), ('second', 'b'))",
    "per_policy=(('shared', 'optimizer.b1', 'x'),)", "train.writers=('os',)",
    'environment.module=.x', 'environment.options.colour=red'):
  case(_item.partition('=')[0].rpartition('.')[2], _item)
case('lora.rank=1000000', LORA, 'lora.rank=1000000')
case("export.dtype='int8'", '--mode=export', 'export.dtype=int8')
case('/workdir', '--mode=export')
case(r"evaluation.name='\.\./x'", '--mode=evaluate', 'evaluation.name=../x')

# ---- Prompts that do not fit ------------------------------------------------

case('4 positions', {_CONFIG: edit(max_position_embeddings=4)})
case('rollout.max_new_tokens=2', {_CONFIG: edit(max_position_embeddings=2)})
case("'first'.*'letters/train/7'.*5 tokens",
     *letters("splits['train'][7]['letter'] = 'a a a'"))

# ---- Modules of the user ----------------------------------------------------

case("lora.folder='x' is not used", 'lora.folder=x')
_ENV = 'environment.module'
for _content, _message in {
    'import sys\nsys.exit(0)\n': 'SystemExit', 'x = 1\n': 'make_environment',
    'def make_environment(**_): pass\n': 'roles',
    'def make_environment(**_): open("/no/x")\n': 'failed .*No such file',
    'def make_environment(team): pass\n': 'unexpected keyword argument'
}.items():
  case(f'{_ENV}.*{_message}', *module(_ENV, _content))
for _line, _message in {
    'phases = (("third",),)': 'phases', 'roles = None': 'None',
    'roles = ("first", "first")': 'distinct'}.items():
  case(f'{_ENV}.*{_message}', *environment(_line))
case("Env.step returned done=False for role 'second' in turn 1 of task 'echo/",
     *environment(
         'def step(self, state, _):',
         '  return env_api.Step(state, 0, done=False)'))
_PLAN = f'{_ENV}=environments.boards.plan_path.env'
case("environment.team='crowd'", _PLAN, 'environment.team=crowd')
case('sandbox', _PLAN)
case("dataset.builder='hostile_", *module('dataset.builder', 'x = 1\n'))

# ---- Data sets --------------------------------------------------------------

for _statement, _message in {
    "splits['train'][3]['task_id'] = splits['train'][2]['task_id']":
        'letters/train/2',
    "del splits['train'][3]['letter']": "'letter'"}.items():
  case(_message, *letters(_statement))
for _item, _message in {
    'dataset.config=x': "'x'", 'rollout.num_tasks=41': '40',
    'evaluation.test=exam': "'exam'.*test \\(",
    'dataset.train=train+train': "'letters/train/0'"}.items():
  case(_message, *DATA, _item)
_PREPARED = 'data/echo_letters_*/1.0.0/'
_RECORDS = f'{_PREPARED}*-train.array_record-00000-of-00001'
case('echo_letters_.*train.array_record', *DATA, {_RECORDS: None})
case('echo_letters_.*/1.0.0', *DATA, {
    _RECORDS: lambda content: content[:65600] + b'x' + content[65601:]})

# ---- Workdirs ---------------------------------------------------------------

case('/workdir', {'workdir': 'x'})
case('/sys/run', '--workdir=/sys/run')
case('--workdir', f'--workdir={"x" * 300}')
case('/workdir', {'workdir/thesis.tex': 'x'})
case('workdir/config.json', {'workdir/config.json': '[]'})
case('workdir.*advantage.baseline',
     {'workdir/config.json': '{"config": {"seed": 5}}'})


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


def _run_program(root, damages, compiles, monkeypatch):
  """Runs the damaged program; returns the exit status."""
  arguments, defaults = [], [f'--workdir={root}/workdir']
  for damage in damages:
    if isinstance(damage, str):
      arguments.append(('' if damage.startswith('--') else '--config.')
                       + damage.replace('{root}', str(root)))
      continue
    for name, content in damage.items():
      path, = root.glob(name) if '*' in name else [root / name]
      path.parent.mkdir(exist_ok=True)
      if content is None:
        path.unlink()
        continue
      if callable(content):
        content = content(path.read_bytes())
      path.write_bytes(
          content.encode() if isinstance(content, str) else content)
  compiles.lap()
  if not any(argument.startswith('--config=') for argument in arguments):
    defaults += [
        '--config=tests/echo.py', f'--config.model.folder={root}/model']
  values = command_line.parse_main([*defaults, *arguments], monkeypatch)
  with futures.ThreadPoolExecutor(1) as executor, api.Run(
      values.config, values.workdir, executor=executor) as run:
    return main.run_mode(values.mode, run)


@pytest.mark.parametrize('message, damages', CASES, ids=range(len(CASES)))
def test_bad_input_is_named(message, damages, root, compiles, monkeypatch):
  with pytest.raises(errors.UserError, match=message) as error:
    _run_program(root, damages, compiles, monkeypatch)
  # Nothing compiles before bad input is found, except to check weights.
  assert 'NaN or infinity' in str(error.value) or not any(
      compiles.lap().values())


def test_missing_gpu_is_named(root, compiles, monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda,cpu')
  with pytest.raises(errors.UserError, match="'cuda', but jax found 'cpu'"):
    _run_program(root, [], compiles, monkeypatch)


def test_undamaged_run_works(root, compiles, monkeypatch):
  assert _run_program(
      root, [*ADAPTER, *DATA, 'train.num_steps=1', 'rollout.num_tasks=4'],
      compiles, monkeypatch) == 0
