"""A copy of what the launch scripts need, with a Python that takes notes."""

import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Answers `-c` with the real Python, makes a .venv that holds itself, accepts
# everything else, and wants to be run in the checkout where that matters.
RECORDER = """#!/bin/sh
case "$2" in
  *ensurepip*|*'import pip'*) echo {version} ;;
  *) if [ "$1" = -c ]; then exec {python} -S "$@"; fi ;;
esac
echo "$*" >> {calls}
case "$1" in
  */_tpu.py) exec {python} -S "$@" ;;
esac
case "$2" in
  ruff|pytest|mkdocs|atgrpo_jax.main) [ -f setup.py ] || exit 9 ;;
esac
if [ "$2" = atgrpo_jax.main ] && [ -e {trainer} ]; then
  shift 2
  exec {trainer} "$@"
fi
if [ "$1 $2" = '-m venv' ]; then
  mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
fi
"""

# A trainer that prints its arguments, waits for SIGTERM if the file `wait` is
# there and exits as `status` says, both in the home folder.
TRAINER = r"""
import os, pathlib, signal, sys, time
home = pathlib.Path(os.environ['HOME'])
def save(number, frame):
  print('saved', flush=True)
  sys.exit(42)
signal.signal(signal.SIGTERM, save)
print('platforms:', os.environ['JAX_PLATFORMS'])
print('arguments:', *sys.argv[1:], sep='|', flush=True)
workdir = pathlib.Path(sys.argv[sys.argv.index('--workdir') + 1])
workdir.mkdir(parents=True, exist_ok=True)
(workdir / 'metrics.jsonl').write_text('{}')
(home / 'started').write_text(str(os.getpid()))
while (home / 'wait').exists():
  time.sleep(0.02)
status = home / 'status'
sys.exit(int(status.read_text()) if status.exists() else 0)
"""


class Checkout:
  """A copy of what the scripts need, with a Python that only takes notes."""

  def __init__(self, folder: pathlib.Path):
    self.root = folder / 'a checkout'
    self.root.mkdir()
    shutil.copytree(ROOT / 'launch', self.root / 'launch')
    shutil.copytree(ROOT / 'configs', self.root / 'configs')
    for name in ('setup.py', 'pyproject.toml'):
      shutil.copy(ROOT / name, self.root)
    self.folder = folder
    self._calls = folder / 'calls'
    self.python = self.write_python(RECORDER.format(
        python=shlex.quote(sys.executable),
        calls=shlex.quote(str(self._calls)),
        trainer=shlex.quote(str(folder / 'bin/trainer')),
        version='%d.%d' % sys.version_info[:2]))

  def write_python(self, script: str) -> pathlib.Path:
    return _write_executable(self.folder / 'python-to-use', script)

  def write_program(self, name: str, script: str, folder: str = 'bin') -> None:
    """A Python program that stands in for one on the PATH, or `trainer`."""
    (self.folder / folder).mkdir(exist_ok=True)
    _write_executable(
        self.folder / folder / name, f'#!{sys.executable} -S\n{script}')

  def env(self) -> dict[str, str]:
    """A bare environment, in which stand-ins come first on the PATH."""
    return {
        'PATH': f'{self.folder}/bin{os.pathsep}{os.environ["PATH"]}',
        'HOME': str(self.folder), 'PYTHON': str(self.python)}

  def run(
      self, script: str, *args: str,
      env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Runs a script from a foreign directory."""
    return subprocess.run(
        ['bash', self.root / 'launch' / script, *args], cwd=self.folder,
        env=self.env() | (env or {}), capture_output=True, text=True,
        timeout=120)

  def start(self, script: str, *args: str, **env: str) -> subprocess.Popen:
    """Starts a script as a terminal does: in a process group of its own."""
    return subprocess.Popen(
        ['bash', self.root / 'launch' / script, *args], cwd=self.folder,
        env=self.env() | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True)

  def paste(self, commands: str) -> subprocess.CompletedProcess:
    """Runs what --dry-run printed, and waits for what it left running."""
    return subprocess.run(
        ['bash', '-c', f'set -e\n{commands}\nwait'], cwd=self.folder,
        env=self.env(), capture_output=True, text=True, timeout=120)

  def calls(self) -> list[str]:
    """What Python was asked since the last time, without the `-c` probes."""
    lines = self._calls.read_text().splitlines()
    self._calls.unlink()
    return [line for line in lines if line.startswith('-m ')]


def assert_stops_with(result, *words):
  """One sentence on stderr, exit status 1."""
  assert result.returncode == 1, result
  assert result.stderr.count('\n') == 1, result.stderr
  for word in words:
    assert word in result.stderr


def wait_until(condition_fn, seconds=60):
  """Polls until something has happened in another process."""
  deadline = time.monotonic() + seconds
  while not condition_fn():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.02)


def _write_executable(path, text):
  path.write_text(text)
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return path
