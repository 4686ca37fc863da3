"""Command lines of `atgrpo_jax.main`, parsed or run."""

from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys

from absl import flags
from ml_collections import config_flags
import pytest

from atgrpo_jax import main
from tests import checkout

# Imports once and forks for each case.
_PROGRAM = """
import json
import os
import sys
from atgrpo_jax import main
from atgrpo_jax import train

folder, cases = sys.argv[1], json.loads(sys.argv[2])
for number, argv in enumerate(cases):
  if not os.fork():
    os.dup2(os.open(f'{folder}/{number}', os.O_CREAT | os.O_WRONLY), 2)
    sys.argv = ['main.py', *argv]
    try:
      main.run()
    except SystemExit as stopped:
      os._exit(stopped.code)  # The usual end takes 0.7 s.
  print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


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
  rest = main.parse_flags(argv, values)
  assert rest == argv[:1] or values.mode == 'compare'
  return values


def run_main(
    cases: Sequence[Sequence[str]],
    folder: pathlib.Path) -> list[tuple[int, str]]:
  """Exit status and stderr of each case; `folder` holds the latter."""
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, folder, json.dumps(cases)],
      cwd=checkout.ROOT, text=True, stdout=subprocess.PIPE, check=True,
      timeout=300)
  return [
      (int(status), (folder / str(number)).read_text())
      for number, status in enumerate(done.stdout.split())]
