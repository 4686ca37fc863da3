"""A config file that returns the config of a run in a workdir.

  --config atgrpo_jax/saved_config.py:WORKDIR

`main` uses it if `--workdir` is given without `--config`.
"""

from typing import Any

from ml_collections import config_dict

from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib


def get_config(workdir: str) -> config_dict.ConfigDict:
  """Returns the config in `WORKDIR/config.json`; UserError if unreadable."""
  return config_dict.ConfigDict(_with_types(
      workdir_lib.read_config(files.as_path(workdir))))


def _with_types(value: Any) -> Any:
  """Restores what JSON cannot express: tuples and placeholders."""
  if isinstance(value, dict):
    return {name: _with_types(part) for name, part in value.items()}
  if isinstance(value, list):
    return tuple(map(_with_types, value))
  return config_dict.placeholder(object) if value is None else value
