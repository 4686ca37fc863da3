"""Command lines of `atgrpo_jax.main`, parsed but not run."""

from collections.abc import Sequence
import pathlib
import sys

from absl import flags
from ml_collections import config_flags
import pytest

from atgrpo_jax import main
from tests import checkout


def parse_main(
    args: Sequence[str], monkeypatch: pytest.MonkeyPatch,
    folder: pathlib.Path = checkout.ROOT) -> flags.FlagValues:
  """The flags of `main` as started in `folder`; the process's own stay."""
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values)
  for name in ('workdir', 'checkpoint', 'step'):
    flags.DEFINE_string(name, None, '', flag_values=values)
  mode = flags.FLAGS[main._MODE.name]
  flags.DEFINE_enum(
      mode.name, mode.default, mode.parser.enum_values, '', flag_values=values)
  argv = ['main.py', *args]
  monkeypatch.setattr(sys, 'argv', argv)  # config_flags finds overrides here.
  monkeypatch.chdir(folder)
  assert main.parse_flags(argv, values) == argv[:1]
  return values
