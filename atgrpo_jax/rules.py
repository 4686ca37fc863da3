"""Rules: plain functions that a value of the config names.

A built-in rule is named by its key in a registry, and a rule of the user by
'module:function'. The module is imported as environment.module is, so it may
lie in the working directory. Both have the same signature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
import hashlib
import importlib
import pathlib
from typing import Any

import numpy as np

from atgrpo_jax import errors


def is_custom(name: Any) -> bool:
  """True for 'module:function'."""
  return isinstance(name, str) and ':' in name


def check(key: str, name: Any, choices: Collection[str]) -> None:
  """Raises UserError unless `name` is a choice or a function of the user.

  `key` is the key of the config, for the message.
  """
  if is_custom(name):
    _load(key, name)
  elif name not in choices:
    raise errors.UserError(
        f'{key}={name!r}: expected one of {list(choices)}, or '
        "'module:function'.")


def find(
    key: str, name: str,
    built_in: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
  """The function with a name that passed `check`."""
  return built_in[name] if name in built_in else _load(key, name)


def call(
    key: str, name: str, built_in: Mapping[str, Callable[..., Any]],
    *args: Any) -> Any:
  """Calls a rule; an exception in a function of the user is a UserError."""
  return call_found(key, name, find(key, name, built_in), *args)


def call_found(
    key: str, name: str, rule: Callable[..., Any], *args: Any) -> Any:
  """Like `call`, for a rule that was found before."""
  if not is_custom(name):
    return rule(*args)
  try:
    return rule(*args)
  except errors.UserError:
    raise
  except errors.USER_CODE_ERRORS as error:
    raise errors.UserError(
        f'{key}={name!r} raised {errors.one_line(error)}.') from error


def call_array(
    key: str, name: str, built_in: Mapping[str, Callable[..., np.ndarray]],
    *args: Any, shape: tuple[int, ...]) -> np.ndarray:
  """Like `call`; the array of a user's rule must be finite and have a shape."""
  found = call(key, name, built_in, *args)
  if not is_custom(name):
    return found
  expected = f'expected an array of {shape} finite numbers.'
  if np.shape(found) != shape:
    raise errors.UserError(
        f'{key}={name!r} returned the shape {np.shape(found)}; {expected}')
  found = np.asarray(found)
  if found.dtype.kind not in 'fiu' or not np.all(
      np.abs(found) < np.finfo(np.float32).max):
    raise errors.UserError(f'{key}={name!r} returned {found}; {expected}')
  return found


def digests(names: Iterable[tuple[str, str]]) -> dict[str, str]:
  """Name of each function of the user -> digest of the module in its name.

  `names` are (key, name) of all rules.
  """
  return {
      name: module_digest(key, name.partition(':')[0])
      for key, name in names if is_custom(name)}


def module_digest(key: str, name: str) -> str:
  """Digest of the file of a module, without the modules that it imports.

  `key` is the key of the config that names the module, for the message.
  """
  try:
    content = pathlib.Path(importlib.import_module(name).__file__).read_bytes()
  except (AttributeError, OSError, TypeError) as error:
    raise errors.UserError(
        f'{key}: the module {name!r} has no file, so a resumed run could not '
        'notice a change; put it into a file.') from error
  return hashlib.sha256(content).hexdigest()[:16]


def _load(key: str, name: str) -> Callable[..., Any]:
  module, _, function = name.partition(':')
  try:
    rule = getattr(importlib.import_module(module), function)
  except (SystemExit, *errors.USER_CODE_ERRORS) as error:
    raise errors.UserError(
        f'{key}={name!r} cannot be used ({errors.one_line(error)}); expected '
        'module:function, with a module that Python can import.') from error
  if not callable(rule):
    raise errors.UserError(
        f'{key}={name!r} is not a function but {rule!r}.')
  return rule
