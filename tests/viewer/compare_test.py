"""The comparison of six runs, one of them running and one damaged."""

import json
import shutil
from unittest import mock

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import main
from atgrpo_jax import statistics
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.viewer import compare
from tests.viewer import browser as browser_lib

# Successes on four tasks after training, by group and seed.
SUCCESSES = {'small': ('1000', '1100', '0100'), 'large': ('1111', '1110')}


def _change(path, function):
  content = json.loads(path.read_text())
  function(content)
  path.write_text(json.dumps(content))


@pytest.fixture(scope='module')
def workdirs(finished, tmp_path_factory):
  """Three seeds of two groups; the last one is damaged."""
  folder, made = tmp_path_factory.mktemp('runs'), []
  for group, found in SUCCESSES.items():
    for seed, successes in enumerate(found):
      workdir = shutil.copytree(finished, folder / f'{group}-{seed}')
      _change(workdir / 'config.json', lambda it: it['config'].update(
          seed=seed, policies=group))
      _change(workdir / 'evals/after.json', lambda it: it.update(
          successes=successes, success=successes.count('1') / 4,
          returns=[float(x) for x in successes]))
      made.append(workdir)
  damaged = shutil.copytree(finished, folder / 'damaged')
  (damaged / 'evals/after.json').write_text('{}')
  return [*made, damaged]


def test_table_has_the_statistics_of_the_paper(workdirs):
  found, problems = compare.read(workdirs)
  assert len(found) == 5
  problem, = problems
  assert 'damaged is left out' in problem and "'successes'" in problem
  groups, differing = compare.make_groups(found)
  assert [group.label for group in groups] == [
      'A: policies="small"', 'B: policies="large"']
  assert differing == {'policies': ['"small"', '"large"']}
  tables, problems = compare.make_tables(groups)
  small, large = tables['success']
  assert not problems and small.is_pilot and small.p is None
  assert 'return' not in tables  # It equals the success of each task.
  values = [
      np.array([[float(x) for x in seed] for seed in SUCCESSES[group]])
      for group in SUCCESSES]
  np.testing.assert_array_equal(large.values, values[1])
  clusters = found[0].final['clusters']
  assert large.difference == pytest.approx(7 / 8 - 1 / 3)
  assert large.p == large.p_holm == statistics.p_value(
      values[1], values[0], clusters)
  assert small.interval == statistics.interval(values[0], clusters)


def test_mean_ends_where_the_shortest_run_ends(workdirs, tmp_path):
  longer, shorter = workdirs[0], shutil.copytree(workdirs[1], tmp_path / 'run')
  lines = (shorter / 'metrics.jsonl').read_text().splitlines()
  second = [json.dumps(json.loads(x) | {'return/mean': 9.0}) for x in lines[:2]]
  (shorter / 'metrics.jsonl').write_text('\n'.join(second))
  (shorter / 'evals/after.json').unlink()
  found, _ = compare.read([longer, shorter])
  plots = {
      plot.title: plot
      for plot in compare.make_plots(compare.make_groups(found)[0])}
  plot = plots['Return of the rollouts over steps']
  line, = plot.lines
  usual = json.loads(lines[0])['return/mean']
  assert line.points == [(1, (usual + 9) / 2), (2, (usual + 9) / 2)]
  assert [len(part) for part in line.parts] == [4, 2] and plot.end == 4
  tokens = json.loads(lines[0])['budget/completion_tokens']
  assert plots['Return of the rollouts over tokens'].end == 4 * tokens


def test_run_with_other_tasks_or_an_equal_seed_is_left_out(workdirs, tmp_path):
  other = shutil.copytree(workdirs[1], tmp_path / 'other')
  _change(other / 'evals/after.json', lambda it: it.update(split_hash='x'))
  again = shutil.copytree(workdirs[0], tmp_path / 'again')
  found, problems = compare.read([workdirs[0], other, again, workdirs[0]])
  assert 'it has the seed of' in problems[0] and 'twice' in problems[1]
  tables, problems = compare.make_tables(compare.make_groups(found)[0])
  row, = tables['success']
  assert len(row.values) == 1 and row.interval is None
  assert 'evaluated on other tasks' in problems[0]


def test_no_seed_is_left_out_for_its_result(workdirs, tmp_path):
  """A collapsed team runs no program, and its return is its success."""
  found = []
  for seed, (returns, num_programs) in enumerate((
      ([0.0] * 4, 0), ([1.0, 0.5, 0.0, 0.0], 9), ([1.0, 0.5, 0.5, 0.0], 9))):
    workdir = shutil.copytree(workdirs[seed], tmp_path / str(seed))
    successes = ''.join('01'[x == 1] for x in returns)
    _change(workdir / 'evals/after.json', lambda it: it.update(
        returns=returns, successes=successes, success=successes.count('1') / 4,
        sandbox='kernel', budget=it['budget'] | {'program_runs': num_programs}))
    found.append(workdir)
  tables, problems = compare.make_tables(
      compare.make_groups(compare.read(found)[0])[0])
  assert not problems
  assert [len(rows[0].values) for rows in tables.values()] == [3, 3]
  assert tables['return'][0].values.mean() == pytest.approx(3.5 / 12)


def test_an_untrained_team_is_no_result_of_a_training(workdirs, tmp_path):
  started, evaluated, extended = (
      shutil.copytree(workdirs[i], tmp_path / str(i)) for i in range(3))
  for workdir in (started, evaluated):
    (workdir / 'metrics.jsonl').unlink()
    (workdir / 'evals/after.json').unlink()
  (evaluated / 'evals/before.json').rename(evaluated / 'evals/evaluation.json')
  _change(extended / 'evals/after.json', lambda it: it.update(step=2))
  found, _ = compare.read([started, evaluated, extended])
  groups, differing = compare.make_groups(found)
  assert differing['mode'] == ['"train"', '"evaluate"']
  tables, problems = compare.make_tables(groups)
  row, = tables['success']
  assert row.group.letter == 'B' and row.values.mean() == 0.25
  assert len(problems) == 2
  assert all('after its last step' in problem for problem in problems)


def test_page_is_written_again_while_a_run_is_running(
    workdirs, tmp_path, monkeypatch):
  held, texts = workdir_lib.lock(workdirs[0]), []

  def sleep(_):
    texts.append((tmp_path / compare.PAGE).read_text())
    held.close()

  monkeypatch.setattr('time.sleep', sleep)
  path = compare.compare(tmp_path, workdirs, watch=True)
  assert ['"refresh"' in text for text in (*texts, path.read_text())] == [
      True, False]


def test_mistakes(workdirs, tmp_path):
  with pytest.raises(errors.UserError, match='damaged is left out'):
    compare.compare(tmp_path, workdirs[-1:])
  with pytest.raises(errors.UserError, match='no run is given'):
    compare.compare(tmp_path, [])
  with pytest.raises(errors.UserError, match='--workdir is given 2 times'):
    main.parse_flags(['main', '--mode=report', '--workdir=a', '--workdir=b'])


@browser_lib.needed
def test_page_in_a_browser(workdirs, tmp_path, monkeypatch):
  # As Ctrl-C does.
  monkeypatch.setattr('time.sleep', mock.Mock(side_effect=KeyboardInterrupt))
  with workdir_lib.lock(workdirs[0]):
    page_path = compare.compare(tmp_path, workdirs, watch=True)
  monkeypatch.undo()
  complaints = []
  with browser_lib.start() as browser:
    page = browser.new_page()
    page.on('console', lambda message: complaints.append(message.text))
    page.goto(page_path.as_uri())
    assert 'damaged is left out' in page.inner_text('[role=alert]')
    row = page.inner_text('#success tbody tr:nth-child(2)').split('\t')
    assert row[0] == 'B: policies="large"' and row[2] == '87.5 %'
    assert row[4:6] == ['2, pilot', '+54.2']
    assert page.locator('#curves figure').count() == 6
    assert page.locator('#curves figure').first.locator('.part').count() == 5
    assert 'running' in page.inner_text('#runs tbody tr:first-child')
    colors = page.eval_on_selector_all(
        '#curves figure:first-child i', 'all => all.map('
        '(it) => getComputedStyle(it).backgroundColor)')
    assert len(set(colors)) == 2
  assert not complaints
  assert 'http-equiv="refresh" content="30"' in page_path.read_text()
