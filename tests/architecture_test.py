"""The cut of the project, kept true by reading the sources with `ast`.

FLOORS is the map: a module imports only from the floors below its own, or from
its own floor inside its own sub-package as long as no circle arises. The other
rules give each power one owner: who knows flax.linen, who sees a config, who
builds a mesh, who steps an environment, who may catch everything. Every rule
is a small function that is first shown sources which break it.
"""

import ast
from collections.abc import Iterator
import graphlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

FLOORS = {
    module: floor
    for floor, modules in {
        11: 'paper_tables',
        10: 'main paper',
        9: 'train pretrain export compile_check paper_statistics',
        8: 'evaluate',
        7: 'experiment',
        6: 'policies',
        5: 'rollout.interaction rollout.at_grpo rollout.magrpo'
        ' rollout.batching rollout.engine rl.diagnostics',
        4: 'rollout.sampler rl.policy_map rl.train_state rl.train_step',
        3: 'tokenizer checkpoints metrics model.safetensors_io model.peft_io',
        2: 'model model.attention model.splash model.cudnn model.kernels'
        ' model.layers model.qwen3 model.kv_cache model.lora',
        1: 'rl.advantages rl.losses rl.optimizer rollout.sampling sharding'
        ' hosts model.config',
        0: 'types errors files signals',
    }.items()
    for module in modules.split()
}
# environments/ stands beside the floors; from here up it is visible.
ENVIRONMENTS_FLOOR = 5
CONFIG_FLOOR = 6

MESH_BUILDERS = ('Mesh', 'make_mesh', 'create_device_mesh')


# Reading sources.


def _sources(*folders: str) -> dict[str, ast.Module]:
  """Path in the repository -> parsed source, of all Python files there."""
  return {
      path.relative_to(ROOT).as_posix(): ast.parse(path.read_text('utf-8'))
      for folder in folders
      for path in sorted((ROOT / folder).rglob('*.py'))
  }


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of whatever is imported, wherever it stands."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = '.' * node.level + (node.module or '')
      for alias in node.names:
        yield node.lineno, f'{base}.{alias.name}'


def _uses(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
  """(node, dotted name) of each expression that leads into an import."""
  meaning = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        if alias.asname:
          meaning[alias.asname] = alias.name
        else:
          root = alias.name.partition('.')[0]
          meaning[root] = root
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        meaning[alias.asname or alias.name] = f'{node.module}.{alias.name}'
  for node in ast.walk(tree):
    parts = []
    inner = node
    while isinstance(inner, ast.Attribute):
      parts.append(inner.attr)
      inner = inner.value
    if isinstance(inner, ast.Name) and inner.id in meaning:
      yield node, '.'.join([meaning[inner.id], *reversed(parts)])


def _is_in(name: str, package: str) -> bool:
  return name == package or name.startswith(package + '.')


def _module(path: str) -> str:
  """'atgrpo_jax/rl/losses.py' -> 'rl.losses'; a package is its folder."""
  parts = list(pathlib.PurePosixPath(path).with_suffix('').parts[1:])
  if parts[-1] == '__init__':
    parts.pop()
  return '.'.join(parts)


def _floor(path: str) -> int:
  return FLOORS.get(_module(path), -1)


# The rules: (path, tree) -> problems.


def _own_imports(
    path: str, tree: ast.Module
) -> Iterator[tuple[int, str, str | None]]:
  """(line, name, module of FLOORS or None) of imports from atgrpo_jax."""
  for line, name in _imports(tree):
    if _is_in(name, 'atgrpo_jax'):
      target = name.removeprefix('atgrpo_jax').removeprefix('.')
      while target and target not in FLOORS:
        target = target.rpartition('.')[0]
      yield line, name, target or None


def floor_problems(path: str, tree: ast.Module) -> list[str]:
  """A module must have a floor and import only from below."""
  module = _module(path)
  if module not in FLOORS:
    if path.endswith('__init__.py'):
      return [
          f'{path}:{line}: imports {name}, but only model/__init__.py may'
          ' import: others are empty, so that importing one module of a'
          ' package loads no other'
          for line, name in _imports(tree)
      ]
    return [
        f'{path}: has no floor; put it into FLOORS of'
        ' tests/architecture_test.py, above all that it imports and below all'
        ' that imports it'
    ]
  problems = []
  for line, name, target in _own_imports(path, tree):
    if target is None:
      problems.append(
          f'{path}:{line}: imports {name}, which is no module of FLOORS;'
          ' import a module of the project, not a package'
      )
    elif not _may_import(module, target):
      problems.append(
          f'{path}:{line}: {module} (floor {FLOORS[module]}) imports {target}'
          f' (floor {FLOORS[target]}); pass what it needs as an argument, or'
          ' move it below'
      )
  for line, name in _imports(tree):
    if name.startswith('.'):
      problems.append(f'{path}:{line}: relative import; write it absolutely')
    if _is_in(name, 'environments') and FLOORS[module] < ENVIRONMENTS_FLOOR:
      problems.append(
          f'{path}:{line}: {module} (floor {FLOORS[module]}) imports {name};'
          f' environments are visible from floor {ENVIRONMENTS_FLOOR} up'
      )
  return problems


def _may_import(module: str, target: str) -> bool:
  package = module.partition('.')[0]
  return FLOORS[target] < FLOORS[module] or (
      FLOORS[target] == FLOORS[module] and target.startswith(f'{package}.')
  )


def import_circle(sources: dict[str, ast.Module]) -> list[str] | None:
  """Modules that import each other in a circle, if there are any."""
  graph = {
      _module(path): {
          target for _, _, target in _own_imports(path, tree) if target
      }
      for path, tree in sources.items()
  }
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return None


def foreign_import_problems(path: str, tree: ast.Module) -> list[str]:
  """environments/ and configs/ lean on next to nothing."""
  folder = path.partition('/')[0]
  allowed = {
      'environments': {'environments', 'numpy'},
      'configs': {'configs', 'ml_collections'},
  }[folder]
  if path.endswith('_dataset_builder.py') or path == 'environments/datasets.py':
    allowed = allowed | {'tensorflow_datasets'}
  return [
      f'{path}:{line}: imports {name}; {folder}/ may import only the standard'
      f' library and {", ".join(sorted(allowed))}'
      for line, name in _imports(tree)
      if name.partition('.')[0] not in allowed | sys.stdlib_module_names
  ]


def owner_problems(path: str, tree: ast.Module) -> list[str]:
  """flax.linen belongs to model/, ml_collections to the top floors."""
  names = {(line, name) for line, name in _imports(tree)}
  names |= {(node.lineno, name) for node, name in _uses(tree)}
  problems = []
  for line, name in sorted(names):
    if _is_in(name, 'flax.linen') and not path.startswith('atgrpo_jax/model/'):
      problems.append(
          f'{path}:{line}: uses {name}; only atgrpo_jax/model/ knows'
          ' flax.linen, call its pure functions'
      )
    if _is_in(name, 'ml_collections') and _floor(path) < CONFIG_FLOOR:
      problems.append(
          f'{path}:{line}: uses {name}; below floor {CONFIG_FLOOR} take typed'
          ' arguments instead of a config'
      )
  return problems


def mesh_problems(path: str, tree: ast.Module) -> list[str]:
  """Only sharding.py builds a mesh; everybody else is handed one."""
  if path == 'atgrpo_jax/sharding.py':
    return []
  names = {id(node): name for node, name in _uses(tree)}
  problems = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      name = names.get(id(node.func), '')
      if _is_in(name, 'jax') and name.rpartition('.')[2] in MESH_BUILDERS:
        problems.append(
            f'{path}:{node.lineno}: calls {name}; only sharding.py builds a'
            ' mesh, take it as an argument'
        )
  return problems


def step_problems(path: str, tree: ast.Module) -> list[str]:
  """Only interaction.py steps an environment.

  Seen are a call of anything's method `step` that is not a function of an
  imported module, and `env.step` handed on uncalled (as to a worker pool).
  """
  if path == 'atgrpo_jax/rollout/interaction.py':
    return []
  outside = {
      id(node) for node, name in _uses(tree) if not _is_in(name, 'environments')
  }
  called = {
      id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
  }
  return [
      f'{path}:{node.lineno}: {ast.unparse(node)}; only'
      ' rollout/interaction.py steps an environment'
      for node in ast.walk(tree)
      if isinstance(node, ast.Attribute)
      and node.attr == 'step'
      and id(node) not in outside
      and (id(node) in called or 'env' in ast.unparse(node.value).lower())
  ]


def except_problems(path: str, tree: ast.Module) -> list[str]:
  """Only the sandbox may catch what it does not name."""
  if path.startswith('environments/sandbox/'):
    return []
  problems = []
  for node in ast.walk(tree):
    if isinstance(node, ast.ExceptHandler):
      caught = [node.type]
      if isinstance(node.type, ast.Tuple):
        caught = node.type.elts
    elif isinstance(node, ast.Call) and (
        ast.unparse(node.func).rpartition('.')[2] == 'suppress'
    ):
      caught = node.args
    else:
      continue
    for kind in caught:
      name = 'everything' if kind is None else ast.unparse(kind)
      if name.rpartition('.')[2] in (
          'everything',
          'Exception',
          'BaseException',
      ):
        problems.append(
            f'{path}:{node.lineno}: catches {name}; name the errors that can'
            ' be handled here and let the others stop the program'
        )
  return problems


def golden_problems(folder: pathlib.Path) -> list[str]:
  """A stored number is worth what the script that made it is worth.

  Some script in the folder must name the file, or name a folder around the
  file (a checkpoint, say) from outside that folder.
  """
  makers = {path: path.read_text('utf-8') for path in folder.rglob('*.py')}
  problems = []
  for path in sorted(folder.rglob('*')):
    if path.is_dir() or path.name == 'README.md' or path.suffix in (
        '.py',
        '.pyc',
    ):
      continue
    for maker, text in makers.items():
      around = [
          parent.name
          for parent in path.parents
          if folder in parent.parents and parent not in maker.parents
      ]
      if any(name in text for name in [path.name, *around]):
        break
    else:
      problems.append(
          f'{path}: no script in {folder.name}/ names it; store the script'
          ' that makes it beside it'
      )
  return problems


# The project obeys.


def _assert_obeyed(rule, *folders: str):
  sources = _sources(*folders)
  assert sources, f'no Python file in {folders}'
  problems = [p for path, tree in sources.items() for p in rule(path, tree)]
  assert not problems, '\n'.join(['', *problems])


def test_modules_import_only_from_lower_floors():
  _assert_obeyed(floor_problems, 'atgrpo_jax')


def test_no_imports_in_a_circle():
  circle = import_circle(_sources('atgrpo_jax'))
  assert circle is None, ' imports '.join(reversed(circle))


def test_environments_and_configs_import_little():
  _assert_obeyed(foreign_import_problems, 'environments', 'configs')


def test_flax_linen_and_configs_have_owners():
  _assert_obeyed(owner_problems, 'atgrpo_jax')


def test_only_sharding_builds_a_mesh():
  _assert_obeyed(mesh_problems, 'atgrpo_jax')


def test_only_interaction_steps_environments():
  _assert_obeyed(step_problems, 'atgrpo_jax')


def test_no_broad_except():
  _assert_obeyed(
      except_problems,
      'atgrpo_jax',
      'benchmarks',
      'configs',
      'environments',
      'tests',
  )


def test_goldens_have_makers():
  problems = golden_problems(ROOT / 'tests' / 'goldens')
  assert not problems, '\n'.join(['', *problems])


# The rules see what they should.


def _check(rule, path: str, source: str) -> list[str]:
  return rule(path, ast.parse(source))


@pytest.mark.parametrize(
    'path, source, words',
    [
        ('rl/losses.py', 'from atgrpo_jax import tokenizer', 'tokenizer'),
        ('rl/losses.py', 'import atgrpo_jax.rl.train_step', 'rl.train_step'),
        ('rl/losses.py', 'import jax\nimport atgrpo_jax.metrics as m', ':2:'),
        ('rl/losses.py', 'def f():\n  from atgrpo_jax import train', ':2:'),
        # The same floor, in another package or in none.
        ('rl/losses.py', 'from atgrpo_jax import sharding', 'floor 1'),
        ('train.py', 'from atgrpo_jax import pretrain', 'floor 9'),
        # Below, but the package's own surface is above.
        ('model/config.py', 'from atgrpo_jax import model', 'floor 2'),
        ('model/qwen3.py', 'from atgrpo_jax import model', 'floor 2'),
        ('rl/losses.py', 'from atgrpo_jax import rl', 'no module of FLOORS'),
        ('rl/losses.py', 'from . import advantages', 'relative'),
        ('rl/train_step.py', 'from environments import base', 'environments'),
        ('rl/new.py', 'import jax', 'has no floor'),
        ('rl/__init__.py', 'from atgrpo_jax.rl import losses', 'empty'),
    ],
)
def test_floor_problems_are_found(path, source, words):
  problem, = _check(floor_problems, f'atgrpo_jax/{path}', source)
  assert words in problem


@pytest.mark.parametrize(
    'path, source',
    [
        ('rl/losses.py', 'import jax\nfrom atgrpo_jax import types'),
        ('rl/train_step.py', 'from atgrpo_jax.model import init_params'),
        ('model/__init__.py', 'from atgrpo_jax.model.qwen3 import forward'),
        ('model/qwen3.py', 'from atgrpo_jax.model import layers'),
        ('rollout/at_grpo.py', 'from environments import base'),
        ('main.py', 'from atgrpo_jax import train'),
        ('rl/__init__.py', '"""Nothing."""'),
    ],
)
def test_good_imports_are_left_alone(path, source):
  assert not _check(floor_problems, f'atgrpo_jax/{path}', source)


def test_circle_is_found():
  sources = {
      'atgrpo_jax/model/qwen3.py': 'from atgrpo_jax.model import layers',
      'atgrpo_jax/model/layers.py': 'import atgrpo_jax.model.lora',
      'atgrpo_jax/model/lora.py': '',
  }
  parsed = {path: ast.parse(source) for path, source in sources.items()}
  assert import_circle(parsed) is None
  parsed['atgrpo_jax/model/lora.py'] = ast.parse(
      'from atgrpo_jax.model import qwen3'
  )
  assert set(import_circle(parsed)) == {
      'model.qwen3',
      'model.layers',
      'model.lora',
  }


@pytest.mark.parametrize(
    'path, source',
    [
        ('environments/text.py', 'import jax.numpy as jnp'),
        ('environments/text.py', 'from atgrpo_jax import types'),
        ('environments/text.py', 'import tensorflow_datasets as tfds'),
        ('configs/sokoban.py', 'import jax'),
    ],
)
def test_foreign_imports_are_found(path, source):
  assert len(_check(foreign_import_problems, path, source)) == 1


def test_expected_imports_are_not_foreign():
  builder = 'environments/plan_path/plan_path_dataset_builder.py'
  for path, source in [
      ('environments/text.py', 'import json, numpy\nimport environments.base'),
      (builder, 'import tensorflow_datasets as tfds'),
      ('configs/sokoban.py', 'from ml_collections import config_dict'),
  ]:
    assert not _check(foreign_import_problems, path, source)


@pytest.mark.parametrize(
    'source',
    [
        'from flax import linen as nn',
        'import flax.linen as nn',
        'from flax.linen import Dense',
        'import flax\nflax.linen.Dense(3)',
        'import ml_collections',
        'from ml_collections import config_dict',
    ],
)
def test_owner_problems_are_found(source):
  assert _check(owner_problems, 'atgrpo_jax/rl/losses.py', source)


def test_owners_may():
  linen = 'from flax import linen as nn\nnn.Dense(3)'
  assert not _check(owner_problems, 'atgrpo_jax/model/layers.py', linen)
  config = 'import ml_collections'
  assert not _check(owner_problems, 'atgrpo_jax/train.py', config)
  struct = 'from flax import struct'
  assert not _check(owner_problems, 'atgrpo_jax/types.py', struct)


@pytest.mark.parametrize(
    'source',
    [
        'import jax\njax.make_mesh((1,), ("data",))',
        'from jax import make_mesh as make\nmake((1,), ("data",))',
        'from jax.sharding import Mesh\nMesh(devices, ("data",))',
        'import jax.sharding as js\nx = js.Mesh(devices, ("data",))',
        'from jax.experimental import mesh_utils as mu\n'
        'mu.create_device_mesh((2,))',
    ],
)
def test_mesh_problems_are_found(source):
  assert len(_check(mesh_problems, 'atgrpo_jax/train.py', source)) == 1
  assert not _check(mesh_problems, 'atgrpo_jax/sharding.py', source)


def test_a_mesh_may_be_passed_and_asked_for():
  source = (
      'from atgrpo_jax import sharding\n'
      'from jax.sharding import Mesh\n'
      'def f(mesh: Mesh) -> Mesh:\n'
      '  return mesh or sharding.make_mesh(2)'
  )
  assert not _check(mesh_problems, 'atgrpo_jax/train.py', source)


@pytest.mark.parametrize(
    'source',
    [
        'env.step(state, actions)',
        'task.thing().step(state, actions)',
        'pool.submit(env.step, state, actions)',
        'map(self.environments[0].step, states)',
        'from environments.plan_path import env\nenv.step(state, actions)',
    ],
)
def test_step_problems_are_found(source):
  assert len(_check(step_problems, 'atgrpo_jax/evaluate.py', source)) == 1
  interaction = 'atgrpo_jax/rollout/interaction.py'
  assert not _check(step_problems, interaction, source)


def test_other_steps_are_left_alone():
  source = (
      'from atgrpo_jax.rl import train_step\n'
      'train_step.step(state, batch)\n'
      'number = state.step + 1\n'
      'result: base.Step'
  )
  assert not _check(step_problems, 'atgrpo_jax/train.py', source)


@pytest.mark.parametrize(
    'source',
    [
        'try:\n  f()\nexcept:\n  pass',
        'try:\n  f()\nexcept Exception as e:\n  log(e)',
        'try:\n  f()\nexcept (ValueError, BaseException):\n  raise',
        'try:\n  f()\nexcept builtins.Exception:\n  pass',
        'import contextlib\nwith contextlib.suppress(Exception):\n  f()',
    ],
)
def test_broad_excepts_are_found(source):
  assert len(_check(except_problems, 'atgrpo_jax/train.py', source)) == 1
  assert not _check(except_problems, 'environments/sandbox/server.py', source)


def test_named_excepts_are_left_alone():
  source = 'try:\n  f()\nexcept (ValueError, OSError):\n  g()'
  assert not _check(except_problems, 'atgrpo_jax/train.py', source)


def test_goldens_without_maker_are_found(tmp_path):
  (tmp_path / 'qwen3').mkdir()
  (tmp_path / 'qwen3/model.safetensors').write_bytes(b'1')
  (tmp_path / 'logits.npz').write_bytes(b'2')
  (tmp_path / 'README.md').write_text('logits.npz, qwen3')
  assert len(golden_problems(tmp_path)) == 2
  (tmp_path / 'qwen3/make.py').write_text("NAME = 'qwen3'")
  assert len(golden_problems(tmp_path)) == 2
  (tmp_path / 'make.py').write_text("save('logits.npz'); save_model('qwen3')")
  assert not golden_problems(tmp_path)
