"""A report of a workdir in any state, and its safety against markup."""

import base64
import contextlib
import gzip
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import page
from atgrpo_jax.viewer import report
from tests import checkout
from tests.rollout import scripted
from tests.viewer import runs

STATIC = pathlib.Path(page.__file__).parent / 'static'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A workdir that no test changes."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    scripted.follow_scripts(monkeypatch)
    return runs.make(tmp_path_factory.mktemp('runs') / 'finished')


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of it."""
  return shutil.copytree(finished, tmp_path / 'run')


def _embedded(text):
  """The data of a page: name -> JSON."""
  return {
      name: json.loads(gzip.decompress(base64.b64decode(chunk)))
      for name, chunk in re.findall(
          r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', text)}


def _edit_json(path, function):
  path.write_text(json.dumps(function(json.loads(path.read_text()))))


# The numbers.


def test_finished_run(finished):
  run = report.read_run(finished)
  assert run['state'] == 'finished after step 4'
  assert (run['steps'], run['team'], run['task']) == (4, 'pair', 'tests.echo')
  assert run['algorithm'] == 'AT-GRPO, policies: shared'
  assert run['hash'] == json.loads(
      (finished / 'config.json').read_text())['hash']
  assert run['config']['train.num_steps'] == '4'
  assert [it['name'] for it in run['evaluations']] == ['before', 'after']
  tokens = [
      json.loads(line)['budget/completion_tokens']
      for line in (finished / 'metrics.jsonl').read_text().splitlines()]
  assert run['tokens'] == sum(tokens)
  assert run['seconds'] == 4 * 3.0


@pytest.mark.parametrize('steps, validated, expected', [
    ([1, 2, 3], [1, 2, 3], [1, 2, 3]), ([1, 2], [0, 0], [0]),
    ([4, 5, 6], [4, 4, 6], [4, 6]), ([5, 6], [4, 6], [4, 6])])
def test_validation_is_plotted_at_its_step(steps, validated, expected):
  plot, = report.plots([
      {'step': step, 'validation/success': 0.5, 'validation/step': last}
      for step, last in zip(steps, validated)])
  line, = plot['lines'].values()
  assert [step for step, _ in line] == expected


def test_plots_have_one_line_per_role_and_skip_nonfinite_values():
  steps = [
      {'step': 1, 'a/length': 3.0, 'b/length': float('nan'), 'a/return': 1.0},
      {'step': 2, 'a/length': 4.0, 'b/length': 5.0, 'a/return': 2.0}]
  returns, tokens = report.plots(steps)
  assert returns['lines'] == {'a': [(1, 1.0), (2, 2.0)]}
  assert tokens['lines'] == {'a': [(1, 3.0), (2, 4.0)], 'b': [(2, 5.0)]}
  assert report.plots([]) == []


# States of a run.


def test_running_and_stopped(workdir):
  (workdir / 'evals/after.json').unlink()
  with contextlib.closing(workdir_lib.Lock(workdir)):
    assert report.read_run(workdir)['state'] == (
        'still running, after step 4 of 4')
  assert report.read_run(workdir)['state'] == (
      'stopped after step 4 of 4; the same command resumes')


def test_finished_run_that_was_extended(workdir):
  with (workdir / 'metrics.jsonl').open('a') as file:
    last = json.loads((workdir / 'metrics.jsonl').read_text().splitlines()[-1])
    file.write(json.dumps(last | {'step': 5}) + '\n')
  assert report.read_run(workdir)['state'].startswith('stopped after step 5')


def test_run_before_its_first_step(workdir):
  (workdir / 'evals/after.json').unlink()
  (workdir / 'metrics.jsonl').write_text('')
  shutil.rmtree(workdir / 'groups')
  run = report.read_run(workdir)
  assert (run['steps'], run['tokens'], run['plots']) == (0, 0, [])
  assert run['state'].startswith('stopped after step 0')
  found = _embedded(report.write(workdir).read_text())
  assert [it['name'] for it in found['sources']] == ['before']


def test_workdir_with_evaluations_only(workdir):
  for name in ('before', 'after'):
    (workdir / f'evals/{name}.json').rename(workdir / f'evals/{name}-x.json')
  (workdir / 'metrics.jsonl').unlink()
  assert report.read_run(workdir)['state'] == 'evaluated only'
  shutil.rmtree(workdir / 'evals')
  assert report.read_run(workdir)['state'] == 'nothing recorded yet'
  report.write(workdir)


@pytest.mark.parametrize('changes, name', [
    ({'rollout': {'mode': 'parallel'}}, 'GRPO'),
    ({'rollout': {'mode': 'tree'}}, 'AT-GRPO'),
    ({'rollout': {'mode': 'joint'}}, 'MAGRPO'),
    ({'rollout': {'mode': 'joint'}, 'critic': {'kind': 'independent'}}, 'IAC'),
    ({'rollout': {'mode': 'joint'}, 'critic': {'kind': 'central'}}, 'MAAC')])
def test_name_of_the_algorithm(changes, name, workdir):
  def change(record):
    for section, values in changes.items():
      record['config'][section] |= values
    return record

  _edit_json(workdir / 'config.json', change)
  assert report.read_run(workdir)['algorithm'] == f'{name}, policies: shared'


# Damaged files.


@pytest.mark.parametrize('file, content', [
    ('config.json', None), ('config.json', '{'),
    ('config.json', '{"config": 3}'),
    ('config.json', '{"config": {"seed": 0}}'),
    ('metrics.jsonl', '{"step": 1}\n'), ('metrics.jsonl', '{"st'),
    ('evals/before.json', '{}'), ('groups/000000.jsonl.gz', 'x'),
    ('evals/after.jsonl.gz', '')])
def test_damaged_file_gives_one_line(file, content, workdir):
  (workdir / file).unlink()
  if content is not None:
    (workdir / file).write_text(content)
  with pytest.raises(errors.UserError) as error:
    report.write(workdir)
  assert str(workdir) in str(error.value) and '\n' not in str(error.value)
  assert not (workdir / 'report.html').exists()


# The page.


def test_page_has_all_records_and_is_reproducible(workdir):
  path = report.write(workdir)
  first = path.read_text()
  found = _embedded(first)
  assert found.keys() == {'sources', *(f'trees-{i}' for i in range(4))}
  assert [it['name'] for it in found['sources']] == [
      'before', '000000', '000002', 'after']
  assert [tree['task'] for tree in found['trees-1']] == list(runs.GOALS)
  assert report.write(workdir).read_text() == first


def test_completions_and_config_values_are_no_markup(workdir):
  hostile = '"><script>hit=1</script>'
  _edit_json(workdir / 'evals/after.json', lambda it: it | {'split': hostile})
  _edit_json(workdir / 'config.json', lambda it: {
      **it, 'config': it['config'] | {'policies': hostile}})
  text = report.write(workdir).read_text()
  tree = _embedded(text)['trees-1'][1]
  assert runs.HOSTILE == tree['nodes'][0]['groups'][0]['candidates'][1]['text']
  assert '<script>hit' not in text and '</script><b>' not in text
  assert text.count('<script') == text.count('</script>') == 5 + 1
  assert '{{' not in re.sub('<script>.*', '', text, flags=re.DOTALL)


def test_policy_allows_only_the_scripts_of_the_page(workdir):
  text = report.write(workdir).read_text()
  policy, = re.findall(
      r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
  assert policy.startswith("default-src 'none'; ")
  blocks = re.findall(
      r'<(?:script|style)>(.*?)</(?:script|style)>', text, re.DOTALL)
  digests = [
      base64.b64encode(hashlib.sha256(it.encode()).digest()).decode()
      for it in blocks]
  assert sorted(re.findall(r"'sha256-([^']*)'", policy)) == sorted(digests)
  assert 'unsafe' not in policy and len(digests) == 2
  assert not re.search(r'\b(src|href)="(?!#)|\bstyle="', text)


def test_scripts_insert_text_only():
  for path in STATIC.glob('*.js'):
    text = path.read_text()
    assert not re.search(
        r'innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|'
        r'https?://(?!www\.w3\.org/2000/svg)|</script', text), path
    assert max(map(len, text.splitlines())) <= 80, path


def test_static_files_are_installed(tmp_path):
  subprocess.run(
      [sys.executable, 'setup.py', '--quiet', 'build', '--build-base',
       tmp_path, 'build_py', '--build-lib', tmp_path / 'lib'],
      cwd=checkout.ROOT, check=True, capture_output=True)
  installed = tmp_path / 'lib/atgrpo_jax/viewer/static'
  assert {path.name for path in installed.iterdir()} == {
      path.name for path in STATIC.iterdir()}
