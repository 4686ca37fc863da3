"""A report of a workdir in any state, and its safety against markup."""

import base64
import gzip
import json
import re
import shutil

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import report
from atgrpo_jax.viewer import trees
from tests import specs
from tests.rollout import scripted
from tests.viewer import runs


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of the finished run."""
  return shutil.copytree(finished, tmp_path / 'run')


def _embedded(text):
  """The data of a page: name -> JSON."""
  return {
      name: json.loads(gzip.decompress(base64.b64decode(chunk)))
      for name, chunk in re.findall(
          r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', text)}


def test_finished_run(finished):
  run = report.read_run(finished)
  assert run['state'] == 'finished'
  assert (run['steps'], run['team'], run['task']) == (4, 'pair', 'Echo')
  assert run['config']['train.num_steps'] == '4'
  assert run['seconds'] == 4 * 3.0
  success, _, *by_role = run['plots']
  assert [line.label for line in by_role[0].lines] == ['a', 'b']
  assert [plot.title for plot in by_role] == [
      'Return of the candidates', 'Tokens of a completion',
      'Share of parse errors', 'Share of groups without an advantage',
      'Share of distinct texts in a group']
  # A validation is drawn at its step, not at those that repeat it.
  _, validation = success.lines
  assert validation.label == 'validation (one candidate)'
  assert validation.points == [(0, 0.0), (2, 0.2), (4, 0.4)]
  assert (success.end, success.bounds[0]) == (4, 0.0)


def test_role_with_hardly_any_parsed_answer_is_named(workdir):
  sentence = '95 of 100 answers of a after step 4 are parse errors'
  for num_errors in (94, 95):
    path = workdir / 'evals/after.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'outcomes': {
        'a': {'parse_error': num_errors, 'ok': 100 - num_errors},
        'b': {'ok': 3}, 'c': {}}}))
    page = report.write(workdir).read_text()
    assert (sentence in page) == (num_errors == 95)
    assert ('class="problem"' in page) == (num_errors == 95)


def test_states_of_an_unfinished_run(workdir):
  (workdir / 'evals/after.json').unlink()
  with workdir_lib.lock(workdir):
    assert report.read_run(workdir)['state'] == 'running'
  assert report.read_run(workdir)['state'] == 'stopped'
  (workdir / 'metrics.jsonl').write_text('')
  shutil.rmtree(workdir / 'groups')
  run = report.read_run(workdir)
  assert (run['steps'], run['tokens'], run['plots']) == (0, 0, [])
  assert run['state'] == 'stopped'
  found = _embedded(report.write(workdir).read_text())
  assert [it['name'] for it in found['sources']] == ['before']


@pytest.mark.parametrize('file, content', [
    ('config.json', None), ('config.json', '{"config": 3}'),
    ('config.json', '{"config": {"seed": 0}}'),
    ('metrics.jsonl', '{"step": 1}\n'), ('evals/before.json', '{}'),
    ('evals/after.jsonl.gz', '')])
def test_damaged_file_gives_one_line(file, content, workdir):
  (workdir / file).unlink()
  if content is not None:
    (workdir / file).write_text(content)
  with pytest.raises(errors.UserError) as error:
    report.write(workdir)
  assert str(workdir) in str(error.value) and '\n' not in str(error.value)
  assert not (workdir / 'report.html').exists()


def test_page_has_all_records_and_is_reproducible(workdir):
  path = report.write(workdir)
  first = path.read_text()
  found = _embedded(first)
  assert '"logprobs"' not in json.dumps(found)
  assert found.keys() == {'sources', *(f'trees-{i}' for i in range(4))}
  assert [it['name'] for it in found['sources']] == [
      'before', '000000', '000002', 'after']
  assert [tree['task'] for tree in found['trees-1']] == list(runs.GOALS)
  assert report.write(workdir).read_text() == first


def test_completions_and_config_values_are_no_markup(workdir):
  hostile = '"><script>hit=1</script>'
  path = workdir / 'config.json'
  record = json.loads(path.read_text())
  record['config']['policies'] = hostile
  path.write_text(json.dumps(record))
  text = report.write(workdir).read_text()
  tree = _embedded(text)['trees-1'][1]
  assert runs.HOSTILE == tree['nodes'][0]['groups'][0]['candidates'][1]['text']
  assert '<script>hit' not in text and '</script><b>' not in text
  assert text.count('<script') == text.count('</script>') == 5 + 1
  # The page requests nothing.
  policy, = re.findall(
      r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
  assert policy.startswith("default-src 'none';") and 'unsafe' not in policy
  assert not re.search(r'\b(src|href)="(?!#)|\bstyle="', text)


def _unpack(source):
  return json.loads(gzip.decompress(source.chunk))


def _read(workdir, max_bytes=1 << 20):
  return trees.read(workdir, ['before', 'after'], max_bytes)


def test_summary_counts_each_chain(tmp_path):
  workdir = runs.make(
      tmp_path / 'run', mode='parallel', return_type='return_to_go')
  tree = _unpack(_read(workdir)[1])[1]
  assert tree['task'] == 'T4'
  assert tree['summary']['episodes'] == 4
  ends = [
      step for node in tree['nodes'] for step in node['steps'] if step['done']]
  assert tree['summary']['solved'] == sum(end['success'] for end in ends) >= 1
  assert tree['summary']['signal'] and 'ok' in tree['summary']['outcomes']


def test_choices_have_reasons(finished, monkeypatch):
  nodes = {
      tree['task']: tree['nodes'] for tree in _unpack(_read(finished)[1])}
  assert nodes['T4'][0]['reason'] == 'largest reward'
  # All candidates of a are equal, but not those of b.
  assert [node['reason'] for node in nodes['T9'][:2]] == [
      'largest reward, first of 4 equals', 'largest reward']
  scripted.follow_scripts(monkeypatch)
  for switches, expected in (
      ({'selection': 'team_greedy'},
       'largest team reward, first of 4 equals'),
      ({'selection': 'softmax'}, 'by the rule softmax'),
      ({'mode': 'joint', 'selection': 'team_greedy'},
       'largest team reward, first of 4 equals')):
    runner = scripted.make_runner(
        {'one': runs.COMPLETIONS, 'two': runs.COMPLETIONS})
    tree, = scripted.collect(runner, {'T9': 9}, group_size=4, **switches)
    rollout = vars(specs.rollout(**switches))
    assert trees.reason(tree.nodes[0], rollout) == expected


def test_trees_beyond_the_size_limit_are_counted(finished):
  first_only = _read(finished, max_bytes=4)
  assert [(it.num_packed, it.num_trees) for it in first_only] == [(1, 4)] * 4
  assert [tree['task'] for tree in _unpack(first_only[1])] == ['T1']
  # About half of the longest source fits.
  sizes = [len(it.chunk) for it in _read(finished)]
  some = _read(finished, max_bytes=4 * max(sizes) // 2)
  assert {it.num_packed for it in some} & {2, 3}
  for it in some:
    assert len(_unpack(it)) == it.num_packed
