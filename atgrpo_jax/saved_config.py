"""The config of a run, read from its workdir, as a config file.

  --config atgrpo_jax/saved_config.py:WORKDIR

`main` adds this where `--workdir` is given alone.
"""

from __future__ import annotations

from typing import Any

from ml_collections import config_dict

from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib


def get_config(workdir: str) -> config_dict.ConfigDict:
  """The config in `WORKDIR/config.json`; UserError if there is none."""
  return config_dict.ConfigDict(_with_types(
      workdir_lib.read_config(files.as_path(workdir))))


def _with_types(value: Any) -> Any:
  """The same with what JSON has no words for: tuples and placeholders."""
  if isinstance(value, dict):
    return {name: _with_types(part) for name, part in value.items()}
  if isinstance(value, list):
    return tuple(map(_with_types, value))
  return config_dict.placeholder(object) if value is None else value
