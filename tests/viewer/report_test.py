"""What a report says of a workdir, whatever state that is in."""

import base64
import contextlib
import gzip
import hashlib
import json
import math
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
  """A workdir; never written to."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    scripted.follow_scripts(monkeypatch)
    return runs.make(tmp_path_factory.mktemp('runs') / 'finished')


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of it."""
  return shutil.copytree(finished, tmp_path / 'run')


def _embedded(text):
  """What the page unpacks: name -> JSON."""
  return {
      name: json.loads(gzip.decompress(base64.b64decode(chunk)))
      for name, chunk in re.findall(
          r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', text)}


# The numbers.


def test_a_finished_run(finished):
  run = report.read_run(finished)
  assert run['state'] == 'finished after step 4'
  assert (run['steps'], run['team'], run['task']) == (4, 'pair', 'tests.echo')
  assert run['algorithm'] == 'AT-GRPO, policies: shared'
  assert run['hash'] == json.loads(
      (finished / 'config.json').read_text())['hash']
  assert run['config']['train.num_steps'] == '4'
  assert [it['name'] for it in run['evaluations']] == ['before', 'after']
  before = run['evaluations'][0]
  assert before['interval'][0] < before['success'] < before['interval'][1]
  tokens = [
      json.loads(line)['budget/completion_tokens']
      for line in (finished / 'metrics.jsonl').read_text().splitlines()]
  assert run['tokens'] == sum(tokens)
  assert run['seconds'] == 4 * 3.0


def test_validation_is_told_where_it_was_made(finished):
  columns = report.read_run(finished)['metrics']
  assert columns['step'] == [0, 1, 2, 3, 4]
  assert columns['validation/success'] == [0.0, None, 0.2, None, 0.4]
  # There was no rollout at step 0.
  assert columns['rollout/success'][0] is None
  assert None not in columns['rollout/success'][1:]


@pytest.mark.parametrize('steps, validated, expected', [
    ([1, 2, 3], [1, 2, 3], [1, 2, 3]), ([1, 2], [0, 0], [0]),
    ([4, 5, 6], [4, 4, 6], [4, 6]), ([5, 6], [4, 6], [6])])
def test_steps_with_a_validation(steps, validated, expected):
  lines = [
      {'step': step, 'validation/success': 0.5, 'validation/step': last,
       'budget/completion_tokens': 3} for step, last in zip(steps, validated)]
  columns = report.columns(lines)
  found = [
      step for step, value in zip(
          columns['step'], columns['validation/success']) if value is not None]
  assert found == expected
  assert columns['tokens'][-1] == 3 * len(steps)


@pytest.mark.parametrize('values, is_drawn', [
    ([0.0, 0.0], False), ([0.0, 1e-3], True)])
def test_the_kl_of_a_single_update_is_not_drawn(values, is_drawn, workdir):
  path = workdir / 'metrics.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  path.write_text(''.join(
      json.dumps(line | {'one/approx_kl': value}) + '\n'
      for line, value in zip(lines, values)))
  charts = _embedded(report.write(workdir).read_text())['data']['charts']
  assert is_drawn == ('KL of the update' in [it['title'] for it in charts])


def test_nothing_is_measured_yet():
  assert report.columns([]) == {}


def test_numbers_that_are_not_finite_are_not_drawn(workdir):
  path = workdir / 'metrics.jsonl'
  first, *lines = path.read_text().splitlines(keepends=True)
  values = json.loads(first) | {'one/entropy': 'NaN', 'return/mean': 'Infinity'}
  path.write_text(json.dumps(values) + '\n' + ''.join(lines))
  columns = report.read_run(workdir)['metrics']
  assert columns['one/entropy'][1] is columns['return/mean'][1] is None
  assert columns['one/entropy'][2] == 1.0


# How far a run is.


def test_a_run_that_goes_on(workdir):
  (workdir / 'evals/after.json').unlink()
  with contextlib.closing(workdir_lib.Lock(workdir)):
    assert report.read_run(workdir)['state'] == (
        'still running, after step 4 of 4')
  assert report.read_run(workdir)['state'] == (
      'stopped after step 4 of 4; the same command resumes')


def test_a_run_that_was_finished_and_then_lengthened(workdir):
  with (workdir / 'metrics.jsonl').open('a') as file:
    last = json.loads((workdir / 'metrics.jsonl').read_text().splitlines()[-1])
    file.write(json.dumps(last | {'step': 5}) + '\n')
  assert report.read_run(workdir)['state'].startswith('stopped after step 5')


def test_a_run_before_its_first_step(workdir):
  (workdir / 'evals/after.json').unlink()
  (workdir / 'metrics.jsonl').write_text('')
  shutil.rmtree(workdir / 'groups')
  run = report.read_run(workdir)
  assert (run['steps'], run['tokens'], run['metrics']) == (0, 0, {})
  assert run['state'].startswith('stopped after step 0')
  found = _embedded(report.write(workdir).read_text())
  assert [it['name'] for it in found['data']['sources']] == ['before']
  assert found['data']['charts'] == []


def test_a_workdir_that_was_only_evaluated(workdir):
  for name in ('before', 'after'):
    (workdir / f'evals/{name}.json').rename(workdir / f'evals/{name}-x.json')
  (workdir / 'metrics.jsonl').unlink()
  assert report.read_run(workdir)['state'] == 'evaluated only'
  shutil.rmtree(workdir / 'evals')
  assert report.read_run(workdir)['state'] == 'nothing recorded yet'
  report.write(workdir)


@pytest.mark.parametrize('changes, name', [
    ({'rollout.mode': 'parallel'}, 'GRPO'),
    ({'rollout.mode': 'tree'}, 'AT-GRPO'),
    ({'rollout.mode': 'joint'}, 'MAGRPO'),
    ({'rollout.mode': 'joint', 'critic.kind': 'independent'}, 'IAC'),
    ({'rollout.mode': 'joint', 'critic.kind': 'central'}, 'MAAC')])
def test_what_an_algorithm_is_called(changes, name, workdir):
  path = workdir / 'config.json'
  record = json.loads(path.read_text())
  for key, value in changes.items():
    section, key = key.split('.')
    record['config'][section][key] = value
  path.write_text(json.dumps(record))
  assert report.read_run(workdir)['algorithm'] == f'{name}, policies: shared'


# What cannot be read.


@pytest.mark.parametrize('file, content, words', [
    ('config.json', None, 'is no workdir; give that of a run'),
    ('config.json', '{', 'is no config that was written here'),
    ('config.json', '{"config": 3}', 'is no config that was written here'),
    ('config.json', '{"config": {"seed": 0}}', 'of a pretraining or of'),
    ('metrics.jsonl', '{"step": 1}\n', 'has no KeyError'),
    ('metrics.jsonl', '{"st', 'is cut off or of another program'),
    ('evals/before.json', '{}', 'is no evaluation that was written here'),
    ('groups/000000.jsonl.gz', 'x', 'is no record of trees, or damaged'),
    ('evals/after.jsonl.gz', '', 'is no record of trees, or damaged'),
])
def test_what_cannot_be_read_is_one_sentence(file, content, words, workdir):
  (workdir / file).unlink()
  if content is not None:
    (workdir / file).write_text(content)
  with pytest.raises(errors.UserError, match=words) as error:
    report.write(workdir)
  assert '\n' not in str(error.value)
  assert not (workdir / 'report.html').exists()


@pytest.mark.parametrize('name, value', [
    ('interval', None), ('interval', [0.1]), ('sampling', None),
    ('outcomes', 3)])
def test_an_evaluation_of_another_version_is_refused(name, value, workdir):
  path = workdir / 'evals/before.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
  with pytest.raises(errors.UserError, match=f'before.json .* its {name} can'):
    report.write(workdir)


@pytest.mark.parametrize('name', [
    'step', 'time/step', 'budget/completion_tokens'])
@pytest.mark.parametrize('value', ['NaN', 'Infinity'])
def test_a_step_that_cannot_be_counted_is_refused(name, value, workdir):
  path = workdir / 'metrics.jsonl'
  first, *lines = path.read_text().splitlines()
  first = json.dumps(json.loads(first) | {name: value})
  path.write_text('\n'.join([first, *lines]) + '\n')
  with pytest.raises(errors.UserError, match=f'line 1: {name} is'):
    report.write(workdir)


def test_a_half_of_a_record_is_not_looked_at(workdir):
  (workdir / 'groups/000004.jsonl.unfinished').write_bytes(b'half')
  report.write(workdir)


@pytest.mark.parametrize('place', ['', 'report.html'])
def test_a_file_or_folder_in_the_wrong_place(place, workdir, tmp_path):
  if place:
    (workdir / place).mkdir()
  else:
    workdir = tmp_path / 'file'
    workdir.write_text('')
  with pytest.raises(errors.UserError, match='is a (file|folder), but must'):
    report.write(workdir)


# The page.


def test_the_page_holds_all_and_a_report_can_be_written_again(workdir):
  path = report.write(workdir)
  first = path.read_text()
  found = _embedded(first)
  assert found.keys() == {'data', *(f'trees-{i}' for i in range(4))}
  assert found['data']['runs'] == [report.read_run(workdir)]
  assert [it['name'] for it in found['data']['sources']] == [
      'before', '000000', '000002', 'after']
  assert [tree['task'] for tree in found['trees-1']] == list(runs.GOALS)
  assert report.write(workdir).read_text() == first


def test_two_runs(workdir, finished):
  path = report.write(workdir, finished)
  assert path.parent == workdir
  data = _embedded(path.read_text())['data']
  assert [run['name'] for run in data['runs']] == ['run', 'finished']


def test_nothing_that_was_said_is_markup(workdir):
  text = report.write(workdir).read_text()
  said = json.dumps(_embedded(text)['trees-1'])
  assert runs.HOSTILE in json.loads(said)[1]['nodes'][0]['groups'][0][
      'candidates'][1]['text']
  assert 'hit=1' not in text and '</script><b>' not in text
  # Five of data, the library and our own.
  assert text.count('<script') == text.count('</script>') == 5 + 2
  assert '{{' not in re.sub('<script>.*', '', text, flags=re.DOTALL)


def test_a_browser_may_run_our_scripts_alone_and_load_nothing(workdir):
  text = report.write(workdir).read_text()
  policy, = re.findall(
      r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
  assert policy.startswith("default-src 'none'; ")
  blocks = re.findall(r'<(?:script|style)>(.*?)</(?:script|style)>', text,
                      re.DOTALL)
  digests = [
      base64.b64encode(hashlib.sha256(it.encode()).digest()).decode()
      for it in blocks]
  assert sorted(re.findall(r"'sha256-([^']*)'", policy)) == sorted(digests)
  assert 'unsafe' not in policy and len(digests) == 3
  assert not re.search(r'\b(src|href)="(?!#)', text)


def test_our_scripts_write_no_markup():
  for path in [*STATIC.glob('*.js'), *STATIC.glob('*.css')]:
    text = path.read_text()
    assert not re.search(
        r'innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|'
        r'https?://(?!www\.w3\.org/2000/svg)|</script', text), path
    assert len(text.splitlines()) <= 400, path
    assert max(map(len, text.splitlines())) <= 80, path
    assert f"'{path.stem}'" in pathlib.Path(page.__file__).read_text()


def test_the_library_is_what_its_origin_says():
  folder = STATIC / 'vendor/uplot'
  sums = dict(re.findall(
      r'^    (\w{64})  (\S+)$', (folder / 'ORIGIN.md').read_text(),
      re.MULTILINE))
  assert {
      hashlib.sha256((folder / name).read_bytes()).hexdigest(): name
      for name in ('LICENSE', 'uPlot.iife.min.js', 'uPlot.min.css')} == sums
  assert '--' not in (folder / 'LICENSE').read_text()


def test_what_the_page_needs_is_installed(tmp_path):
  subprocess.run(
      [sys.executable, 'setup.py', '--quiet', 'build', '--build-base',
       tmp_path, 'build_py', '--build-lib', tmp_path / 'lib'],
      cwd=checkout.ROOT, check=True, capture_output=True)
  installed = tmp_path / 'lib/atgrpo_jax/viewer/static'
  assert {
      path.relative_to(installed) for path in installed.rglob('*')
  } == {path.relative_to(STATIC) for path in STATIC.rglob('*')}


def test_finite():
  assert report._finite({'a': [1.0, math.nan], 'b': (math.inf, 'NaN')}) == {
      'a': [1.0, None], 'b': [None, 'NaN']}
