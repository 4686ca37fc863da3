"""The strongest level that works is chosen, and nothing weaker than kernel."""

import math
import shutil
import sys
import tempfile
import time
import types

import pytest

from environments import sandbox
from environments.sandbox import isolation
from environments.sandbox import launcher
from environments.sandbox import seccomp
from tests.environments.sandbox import servers

needs_kernel = pytest.mark.skipif(
    'kernel' not in servers.LEVELS, reason='this machine has no Landlock')


def test_strongest_level_is_chosen():
  assert servers.start() == servers.LEVELS[0]
  for level in servers.LEVELS:
    assert servers.start(level) == level


def test_a_long_path_of_temporary_files_is_named(tmp_path, monkeypatch):
  folder = tmp_path / ('x' * 90)
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  assert 'set TMPDIR' in servers.start()


@needs_kernel
@pytest.mark.parametrize('script, reason', [
    (None, 'bubblewrap is not installed'),
    ('echo no namespaces >&2; exit 1', 'no namespaces')])
def test_without_bubblewrap_the_level_is_kernel(
    monkeypatch, tmp_path, script, reason):
  monkeypatch.setenv('PATH', str(tmp_path))
  if script:
    path = tmp_path / 'bwrap'
    path.write_text(f'#!/bin/sh\n{script}\n')
    path.chmod(0o755)
  assert servers.start() == 'kernel'
  found = servers.start('bwrap')
  assert f'bwrap: {reason}' in found and 'kernel:' not in found


def test_without_landlock_the_start_is_refused(monkeypatch, tmp_path):
  # In particular, `auto` never falls back to a level without walls.
  def no_landlock():
    raise OSError(38, 'Landlock: this kernel has none')

  monkeypatch.setenv('PATH', str(tmp_path))
  monkeypatch.setattr(isolation, 'landlock_version', no_landlock)
  found = servers.start()
  for words in (
      'kernel: Landlock: this kernel has none', 'bwrap: Landlock',
      'sandbox.level=unsafe_rlimit'):
    assert words in found
  assert '\n' not in found
  assert servers.start('unsafe_rlimit') == 'unsafe_rlimit'


def test_unknown_machines_and_systems_are_refused(monkeypatch):
  monkeypatch.setattr(
      seccomp.os, 'uname', lambda: types.SimpleNamespace(machine='riscv64'))
  assert "'riscv64'" in servers.start('kernel')
  monkeypatch.setattr(sys, 'platform', 'darwin')
  assert "'darwin'" in servers.start()


@needs_kernel
@pytest.mark.parametrize('line, walls', [
    ('_landlock(_RESTRICT_SELF, self._ruleset, 0)', 'folders, files'),
    ('self._filter.install()', 'sockets')])
def test_trial_finds_a_missing_wall(monkeypatch, tmp_path, line, walls):
  # A copy of the sandbox that does not enter one of the walls.
  folder = tmp_path / 'sandbox'
  shutil.copytree(launcher._FOLDER, folder)
  path = folder / 'isolation.py'
  text = path.read_text()
  assert line in text
  path.write_text(text.replace(line, 'pass'))
  monkeypatch.setattr(launcher, '_FOLDER', str(folder))
  assert f'kernel: a trial program could use {walls}' in servers.start('kernel')


def test_readable_files_beside_libraries_are_libraries():
  names = ['libz.so', 'libz.so.1.2.13', 'libstemmer.so.0d.0.0', 'libc-2.31.so']
  others = ['notes.some.txt', 'x.so.txt', '.so', 'x.so.conf.d', 'libz.so.']
  assert [name for name in names + others
          if isolation._LIBRARY.fullmatch(name)] == names


def test_server_that_cannot_fork_ends_and_leaves_nothing(
    monkeypatch, capfd, tmp_path):
  without_fork = """
def fork():
  raise BlockingIOError('out of processes')
server.os.fork = fork
server._FORK_SECONDS = server._SERVER_TICK = 0.1
server.main"""
  monkeypatch.setattr(
      launcher, '_START_SERVER',
      launcher._START_SERVER.replace('server.main', without_fork))
  monkeypatch.setattr(launcher.tempfile, 'tempdir', str(tmp_path))
  begin = time.monotonic()
  assert 'cannot run programs' in servers.start('unsafe_rlimit')
  assert time.monotonic() - begin < 10.0
  assert 'out of processes' in capfd.readouterr().err
  assert not list(tmp_path.iterdir())


def test_unsafe_level_warns_and_is_no_boundary(caplog):
  # Otherwise the attacks of hostile_test.py could not fail.
  with sandbox.SandboxServer(1, 'unsafe_rlimit') as server:
    result = servers.run(server.address, '''
        import os, socket
        socket.socket()
        os.fork() or os._exit(0)
        print('root' in open('/etc/passwd').read())''')
  assert result.stdout == 'True\n', result
  assert 'unsafe_rlimit' in caplog.text


@pytest.mark.parametrize('name, value', [
    ('memory_bytes', 1000), ('wall_seconds', math.nan),
    ('cpu_seconds', math.inf)])
def test_impossible_arguments_are_refused(name, value):
  with pytest.raises(ValueError, match=f'{name}={value}'):
    sandbox.Sandbox('', sandbox.Limits(**{name: value}))
  with pytest.raises(ValueError, match="level='remote'"):
    sandbox.SandboxServer(1, 'remote')
