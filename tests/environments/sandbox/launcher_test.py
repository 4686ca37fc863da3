"""The strongest level that works is chosen, and nothing weaker than kernel."""

from concurrent import futures
import os
import shutil
import signal
import subprocess
import sys
import types

import pytest

from environments import sandbox
from environments.sandbox import isolation
from environments.sandbox import launcher
from environments.sandbox import seccomp
from tests.environments.sandbox import servers

needs_kernel = pytest.mark.skipif(
    'kernel' not in servers.LEVELS, reason='this machine has no Landlock')
needs_bwrap = pytest.mark.skipif(
    'bwrap' not in servers.LEVELS, reason=str(servers.MISSING))


def start(level='auto'):
  """The level of a server, or why there is none."""
  server = sandbox.SandboxServer(1, level)
  try:
    with server:
      assert server.sandbox.run('print(1)').stdout == '1\n'
      return server.level.value
  except sandbox.NoSandboxError as error:
    return str(error)


def fake_bwrap(monkeypatch, tmp_path, script):
  """Puts a script named bwrap, and nothing else, on the path."""
  path = tmp_path / 'bwrap'
  path.write_text(f'#!/bin/sh\n{script}\n')
  path.chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path))


def at_start(command):
  """A bwrap that works in a trial, and runs a command to start the server."""
  return f'case "$*" in\n  *package_folders*) {command};;\nesac'


def test_the_strongest_level_comes_first():
  assert start() == servers.LEVELS[0]
  for level in servers.LEVELS:
    assert start(level) == level


@needs_kernel
@pytest.mark.parametrize('script, reason', [
    (None, 'bubblewrap is not installed'),
    ('echo bwrap: No permissions to create new namespace >&2; exit 1',
     'bubblewrap does not work: bwrap: No permissions to create new namespace'),
    ('exit 7', 'bubblewrap does not work: exit status 7'),
    (at_start('exit 1'), 'bubblewrap ended'),
    (at_start('while :; do :; done'), 'bubblewrap started nothing')])
def test_without_bubblewrap_the_level_is_kernel(
    monkeypatch, tmp_path, script, reason):
  monkeypatch.setattr(launcher, '_START_SECONDS', 1.0)
  monkeypatch.setenv('PATH', str(tmp_path))
  if script:
    fake_bwrap(monkeypatch, tmp_path, script)
  assert start() == 'kernel'
  found = start('bwrap')
  assert f'bwrap: {reason}' in found and 'kernel:' not in found


def test_the_switch_of_apparmor_is_named(monkeypatch, tmp_path):
  switch = tmp_path / 'switch'
  switch.write_text('1\n')
  monkeypatch.setattr(launcher, '_USERNS_SWITCH', str(switch))
  fake_bwrap(monkeypatch, tmp_path, 'exit 1')
  assert str(switch) in launcher._missing(sandbox.Level.BWRAP)


@needs_bwrap
def test_bubblewrap_may_be_a_script(monkeypatch, tmp_path):
  # The script stays, and keeps the pipe for the server's id open.
  fake_bwrap(monkeypatch, tmp_path, f'{shutil.which("bwrap")} "$@"')
  assert start() == 'bwrap'


@needs_bwrap
def test_a_stopped_bubblewrap_does_not_hang_close():
  server = sandbox.SandboxServer(1, 'bwrap')
  server.start()
  os.kill(server._process.pid, signal.SIGSTOP)
  server.close()  # Bite: it waits forever.


def test_a_closed_standard_input_is_not_reused():
  found = subprocess.run(
      ['sh', '-c', 'exec "$0" -c "$1" <&-', sys.executable, '''
from environments import sandbox
with sandbox.SandboxServer(1, 'unsafe_rlimit') as server:
  print(server.sandbox.run('print(1)').stdout)
'''], cwd=servers.ROOT, capture_output=True, text=True)
  assert found.stdout == '1\n\n', found.stderr


def test_without_landlock_the_start_is_refused(monkeypatch, tmp_path):
  # Bite: it falls back to the level without walls.
  def no_landlock():
    raise OSError(38, 'Landlock: this kernel has none')

  monkeypatch.setenv('PATH', str(tmp_path))
  monkeypatch.setattr(isolation, 'landlock_version', no_landlock)
  found = start()
  for words in (
      'kernel: Landlock: this kernel has none', 'bwrap: Landlock',
      'sandbox.level=unsafe_rlimit'):
    assert words in found
  assert '\n' not in found
  assert start('unsafe_rlimit') == 'unsafe_rlimit'


def test_an_unknown_machine_is_refused(monkeypatch):
  monkeypatch.setattr(
      seccomp.os, 'uname', lambda: types.SimpleNamespace(machine='riscv64'))
  assert "'riscv64'" in launcher._missing(sandbox.Level.KERNEL)


def test_other_systems_are_refused(monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'darwin')
  assert "'darwin'" in start()


@needs_kernel
@pytest.mark.parametrize('module, method, walls', [
    ('isolation', 'restrict_self', 'folders, files'),
    ('seccomp', 'install', 'sockets')])
def test_the_trial_finds_a_missing_wall(
    monkeypatch, tmp_path, module, method, walls):
  # A copy of the sandbox where entering one of the walls does nothing.
  folder = tmp_path / 'sandbox'
  shutil.copytree(launcher._FOLDER, folder)
  path = folder / f'{module}.py'
  head = f'  def {method}(self) -> None:'
  text = path.read_text()
  assert head in text
  path.write_text(text.replace(head, f'{head}\n    return'))
  monkeypatch.setattr(launcher, '_FOLDER', str(folder))
  assert f'kernel: a trial program could use {walls}' in start('kernel')


def test_the_unsafe_level_warns_and_is_no_boundary(caplog):
  # Otherwise the attacks of hostile_test.py could not fail.
  with sandbox.SandboxServer(1, 'unsafe_rlimit') as server:
    result = servers.run(server.address, '''
        import os, socket
        print(len(os.listdir('/')) > 0, 'root' in open('/etc/passwd').read())
        socket.socket()
        if os.fork() == 0: os._exit(0)
        os.kill(os.getppid(), 0)
        print(os.memfd_create('x') > 0, flush=True)
        os.write(os.memfd_create('x'), b'x')''')
  assert result.stdout == 'True True\nTrue\n', result
  assert result.stderr == 'stopped: it wrote to a file'  # A limit.
  assert 'unsafe_rlimit' in caplog.text
  caplog.clear()
  start()
  assert not caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason='only root has capabilities')
@needs_kernel
def test_root_has_no_capabilities_inside():
  with sandbox.SandboxServer(1, 'kernel') as server:
    with futures.ThreadPoolExecutor(1) as pool:
      pending = pool.submit(
          server.sandbox.run, 'import time; time.sleep(0.5)')
      servers.wait_until(lambda: confined_below(server.pid))
      status, = confined_below(server.pid)
      pending.result()
  for line in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'):
    assert f'{line}:\t{"0" * 16}\n' in status
  assert 'NoNewPrivs:\t1\n' in status


def confined_below(pid):
  """The status files of running programs."""
  found = [
      open(f'/proc/{child}/status').read()
      for child in servers.descendants(pid)]
  return [status for status in found if 'Seccomp:\t2' in status]
