"""Layers and import rules of the project, checked on its parsed sources.

A folder imports only from folders below it in FLOORS. The other rules limit
flax.linen, configs, meshes, environment steps and broad `except` clauses.
"""

import ast
from collections.abc import Iterator
import functools
import graphlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# From the top; what stands on one floor does not import each other.
FLOORS = (
    'paper',
    'atgrpo_jax.main atgrpo_jax.api',
    'atgrpo_jax.export atgrpo_jax.replay atgrpo_jax.compile_check'
    ' atgrpo_jax.doctor',
    *(f'atgrpo_jax.{name}' for name in (
        'train', 'viewer', 'evaluate', 'saved_config', 'config',
        'measures', 'algorithms', 'rollout', 'sampling', 'learner',
        'huggingface', 'model', 'rl', 'io', 'distributed')),
    'atgrpo_jax.types atgrpo_jax.errors',
)
_FLOOR_OF = {
    name: -floor for floor, names in enumerate(FLOORS)
    for name in names.split()}
MAX_LINES = 600

OUTSIDE = {
    'environments': {'environments', 'numpy'},
    'configs': {'configs', 'ml_collections'},
}
_EVERYTHING = ('everything', 'Exception', 'BaseException')
_MESH_BUILDERS = ('Mesh', 'make_mesh', 'create_device_mesh')


def _sources(*folders: str) -> dict[str, ast.Module]:
  """Path in the repository -> parsed source, of all Python files there."""
  return {
      path.relative_to(ROOT).as_posix(): _parse(path)
      for folder in folders for path in sorted((ROOT / folder).rglob('*.py'))}


@functools.cache
def _parse(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text('utf-8'))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of whatever is imported, wherever it stands."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      package = '.' * node.level + (node.module or '')
      for alias in node.names:
        yield node.lineno, f'{package}.{alias.name}'


def _uses(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
  """(node, dotted name) of each expression that leads into an import."""
  meaning = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        root = alias.name.partition('.')[0]
        meaning[alias.asname or root] = alias.name if alias.asname else root
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        meaning[alias.asname or alias.name] = f'{node.module}.{alias.name}'
  for node in ast.walk(tree):
    parts, inner = [], node
    while isinstance(inner, ast.Attribute):
      parts.append(inner.attr)
      inner = inner.value
    if isinstance(inner, ast.Name) and inner.id in meaning:
      yield node, '.'.join([meaning[inner.id], *reversed(parts)])


def _is_in(name: str, package: str) -> bool:
  return name == package or name.startswith(package + '.')


def _module(path: str) -> str:
  """'atgrpo_jax/rl/losses.py' -> 'atgrpo_jax.rl.losses'."""
  name = path.removesuffix('.py').replace('/', '.')
  return name.removesuffix('.__init__')


def _floor(name: str) -> int | None:
  """The floor of a module, None if it has none. The longest entry decides."""
  parts = [part for part in _FLOOR_OF if _is_in(name, part)]
  return _FLOOR_OF[max(parts, key=len)] if parts else None


# The rules: (path, tree) -> problems.


def floor_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """A folder imports only from folders below its own."""
  module = _module(path)
  floor = _floor(module)
  if floor is None:
    if module not in ('atgrpo_jax', 'paper'):
      yield f'{path}: has no floor; put its folder into FLOORS'
    return
  own = max((part for part in _FLOOR_OF if _is_in(module, part)), key=len)
  for line, name in _imports(tree):
    where = f'{path}:{line}: imports {name}'
    if name.startswith('.'):
      yield f'{where}, relatively; write it absolutely'
    elif _is_in(name, 'environments'):
      if floor < _floor('atgrpo_jax.rollout'):
        yield f'{where}; environments are visible from rollout/ up'
    elif _is_in(name, 'models'):
      yield f'{where}; only recipes, benchmarks and tests see models/'
    elif _is_in(name, 'atgrpo_jax') or _is_in(name, 'paper'):
      target = _floor(name)
      if target is None or target >= floor and not _is_in(name, own):
        yield (f'{where}, which is not below it; pass what it needs as an '
               'argument, or move it')


def init_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """Importing one module of a folder loads no other, but for model/."""
  if path.endswith('__init__.py') and path != 'atgrpo_jax/model/__init__.py':
    for line, name in _imports(tree):
      yield f'{path}:{line}: imports {name}; only model/__init__.py may import'


def foreign_import_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """environments/ and configs/ lean on next to nothing."""
  folder = path.partition('/')[0]
  allowed = OUTSIDE[folder]
  if path.endswith('_dataset_builder.py'):
    allowed = allowed | {'tensorflow_datasets'}
  if path == 'environments/datasets.py':
    allowed = allowed | {'tensorflow_datasets', 'google'}  # Its protobuf.
  if path == 'environments/dataset_files.py':
    allowed = allowed | {'tensorflow_datasets', 'huggingface_hub', 'pyarrow'}
  if path == 'environments/math_problems/equivalence.py':
    allowed = allowed | {'latex2sympy2_extended', 'math_verify'}
  for line, name in _imports(tree):
    if name.partition('.')[0] not in allowed | sys.stdlib_module_names:
      yield (f'{path}:{line}: imports {name}; {folder}/ may import only the '
             f'standard library and {", ".join(sorted(allowed))}')


def owner_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """flax.linen belongs to model/, ml_collections to what is started."""
  names = {(line, name) for line, name in _imports(tree)}
  names |= {(node.lineno, name) for node, name in _uses(tree)}
  for line, name in sorted(names):
    if _is_in(name, 'flax.linen') and not path.startswith('atgrpo_jax/model/'):
      yield f'{path}:{line}: uses {name}; only model/ knows flax.linen'
    if (_is_in(name, 'ml_collections')
        and _floor(_module(path)) < _floor('atgrpo_jax.config')):
      yield f'{path}:{line}: uses {name}; take typed arguments, not a config'


def mesh_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """Only distributed/mesh.py builds a mesh; everybody else is handed one."""
  if path == 'atgrpo_jax/distributed/mesh.py':
    return
  names = {id(node): name for node, name in _uses(tree)}
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      name = names.get(id(node.func), '')
      if _is_in(name, 'jax') and name.rpartition('.')[2] in _MESH_BUILDERS:
        yield f'{path}:{node.lineno}: calls {name}; only mesh.py may'


def step_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """Only runner.py steps an environment.

  Seen are a call of anything's method `step` that is not a function of an
  imported module, and `env.step` handed on uncalled (as to a worker pool).
  """
  if path == 'atgrpo_jax/rollout/runner.py':
    return
  outside = {
      id(node) for node, name in _uses(tree)
      if not _is_in(name, 'environments')}
  called = {
      id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
  for node in ast.walk(tree):
    if (isinstance(node, ast.Attribute) and node.attr == 'step'
        and id(node) not in outside
        and (id(node) in called or 'env' in ast.unparse(node.value).lower())):
      yield f'{path}:{node.lineno}: {ast.unparse(node)}; only runner.py steps'


def except_problems(path: str, tree: ast.Module) -> Iterator[str]:
  """Only the sandbox may catch what it does not name."""
  if path.startswith('environments/sandbox/'):
    return
  for node in ast.walk(tree):
    caught = []
    if isinstance(node, ast.ExceptHandler):
      caught = getattr(node.type, 'elts', [node.type])
    elif isinstance(node, ast.Call) and (
        ast.unparse(node.func).rpartition('.')[2] == 'suppress'):
      caught = node.args
    for kind in caught:
      name = 'everything' if kind is None else ast.unparse(kind)
      if name.rpartition('.')[2] in _EVERYTHING:
        yield f'{path}:{node.lineno}: catches {name}; name the errors'


RULES = {
    floor_problems: ('atgrpo_jax', 'paper'),
    init_problems: ('atgrpo_jax', 'paper'),
    foreign_import_problems: tuple(OUTSIDE),
    owner_problems: ('atgrpo_jax',),
    mesh_problems: ('atgrpo_jax', 'paper'),
    step_problems: ('atgrpo_jax', 'paper'),
    except_problems: (
        'atgrpo_jax', 'benchmarks', 'configs', 'environments', 'models',
        'paper', 'tests'),
}


@pytest.mark.parametrize('rule', RULES, ids=lambda rule: rule.__name__)
def test_the_project_obeys(rule):
  sources = _sources(*RULES[rule])
  problems = [p for path, tree in sources.items() for p in rule(path, tree)]
  assert sources and not problems, '\n'.join(['', *problems])


def test_no_modules_import_each_other_in_a_circle():
  sources = _sources('atgrpo_jax', 'environments', 'paper')
  modules = {_module(path) for path in sources}
  graph = {}
  for path, tree in sources.items():
    names = {name for _, name in _imports(tree)}
    names |= {name.rpartition('.')[0] for name in names}
    graph[_module(path)] = modules & names - {_module(path)}
    if path.endswith('__init__.py'):  # Whose modules may import each other.
      graph[_module(path)] = set()
  graphlib.TopologicalSorter(graph).prepare()


def test_no_module_is_too_long():
  lines = {
      path: len((ROOT / path).read_text('utf-8').splitlines())
      for path in _sources('atgrpo_jax', 'environments', 'configs', 'paper')}
  assert not {path: n for path, n in lines.items() if n > MAX_LINES}


def test_stored_numbers_have_makers():
  """Some script in goldens/ names each file there, or a folder around it."""
  folder = ROOT / 'tests' / 'goldens'
  scripts = ''.join(path.read_text('utf-8') for path in folder.glob('*.py'))
  for path in folder.rglob('*'):
    if path.is_file() and path.suffix not in ('.py', '.pyc'):
      names = path.relative_to(folder).parts
      assert any(name in scripts for name in names), path
