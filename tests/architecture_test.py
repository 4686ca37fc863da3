"""Layers and import rules of the project, checked on its sources.

A module imports only from layers below its own. pyproject.toml has more rules:
who uses flax.linen, who builds meshes, who catches all errors.
"""

import ast
from collections.abc import Iterator
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# From the top. Modules of one layer do not import each other.
LAYERS = (
    'paper',
    'atgrpo_jax.main',
    'atgrpo_jax.api',
    'atgrpo_jax.export atgrpo_jax.replay atgrpo_jax.compile_check'
    ' atgrpo_jax.doctor atgrpo_jax.play',
    *(f'atgrpo_jax.{name}' for name in (
        'train', 'viewer', 'evaluate', 'rehearsal', 'saved_config', 'config',
        'experiment', 'settings', 'algorithms', 'rollout', 'sampling',
        'learner', 'huggingface', 'model', 'rl', 'io', 'distributed',
        'rules')),
    'atgrpo_jax.types atgrpo_jax.errors atgrpo_jax.statistics',
)
_HEIGHTS = {
    name: -depth for depth, names in enumerate(LAYERS)
    for name in names.split()}
MAX_LINES = 600

# Packages that a folder or file may import beside the standard library.
ALLOWED = {
    'environments/': {'environments', 'numpy'},
    'configs/': {'configs', 'ml_collections'},
    'environments/datasets.py': {'tensorflow_datasets', 'google'},
    'environments/dataset_files.py': {
        'tensorflow_datasets', 'huggingface_hub'},
    'environments/row_files.py': {'pyarrow'},
    'environments/boards/board_game.py': {'scipy'},
    'environments/math_problems/formulas.py': {
        'latex2sympy2_extended', 'math_verify', 'sympy'},
}
# Package -> the lowest layer that may import it.
VISIBLE_FROM = {
    'environments': 'atgrpo_jax.rollout',
    'ml_collections': 'atgrpo_jax.settings'}
# Source text -> the only file that may contain it.
OWNERS = {
    r'\bMesh\(': 'atgrpo_jax/distributed/mesh.py',
    r'(?<!`)\benv\w*\.step\b': 'atgrpo_jax/rollout/contract.py'}


def _sources(*folders: str) -> dict[str, str]:
  """Path in the repository -> text of all Python files there."""
  return {
      path.relative_to(ROOT).as_posix(): path.read_text('utf-8')
      for folder in folders for path in sorted((ROOT / folder).rglob('*.py'))}


def _imports(source: str) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of each import."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (
          (node.lineno, f'{node.module}.{alias.name}') for alias in node.names)


def _is_in(name: str, package: str) -> bool:
  return name == package or name.startswith(package + '.')


def _module(path: str) -> str:
  """'atgrpo_jax/rl/losses.py' -> 'atgrpo_jax.rl.losses'."""
  name = path.removesuffix('.py').replace('/', '.')
  return name.removesuffix('.__init__')


def _layer(name: str) -> str:
  """The entry of LAYERS that contains a module; '' if none does."""
  return max((x for x in _HEIGHTS if _is_in(name, x)), key=len, default='')


def _layer_problems(path: str, source: str) -> Iterator[str]:
  module = _module(path)
  layer = _layer(module)
  if not layer:
    if module != 'atgrpo_jax':
      yield f'{path}: has no layer; put its folder into LAYERS'
    return
  for line, name in _imports(source):
    where = f'{path}:{line}: imports {name}'
    package = name.partition('.')[0]
    if path.endswith('__init__.py') and layer != 'atgrpo_jax.model':
      yield f'{where}; of all __init__.py only that of model/ may import'
    elif package == 'models':
      yield f'{where}; only recipes, benchmarks and tests see models/'
    elif package in VISIBLE_FROM:
      if _HEIGHTS[layer] < _HEIGHTS[VISIBLE_FROM[package]]:
        yield f'{where}; it is visible from {VISIBLE_FROM[package]} up'
    elif package in ('atgrpo_jax', 'paper'):
      target = _layer(name)
      if target != layer and (
          not target or _HEIGHTS[target] >= _HEIGHTS[layer]):
        yield (f'{where}, which is not in a layer below; pass what it needs as '
               'an argument, or move it')


def _foreign_import_problems(path: str, source: str) -> Iterator[str]:
  allowed = {'tensorflow_datasets'} if path.endswith('_builder.py') else set()
  for prefix, names in ALLOWED.items():
    if path.startswith(prefix):
      allowed |= names
  for line, name in _imports(source):
    if name.partition('.')[0] not in allowed | sys.stdlib_module_names:
      yield (f'{path}:{line}: imports {name}; expected the standard library or '
             f'{", ".join(sorted(allowed))}')


@pytest.mark.parametrize('rule, folders', [
    (_layer_problems, ('atgrpo_jax', 'paper')),
    (_foreign_import_problems, ('environments', 'configs'))])
def test_imports_obey(rule, folders):
  problems = [
      problem for path, source in _sources(*folders).items()
      for problem in rule(path, source)]
  assert not problems, '\n'.join(['', *problems])


def test_mistakes_in_a_config_are_found_without_jax():
  subprocess.run([sys.executable, '-c', (
      'import sys; import atgrpo_jax.settings; assert "jax" not in sys.modules'
  )], cwd=ROOT, check=True)


def test_imports_have_no_cycles():
  sources = _sources('atgrpo_jax', 'environments', 'paper')
  modules = {_module(path) for path in sources}
  graph = {}
  for path, source in sources.items():
    if not path.endswith('__init__.py'):  # Its modules may import each other.
      names = {name for _, name in _imports(source)}
      names |= {name.rpartition('.')[0] for name in names}
      graph[_module(path)] = modules & names - {_module(path)}
  graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize('pattern, owner', OWNERS.items())
def test_only_one_module_builds_meshes_and_steps_environments(pattern, owner):
  assert [path for path, source in _sources('atgrpo_jax', 'paper').items()
          if re.search(pattern, source)] == [owner]


def test_modules_have_at_most_600_lines():
  lines = {
      path: source.count('\n') for path, source in _sources(
          'atgrpo_jax', 'environments', 'configs', 'paper').items()}
  assert not {path: n for path, n in lines.items() if n > MAX_LINES}
