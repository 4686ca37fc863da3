"""A copy of the launch scripts with a Python that only records its calls."""

import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A config override that a careless shell script would split or expand.
OVERRIDE = """--config.dataset.train=it's  "a" $(false) *"""

# Answers `-c` with the real Python, makes a .venv that holds this recorder,
# runs the program `trainer` for atgrpo_jax.main if that exists, fails in its
# --check if the file `refuse` exists, and accepts any other call. Programs of
# the checkout must be started in it.
RECORDER = """#!/bin/sh
case "$2" in
  *ensurepip*|*'import pip'*) echo {version} ;;
  *) if [ "$1" = -c ]; then exec {python} -S "$@"; fi ;;
esac
echo "$*" >> {calls}
case "$2" in
  ruff|pytest|atgrpo_jax.main) [ -f setup.py ] || exit 9 ;;
esac
if [ "$3" = --check ] && [ -e {refuse} ]; then exit 2; fi
if [ "$2" = atgrpo_jax.main ] && [ "$3" != --check ] && [ -e {trainer} ]; then
  shift 2
  exec {trainer} "$@"
fi
if [ "$1 $2" = '-m venv' ]; then
  mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
fi
"""


class Checkout:
  """Runs the scripts in `folder`, which is also the home folder."""

  def __init__(self, folder: pathlib.Path):
    self.root = folder / 'a checkout'
    self.root.mkdir()
    for name in ('launch', 'configs'):
      shutil.copytree(ROOT / name, self.root / name)
    for name in ('setup.py', 'pyproject.toml'):
      shutil.copy(ROOT / name, self.root)
    self.folder = folder
    self._calls = folder / 'calls'
    self.refuse = folder / 'refuse'
    self.python = self.write_python(RECORDER.format(
        python=shlex.quote(sys.executable),
        calls=shlex.quote(str(self._calls)),
        refuse=shlex.quote(str(self.refuse)),
        trainer=shlex.quote(str(folder / 'bin/trainer')),
        version='%d.%d' % sys.version_info[:2]))

  def write_python(self, script: str) -> pathlib.Path:
    return _write_executable(self.folder / 'python-to-use', script)

  def write_program(self, name: str, script: str) -> None:
    """Writes a Python program that comes first on the PATH, or `trainer`."""
    (self.folder / 'bin').mkdir(exist_ok=True)
    _write_executable(
        self.folder / 'bin' / name, f'#!{sys.executable} -S\n{script}')

  def env(self) -> dict[str, str]:
    return {
        'PATH': f'{self.folder}/bin{os.pathsep}{os.environ["PATH"]}',
        'HOME': str(self.folder), 'PYTHON': str(self.python)}

  def run(self, script: str, *args: str, **env: str):
    """Runs a script from a foreign directory."""
    return subprocess.run(
        ['bash', self.root / 'launch' / script, *args], cwd=self.folder,
        env=self.env() | env, capture_output=True, text=True, timeout=120)

  def start(self, script: str, *args: str, **env: str) -> subprocess.Popen:
    """Starts a script as a terminal does: in a new process group."""
    return subprocess.Popen(
        ['bash', self.root / 'launch' / script, *args], cwd=self.folder,
        env=self.env() | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True)

  def paste(self, commands: str) -> subprocess.CompletedProcess:
    """Runs what --dry-run printed and waits for its background processes."""
    return subprocess.run(
        ['bash', '-c', f'set -e\n{commands}\nwait'], cwd=self.folder,
        env=self.env(), capture_output=True, text=True, timeout=120)

  def calls(self) -> list[str]:
    """Calls of Python since the last time, without the `-c` probes."""
    lines = self._calls.read_text().splitlines()
    self._calls.unlink()
    return [line for line in lines if line.startswith('-m ')]


def assert_stops_with(result, *words):
  """Asserts one line on stderr with these words, and exit status 1."""
  assert result.returncode == 1, result
  assert result.stderr.count('\n') == 1, result.stderr
  for word in words:
    assert word in result.stderr


def wait_until(condition_fn, seconds=60):
  """Polls until another process has made the condition true."""
  deadline = time.monotonic() + seconds
  while not condition_fn():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.02)


def is_running(pid):
  """False for a process that has ended, although init may reap it later."""
  return os.path.exists(f'/proc/{pid}/exe')


def _write_executable(path, text):
  path.write_text(text)
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return path
