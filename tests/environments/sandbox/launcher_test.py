"""The strongest level that works is chosen, and nothing weaker than kernel."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types

import pytest

from environments import sandbox
from environments.sandbox import landlock
from environments.sandbox import launcher
from environments.sandbox import seccomp
from tests.environments.sandbox import servers

needs_kernel = pytest.mark.skipif(
    'kernel' not in servers.LEVELS, reason='this machine has no Landlock')


def start(level='auto'):
  """The level of a server, or why there is none."""
  server = sandbox.SandboxServer(1, level)
  try:
    with server:
      assert sandbox.Sandbox(server.address).run('print(1)').stdout == '1\n'
      return server.level.value
  except sandbox.NoSandboxError as error:
    return str(error)


def fake_bwrap(monkeypatch, tmp_path, script):
  """A program of this name, the only one in the path."""
  path = tmp_path / 'bwrap'
  path.write_text(f'#!/bin/sh\n{script}\n')
  path.chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path))


def no_landlock():
  raise OSError(38, 'Landlock: this kernel has none')


def test_the_strongest_comes_first():
  assert start() == servers.LEVELS[0]
  for level in servers.LEVELS:
    assert start(level) == level


@needs_kernel
def test_without_bubblewrap(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert start() == 'kernel'
  assert 'bwrap: bubblewrap is not installed' in start('bwrap')


@needs_kernel
@pytest.mark.parametrize('script, reason', [
    ('echo bwrap: No permissions to create new namespace >&2; exit 1',
     'does not work: bwrap: No permissions to create new namespace'),
    ('exit 7', 'does not work: exit status 7')])
def test_bubblewrap_that_does_not_work(monkeypatch, tmp_path, script, reason):
  fake_bwrap(monkeypatch, tmp_path, script)
  assert start() == 'kernel'
  found = start('bwrap')
  assert f'bwrap: bubblewrap {reason}' in found and 'kernel:' not in found


def test_the_switch_of_apparmor_is_named(monkeypatch, tmp_path):
  switch = tmp_path / 'switch'
  switch.write_text('1\n')
  monkeypatch.setattr(launcher, '_USERNS_SWITCH', str(switch))
  fake_bwrap(monkeypatch, tmp_path, 'exit 1')
  assert launcher._what_is_missing(sandbox.Level.BWRAP).endswith(
      f'({switch} is on)')


@needs_kernel
def test_bubblewrap_that_breaks_later(monkeypatch, tmp_path):
  fake_bwrap(monkeypatch, tmp_path, '''
case "$*" in
  *start_server*) exit 1;;
esac''')
  assert start() == 'kernel'
  assert 'bwrap: bubblewrap ended' in start('bwrap')


@pytest.mark.skipif(
    'bwrap' not in servers.LEVELS, reason=str(servers.MISSING))
def test_bubblewrap_behind_a_script(monkeypatch, tmp_path):
  # It stays, and holds what tells of the server's id.
  fake_bwrap(monkeypatch, tmp_path, f'{shutil.which("bwrap")} "$@"')
  assert start() == 'bwrap'


@pytest.mark.skipif(
    'bwrap' not in servers.LEVELS, reason=str(servers.MISSING))
def test_a_stopped_bubblewrap_does_not_hold_the_end():
  server = sandbox.SandboxServer(1, 'bwrap')
  server.start()
  os.kill(server._process.pid, signal.SIGSTOP)
  server.close()  # Bite: it waits for ever.


@needs_kernel
def test_bubblewrap_that_starts_nothing(monkeypatch, tmp_path):
  fake_bwrap(monkeypatch, tmp_path, '''
case "$*" in
  *start_server*) while :; do :; done;;
esac''')
  monkeypatch.setattr(launcher, '_START_SECONDS', 2.0)
  assert start() == 'kernel'


def test_folders_whose_owners_were_killed_are_removed(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  names = ['old', 'new', 'full']
  for name in names:
    (tmp_path / f'{launcher._PREFIX}{name}').mkdir()
  (tmp_path / f'{launcher._PREFIX}full' / 'socket').touch()
  for name in ('old', 'full'):
    os.utime(tmp_path / f'{launcher._PREFIX}{name}', (0, 0))
  assert start('unsafe_rlimit') == 'unsafe_rlimit'
  assert {path.name.removeprefix(launcher._PREFIX)
          for path in tmp_path.iterdir()} == {'new', 'full'}


def test_a_closed_input_takes_no_place():
  found = subprocess.run(
      ['sh', '-c', 'exec "$0" -c "$1" <&-', sys.executable, '''
from environments import sandbox
with sandbox.SandboxServer(1, 'unsafe_rlimit') as server:
  print(sandbox.Sandbox(server.address).run('print(1)').stdout)
'''], cwd=servers.ROOT, capture_output=True, text=True)
  assert found.stdout == '1\n\n', found.stderr


def test_nothing_is_refused(monkeypatch, tmp_path):
  # Bite: it slides to the level without walls.
  monkeypatch.setenv('PATH', str(tmp_path))
  monkeypatch.setattr(landlock, 'version', no_landlock)
  found = start()
  for words in (
      'kernel: Landlock: this kernel has none', 'bwrap: Landlock',
      'Linux 5.13 or newer', 'install bubblewrap',
      'set sandbox.level=unsafe_rlimit', 'docs/sandbox.md'):
    assert words in found
  assert '\n' not in found
  assert start('unsafe_rlimit') == 'unsafe_rlimit'


def test_an_unknown_machine_is_refused(monkeypatch):
  monkeypatch.setattr(
      seccomp.os, 'uname', lambda: types.SimpleNamespace(machine='riscv64'))
  found = launcher._what_is_missing(sandbox.Level.KERNEL)
  assert found == (
      "the system calls of 'riscv64' are not known, but those of x86_64 and "
      'aarch64')


@needs_kernel
@pytest.mark.parametrize('module', ['landlock', 'seccomp'])
def test_a_wall_that_is_missing_is_found_by_trial(
    monkeypatch, tmp_path, module):
  # A copy of the sandbox whose kernel says yes and does nothing.
  folder = tmp_path / 'sandbox'
  shutil.copytree(launcher._FOLDER, folder)
  path = folder / f'{module}.py'
  body = {'landlock': '  def bind(self)', 'seccomp': '  def install(self)'}
  text = path.read_text()
  assert body[module] in text
  path.write_text(text.replace(
      f'{body[module]} -> None:', f'{body[module]} -> None:\n    return'))
  monkeypatch.setattr(launcher, '_START_SERVER', str(folder/'start_server.py'))
  found = start('kernel')
  wall = {'landlock': 'folders, files', 'seccomp': 'sockets'}
  assert f'kernel: a trial program could use {wall[module]}' in found


def test_the_unsafe_level_warns_and_is_no_boundary(caplog):
  # Else the attacks of hostile_test.py could not fail.
  with sandbox.SandboxServer(1, 'unsafe_rlimit') as server:
    result = servers.run(server.address, '''
        import os, socket
        print(len(os.listdir('/')) > 0, 'root' in open('/etc/passwd').read())
        socket.socket()
        if os.fork() == 0: os._exit(0)
        os.kill(os.getppid(), 0)
        print(os.memfd_create('x') > 0)''')
  assert result.stdout == 'True True\nTrue\n', result
  assert 'unsafe_rlimit: programs of models run with your' in caplog.text
  caplog.clear()
  start()
  assert not caplog.text


def test_other_systems_are_refused(monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'darwin')
  assert "needs Linux, and this is 'darwin'" in start()


def test_levels_are_named():
  with pytest.raises(ValueError, match="level='x' is unknown; give one of"):
    sandbox.SandboxServer(1, 'x')
  with pytest.raises(RuntimeError, match='call start'):
    sandbox.SandboxServer(1).level  # noqa: B018


@pytest.mark.skipif(os.getuid() != 0, reason='only root has capabilities')
@needs_kernel
def test_root_has_no_capabilities_inside():
  with sandbox.SandboxServer(1, 'kernel') as server:
    # It sleeps, and is looked at from outside.
    running = sandbox.Sandbox(server.address)
    from concurrent import futures
    with futures.ThreadPoolExecutor(1) as pool:
      pending = pool.submit(running.run, 'import time; time.sleep(1)')
      servers.wait_until(lambda: programs_of(server.pid))
      pid, = programs_of(server.pid)
      status = open(f'/proc/{pid}/status').read()
      pending.result()
  for line in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'):
    assert f'{line}:\t{"0" * 16}\n' in status
  assert 'NoNewPrivs:\t1\n' in status and 'Seccomp:\t2\n' in status


def programs_of(pid):
  """Ids of the programs that run."""
  found = []
  for supervisor in children(pid):
    found += children(supervisor)
  return [p for p in found if 'Seccomp:\t2' in open(f'/proc/{p}/status').read()]


def children(pid):
  with open(f'/proc/{pid}/task/{pid}/children') as file:
    return [int(child) for child in file.read().split()]
