"""The report in a browser: what a reader sees, clicks and filters."""

import shutil

from playwright import sync_api
import pytest

from atgrpo_jax.viewer import report
from tests.viewer import browser as browser_lib
from tests.viewer import runs

STEP = '#tree/step/000000/0'

pytestmark = browser_lib.needed


@pytest.fixture(scope='module')
def browser():
  with browser_lib.start() as started:
    yield started


@pytest.fixture(scope='module')
def reports(tmp_path_factory):
  """Name -> report of a run: a tree, chains, or joint actions."""
  folder = tmp_path_factory.mktemp('reports')
  later = {'return_type': 'return_to_go'}
  return {
      name: report.write(runs.make(folder / name, **options))
      for name, options in {
          'tree': {}, 'chains': later | {'mode': 'parallel'},
          'joint': later | {
              'mode': 'joint', 'phases': (('a', 'b'),), 'group_size': 2},
      }.items()}


@pytest.fixture
def open_page(browser):
  """Opens a file; fails if the page reports an error or makes a request."""
  complaints = []
  yield lambda path, anchor='': browser_lib.open_page(
      browser, path, complaints, anchor=anchor)
  assert not complaints


@pytest.fixture
def tree(open_page, reports):
  """The page at task T4 of the first step."""
  page = open_page(reports['tree'], STEP)
  _choose_task(page, 'T4')
  return page


def _choose_task(page, task):
  page.click(f'[data-task={task}]')
  page.wait_for_selector(f'.tree figcaption:has-text("{task}")')


def _texts(page, selector):
  return page.locator(selector).all_inner_texts()


def _tasks(page):
  return page.eval_on_selector_all(
      '#tasks button', 'found => found.map((it) => it.dataset.task)')


def test_page_opens_with_a_task_that_training_changed(
    open_page, reports, tmp_path):
  workdir = shutil.copytree(reports['tree'].parent, tmp_path / 'run')
  # Training episodes also solve T4.
  shutil.copy(
      workdir / 'groups/000000.jsonl.gz', workdir / 'evals/after.jsonl.gz')
  page = open_page(report.write(workdir))
  assert _texts(page, '.tree figcaption') == [
      'T4, before training: not solved', 'T4, after training: solved']


def test_tree_shows_rewards_advantages_and_the_chosen_path(tree):
  # Local rewards are a tenth of a number, and the goal pays 1.
  assert _texts(tree, '.row .reward') == [
      'reward 0.10', 'reward 1.40', 'reward 0.20', 'reward 0.30']
  # Returns 0.1, 1.4, 0.2, 0.3: mean 0.5, deviation 0.524.
  assert _texts(tree, '.row .chip') == ['−0.76', '+1.72', '−0.57', '−0.38']
  chosen, = _texts(tree, '.row.chosen')
  assert 'solved' in chosen and 'chosen' in chosen
  assert 'chosen: largest reward' in tree.inner_text('#detail h3')


def test_detail_shows_completion_prompt_and_state(tree):
  assert 'Turn 1, a, candidate 2 of 4' in tree.inner_text('#detail')
  assert runs.HOSTILE in tree.inner_text('.completion')
  assert 'T4/a turn 0 total 0' in tree.inner_text('.prompt')
  assert [board.replace('\n', '') for board in _texts(tree, '.board')] == [
      '########A·······', '########····A···']
  assert len(_texts(tree, '.board .changed')) == 2
  # Completions and states are text, never markup.
  assert '<img src=x onerror="hit=1">' in tree.text_content('#detail')
  assert tree.evaluate('typeof hit') == 'undefined'


def test_slider_goes_through_the_records(tree):
  tree.focus('#source')
  names = [tree.inner_text('#source-name')]
  for _ in range(2):
    tree.keyboard.press('ArrowRight')
    names.append(tree.inner_text('#source-name'))
  assert names == ['step 1', 'step 3', 'after training']
  # The task is kept, and both evaluations are drawn.
  sync_api.expect(tree.locator('.tree')).to_have_count(2)
  assert _texts(tree, '.tree figcaption') == [
      'T4, before training: not solved', 'T4, after training: not solved']
  assert tree.url.endswith('#tree/evaluation/after/1')
  assert _texts(tree, '.chip') == []
  tree.keyboard.press('ArrowLeft')
  assert tree.inner_text('#source-name') == 'step 3'


def test_filters(tree):
  assert _tasks(tree) == list(runs.GOALS)
  tree.select_option('#solved', 'solved')
  solved = _tasks(tree)
  assert {'T1', 'T4'} <= set(solved) and 'T9' not in solved
  assert tree.inner_text('#count') == f'{len(solved)} of 4 tasks'
  tree.select_option('#solved', 'failed')
  assert sorted(solved + _tasks(tree)) == sorted(runs.GOALS)
  tree.select_option('#outcome', 'parse_error')
  assert _tasks(tree) == ['T9']
  tree.select_option('#solved', 'solved')
  assert _tasks(tree) == [] and 'No task' in tree.inner_text('#drawn')


def test_search_finds_completions(tree):
  tree.fill('#search', runs.HOSTILE.upper())
  assert _tasks(tree) == ['T4']
  assert runs.HOSTILE in tree.inner_text('.completion')
  tree.fill('#search', 'x')  # Candidate 3 of role b.
  assert _tasks(tree) == ['T9']
  assert 'Turn 1, b, candidate 3 of 4' in tree.inner_text('#detail')
  tree.fill('#search', 'no completion')
  assert 'No task' in tree.inner_text('#drawn')


@pytest.mark.parametrize('name, num_rows, min_lines', [
    ('chains', 4, 4), ('joint', 2, 2)])
def test_chains_and_joint_actions(
    name, num_rows, min_lines, open_page, reports):
  page = open_page(reports[name], STEP)
  _choose_task(page, 'T9')
  node = page.locator('.node').first
  assert node.locator('.row').count() == num_rows
  # Every candidate continues, so none is chosen.
  assert node.locator('.chosen').count() == 0
  assert page.locator('.lines path').count() >= min_lines
  if name == 'joint':
    assert node.locator('.row').first.locator('.chip').count() == 2
    assert _texts(page, '#detail .candidate h4') == [
        'Completion of a (candidate 1 of 2)',
        'Completion of b (candidate 1 of 2)']
    assert page.inner_text('#detail h3') == 'Turn 1, a + b, joint action 1 of 2'


@pytest.mark.parametrize('damaged', ['sources', 'trees-0'])
def test_damaged_trees_are_reported(damaged, open_page, reports, tmp_path):
  path = tmp_path / 'report.html'
  path.write_text(reports['tree'].read_text().replace(
      f'id="{damaged}">H4sI', f'id="{damaged}">XXXX'))
  assert open_page(path).inner_text('#notice').startswith(
      'The trees cannot be drawn')


def test_new_run_has_empty_sections(open_page, reports, tmp_path):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  shutil.copy(reports['tree'].parent / 'config.json', workdir)
  page = open_page(report.write(workdir))
  assert 'nothing recorded yet' in page.inner_text('#subtitle')
  for section in ('#notice', '#curves', '#evaluations'):
    assert 'No ' in page.inner_text(section)
