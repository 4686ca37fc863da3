"""The record tells which commit, changes and command made a run."""

import importlib
import subprocess
import sys

import jax

from atgrpo_jax.io import provenance


def git(folder, *arguments):
  name = ('-c', 'user.name=a', '-c', 'user.email=a@b')
  return subprocess.run(
      ['git', '-C', folder, *name, *arguments], check=True, text=True,
      stdout=subprocess.PIPE).stdout.strip()


def test_each_start_and_end_is_recorded(tmp_path, monkeypatch, capsys):
  repository, workdir = tmp_path / 'repository', tmp_path / 'workdir'
  repository.mkdir()
  workdir.mkdir()
  git(repository, 'init', '-q')
  (repository / 'rule.py').write_text('1\n')
  git(repository, 'add', '.')
  git(repository, 'commit', '-qm', 'Add a rule')
  monkeypatch.chdir(repository)
  monkeypatch.setattr(sys, 'orig_argv', ['python', 'main.py', '--workdir=a b'])
  assert provenance.read(workdir) == []

  provenance.start(workdir, 0)
  provenance.end(workdir, 3, 'stopped by SIGTERM')
  provenance.start(workdir, 3)
  assert not capsys.readouterr().out
  (repository / 'rule.py').write_text('2\n')
  (repository / 'new_rule.py').write_text('new = 3\n')
  (repository / 'notes.txt').write_text('unused\n')
  monkeypatch.syspath_prepend(repository)
  importlib.import_module('new_rule')
  provenance.start(workdir, 3)
  first, end, _, second = provenance.read(workdir)

  assert [first['event'], end['event'], second['event']] == [
      'started', 'stopped by SIGTERM', 'resumed']
  assert first['time'] <= end['time'] and second['step'] == end['step'] == 3
  assert first['command'].endswith("main.py '--workdir=a b'")
  assert first['folder'] == str(repository)
  assert first['versions']['jax'] == jax.__version__
  commit = git(repository, 'rev-parse', 'HEAD')
  assert first['commits'][str(repository)] == {
      'commit': commit, 'untracked': []}
  changed = second['commits'][str(repository)]
  assert changed['commit'] == commit and changed['untracked'] == [
      'new_rule.py', 'notes.txt']
  changes = (workdir / changed['changes']).read_text()
  assert '-1\n+2\n' in changes and '+new = 3\n' in changes
  assert 'unused' not in changes
  assert f'{commit[:8]} with {changed["changes"]}' in capsys.readouterr().out


def test_a_copy_without_a_repository_names_its_source(tmp_path, monkeypatch):
  monkeypatch.setattr(provenance, '_git', lambda *_: '')
  for source in ('', 'abc-dirty'):
    monkeypatch.setenv('SOURCE_COMMIT', source)
    provenance.start(tmp_path, 0)
  without, found = (event['commits'] for event in provenance.read(tmp_path))
  assert not without and list(found.values()) == [{'commit': 'abc-dirty'}]
