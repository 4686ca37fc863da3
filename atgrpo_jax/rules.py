"""Rules: plain functions that a value of the config names.

A built-in rule is named by its key in a registry, and a rule of the user by
'module:function'. The module is imported as environment.module is, so it may
lie in the working directory. Both have the same signature.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
import dataclasses
import difflib
import hashlib
import importlib
import inspect
import pathlib
import types
from typing import Any

import numpy as np

from atgrpo_jax import errors

# Name -> module of the user, and its spec and digest when it was first loaded.
# Reloading makes another spec.
_LOADED: dict[str, tuple[types.ModuleType, Any, str]] = {}


def is_custom(name: Any) -> bool:
  """True for 'module:function'."""
  return isinstance(name, str) and ':' in name


@dataclasses.dataclass(frozen=True)
class _UserRule:
  """A function of the user; its exceptions and bad results are UserErrors."""

  given: str  # The key of the config and its value.
  function: Callable[..., Any]
  is_array_rule: bool

  def __call__(self, *args: Any) -> Any:
    try:
      found = self.function(*args)
    except errors.UserError:
      raise
    except Exception as error:  # User code may raise anything.
      raise errors.of_user_code(
          f'{self.given} raised {errors.one_line(error)}.', error) from error
    if self.is_array_rule:
      shape = np.shape(args[0])
      try:
        found = np.asarray(found)
        is_good = found.dtype.kind in 'fiu' and np.all(np.isfinite(found))
        is_good = is_good and found.shape == shape
      except TypeError:  # jit traces an array without values.
        is_good = getattr(found, 'shape', None) == shape
      except ValueError:  # Rows of different lengths.
        is_good = False
      if not is_good:
        raise errors.UserError(
            f'{self.given} returned {found!r:.200}; expected an array of '
            f'{shape} finite numbers.')
    return found


def find(
    key: str, name: Any, built_in: Mapping[str, Callable[..., Any]],
    choices: Collection[str] | None = None, *,
    is_array_rule: bool = False) -> Callable[..., Any]:
  """Returns the function that a value of the config names.

  `choices` are the valid ones of the `built_in` functions; None for all. The
  result of an array rule has the shape of its first argument. Raises UserError,
  which names `key`, if there is no function, or if it has other parameters than
  the built-in ones.
  """
  choices = built_in if choices is None else choices
  if not is_custom(name):
    if name not in choices:
      raise errors.UserError(
          f'{key}={name!r}: expected one of {list(choices)}, or '
          "'module:function'.")
    return built_in.get(name)  # None for the choice 'all'.
  given = f'{key}={name!r}'
  rule = load(given, *name.split(':', 1))
  if not callable(rule):
    raise errors.UserError(f'{given} is not a function but {rule!r}.')
  expected = inspect.signature(next(iter(built_in.values()))).parameters
  try:
    inspect.signature(rule).bind(*expected)
  except TypeError as error:
    raise errors.UserError(
        f'{given} takes {inspect.signature(rule)}; expected a function of '
        f'({", ".join(expected)}).') from error
  except ValueError:  # Some functions in C have no signature.
    pass
  return _UserRule(given, rule, is_array_rule)


def module_digest(key: str, name: str) -> str:
  """Digest of the file of a module, without the modules that it imports.

  `key` is the key of the config that names the module, for the message.
  """
  digest = _loaded_digest(importlib.import_module(name))
  if not digest:
    raise errors.UserError(
        f'{key}: the module {name!r} has no file, so a resumed run could not '
        'notice a change; put it into a file.')
  return digest


def _loaded_digest(module: types.ModuleType) -> str:
  """Digest of a module's file when this function first saw it."""
  name, spec = module.__name__, module.__spec__
  if name not in _LOADED or _LOADED[name][1] is not spec:
    _LOADED[name] = module, spec, _digest(module)
  return _LOADED[name][2]


def _digest(module: types.ModuleType) -> str:
  """Digest of a module's file, or '' without one."""
  try:
    content = pathlib.Path(module.__file__).read_bytes()
  except (AttributeError, OSError, TypeError):
    return ''
  return hashlib.sha256(content).hexdigest()[:16]


def check_unchanged(names: Iterable[str] = _LOADED) -> None:
  """Raises UserError if the file of a loaded module is not what was imported.

  A new worker process would import the changed file.
  """
  for module, spec, digest in map(_LOADED.get, names):
    if module.__spec__ is spec and _digest(module) not in ('', digest):
      raise errors.UserError(
          f'{module.__file__} has changed since this process imported it, so '
          'new workers would run other code. Undo the change, or start again; '
          'in a notebook, call importlib.reload.')


def load(given: str, module_name: str, function: str) -> Any:
  """A function of a module of the user; UserError if there is none.

  `given` is the key of the config and its value, for the message.
  """
  try:
    module = importlib.import_module(module_name)
  except (SystemExit, Exception) as error:  # User code may raise anything.
    raise errors.UserError(
        f'{given}: {module_name!r} cannot be imported '
        f'({errors.one_line(error)}); fix it, or name another module of the '
        'working directory, PYTHONPATH or an installed package.') from error
  _loaded_digest(module)
  if not hasattr(module, function):
    names = [name for name, value in vars(module).items() if callable(value)]
    nearest = difflib.get_close_matches(function, names, n=1)
    end = f'; did you mean {nearest[0]!r}?' if nearest else '.'
    raise errors.UserError(
        f'{given}: {module.__name__} has no function {function!r}{end}')
  return getattr(module, function)
