"""The two commands that a newcomer types must work, or say why they do not.

No test here installs anything from a package index: a stand-in for Python
writes down what it is asked to do and makes believe that pip succeeds.
"""

import os
import pathlib
import shlex
import shutil
import socket
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPTS = ('quickstart.sh', 'test.sh')

# Answers `-c` with the real Python, makes a .venv that holds itself, accepts
# everything else, and wants to be run in the checkout where that matters.
RECORDER = """#!/bin/sh
case "$2" in
  *ensurepip*|*'import pip'*) echo {version} ;;
  *) if [ "$1" = -c ]; then exec {python} "$@"; fi ;;
esac
echo "$*" >> {calls}
case "$2" in
  ruff|pytest|atgrpo_jax.main) [ -f setup.py ] || exit 9 ;;
esac
if [ "$1 $2" = '-m venv' ]; then
  mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
fi
"""


class Checkout:
  """A copy of what the scripts need, with a Python that only takes notes."""

  def __init__(self, folder: pathlib.Path):
    self.root = folder / 'a checkout'
    self.root.mkdir()
    shutil.copytree(ROOT / 'launch', self.root / 'launch')
    for name in ('setup.py', 'pyproject.toml'):
      shutil.copy(ROOT / name, self.root)
    self._folder = folder
    self._calls = folder / 'calls'
    self.python = self.write_python(
        RECORDER.format(
            python=shlex.quote(sys.executable),
            calls=shlex.quote(str(self._calls)),
            version='%d.%d' % sys.version_info[:2],
        )
    )

  def write_python(self, script: str) -> pathlib.Path:
    path = self._folder / 'python-to-use'
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path

  def run(
      self,
      script: str,
      *args: str,
      python: pathlib.Path | None = None,
      env: dict[str, str] | None = None,
  ) -> subprocess.CompletedProcess:
    """Runs a script from a foreign directory, in a bare environment."""
    return subprocess.run(
        ['bash', self.root / 'launch' / script, *args],
        cwd=self._folder,
        env={
            'PATH': os.environ['PATH'],
            'HOME': str(self._folder),
            'PYTHON': str(python or self.python),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )

  def calls(self) -> list[str]:
    """What Python was asked since the last time, without the `-c` probes."""
    lines = self._calls.read_text().splitlines()
    self._calls.unlink()
    return [line for line in lines if line.startswith('-m ')]


@pytest.fixture
def checkout(tmp_path):
  return Checkout(tmp_path)


def _assert_stops_with(result, *words):
  """One sentence on stderr, exit status 1."""
  assert result.returncode == 1, result
  assert result.stderr.count('\n') == 1, result.stderr
  for word in words:
    assert word in result.stderr


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_from_another_directory(script, tmp_path):
  result = subprocess.run(
      ['bash', ROOT / 'launch' / script, '--help'],
      cwd=tmp_path,
      capture_output=True,
      text=True,
  )
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'Usage: bash launch/{script}')


def test_test_script_installs_once_and_passes_arguments(checkout):
  result = checkout.run('test.sh', 'tests/some_test.py', '-k', 'a  or b')
  assert result.returncode == 0, result.stderr
  venv, pip, ruff, pytest_call = checkout.calls()
  assert venv == f'-m venv --clear {checkout.root}/.venv'
  assert pip.endswith(f'--editable {checkout.root}[test]')
  assert ruff == '-m ruff check'
  assert pytest_call == '-m pytest -q tests/some_test.py -k a  or b'

  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls() == ['-m ruff check', '-m pytest -q']

  # The plain installation is part of the one with the extra.
  assert checkout.run('quickstart.sh').returncode == 0
  assert not any('pip install' in call for call in checkout.calls())


def test_extra_is_installed_after_the_plain_installation(checkout):
  assert checkout.run('quickstart.sh').returncode == 0
  assert 'pip install' in checkout.calls()[1]
  assert checkout.run('test.sh').returncode == 0
  assert checkout.calls()[0].endswith(f'--editable {checkout.root}[test]')


def test_changed_requirements_are_installed_again(checkout):
  checkout.run('test.sh')
  checkout.calls()
  with open(checkout.root / 'setup.py', 'a') as f:
    f.write('# One more requirement.\n')
  checkout.run('test.sh')
  pip, *_ = checkout.calls()
  assert 'pip install' in pip


def test_failing_ruff_stops_the_test_script(checkout):
  checkout.run('test.sh')
  checkout.calls()
  venv_python = checkout.root / '.venv/bin/python'
  venv_python.write_text(
      venv_python.read_text() + '[ "$2" != ruff ] || exit 3\n'
  )
  assert checkout.run('test.sh').returncode == 3
  assert checkout.calls() == ['-m ruff check']


def test_quickstart_runs_main(checkout):
  result = checkout.run(
      'quickstart.sh', '--seed', '7', '--', '--config.team=solo'
  )
  assert result.returncode == 0, result.stderr
  assert 'starting afresh' in result.stdout
  workdir = checkout.root / 'runs/quickstart-seed-7'
  assert checkout.calls()[-1] == (
      '-m atgrpo_jax.main --config configs/plan_path.py:size=nano'
      f' --workdir {workdir} --config.seed=7 --config.team=solo'
  )


def test_quickstart_workdir_is_relative_to_the_caller(checkout, tmp_path):
  result = checkout.run('quickstart.sh', '--workdir', 'mine/')
  assert result.returncode == 0, result.stderr
  assert f' --workdir {tmp_path}/mine ' in checkout.calls()[-1]


def test_caches_stay_in_the_checkout_unless_set(checkout):
  checkout.write_python(
      checkout.python.read_text()
      + 'echo "caches: $TFDS_DATA_DIR, $JAX_COMPILATION_CACHE_DIR"\n'
  )
  result = checkout.run('quickstart.sh')
  cache = checkout.root / '.cache'
  assert f'caches: {cache}/datasets, {cache}/jax\n' in result.stdout
  result = checkout.run(
      'test.sh',
      env={'TFDS_DATA_DIR': '/mine', 'JAX_COMPILATION_CACHE_DIR': '/too'},
  )
  assert 'caches: /mine, /too\n' in result.stdout


def test_quickstart_resumes_unless_told_otherwise(checkout):
  workdir = checkout.root / 'runs/quickstart-seed-0'
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text('earlier')
  result = checkout.run('quickstart.sh')
  assert f'resuming the run in {workdir}' in result.stdout

  result = checkout.run('quickstart.sh', '--fresh')
  assert f'starting afresh in {workdir}' in result.stdout
  assert not workdir.exists()
  kept = workdir.with_name('quickstart-seed-0.old-1')
  assert str(kept) in result.stdout
  assert (kept / 'config.json').read_text() == 'earlier'


def test_fresh_leaves_other_folders_alone(checkout, tmp_path):
  mine = tmp_path / 'thesis'
  mine.mkdir()
  result = checkout.run('quickstart.sh', '--fresh', '--workdir', str(mine))
  _assert_stops_with(result, str(mine), 'no earlier run', '--workdir')
  assert mine.exists()


@pytest.mark.parametrize(
    'args, word',
    [
        (('--sed', '1'), '--sed'),
        (('--seed',), '--seed needs a value'),
        (('--seed', 'one'), "'one'"),
    ],
)
def test_quickstart_refuses_bad_options(checkout, args, word):
  _assert_stops_with(checkout.run('quickstart.sh', *args), word)


@pytest.mark.parametrize('script', SCRIPTS)
def test_old_python_is_named(checkout, script):
  old = checkout.write_python('#!/bin/sh\necho 3.9\n')
  result = checkout.run(script, python=old)
  _assert_stops_with(result, f'{old} is Python 3.9', '3.11', 'PYTHON')
  assert not (checkout.root / '.venv').exists()


def test_newest_python_that_runs_is_found(checkout, tmp_path):
  for name, script in [
      ('python3.13', '#!/bin/sh\nexit 127\n'),
      ('python3.12', checkout.python.read_text()),
      ('python3.11', '#!/bin/sh\necho 3.11\n'),
  ]:
    path = tmp_path / 'bin' / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
  search = os.pathsep.join([str(tmp_path / 'bin'), os.environ['PATH']])
  result = checkout.run('test.sh', env={'PYTHON': '', 'PATH': search})
  assert result.returncode == 0, result.stderr
  assert 'making' in result.stdout and 'with python3.12' in result.stdout
  # From now on the Python of .venv is used, whatever the PATH offers.
  (tmp_path / 'bin/python3.13').write_text('#!/bin/sh\necho 3.13\n')
  result = checkout.run('test.sh', env={'PYTHON': '', 'PATH': search})
  assert 'which is up to date' in result.stdout


def test_python_that_does_not_run_is_named(checkout):
  result = checkout.run('test.sh', python=pathlib.Path('/no/such/python'))
  _assert_stops_with(result, '/no/such/python does not run', 'PYTHON')


def test_python_without_venv_is_named(checkout):
  bare = checkout.write_python(
      '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\necho 3.12\n'
  )
  result = checkout.run('test.sh', python=bare)
  _assert_stops_with(result, str(bare), 'venv', 'python3.12-venv')


def test_unreachable_index_is_named(checkout):
  # Bound and not listening: connections to this port are refused.
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    result = checkout.run(
        'quickstart.sh',
        python=pathlib.Path(sys.executable),
        env={
            'PIP_CONFIG_FILE': os.devnull,
            'PIP_INDEX_URL': f'http://127.0.0.1:{closed.getsockname()[1]}/',
            'PIP_RETRIES': '1',
        },
    )
  _assert_stops_with(result, 'package index cannot be reached')
  log = checkout.root / '.cache/install.log'
  assert str(log) in result.stderr
  assert 'refused' in log.read_text()
  # A failure must not count as an installation the next time.
  assert not list((checkout.root / '.venv').glob('installed-*'))


def test_other_pip_failures_point_to_the_log(checkout):
  script = checkout.python.read_text()
  checkout.write_python(
      script + '[ "$2" != pip ] || { echo "no space left"; exit 1; }\n'
  )
  result = checkout.run('test.sh')
  log = checkout.root / '.cache/install.log'
  _assert_stops_with(result, 'could not install', str(log))
  assert 'no space left' in log.read_text()


def test_shellcheck():
  shellcheck = shutil.which(
      'shellcheck',
      path=os.pathsep.join(
          [os.path.dirname(sys.executable), os.environ['PATH']]
      ),
  )
  if shellcheck is None:
    pytest.skip('shellcheck is not installed; the test extra has it')
  scripts = sorted((ROOT / 'launch').glob('*.sh')) + [ROOT / '.ci/run']
  result = subprocess.run(
      [shellcheck, '--external-sources', '--source-path=SCRIPTDIR', *scripts],
      capture_output=True,
      text=True,
  )
  assert result.returncode == 0, result.stdout


def test_ci_runs_the_test_script(checkout):
  (checkout.root / '.ci').mkdir()
  shutil.copy(ROOT / '.ci/run', checkout.root / '.ci')
  result = checkout.run('../.ci/run')
  assert result.returncode == 0, result.stderr
  assert checkout.calls()[-1] == '-m pytest -q'
