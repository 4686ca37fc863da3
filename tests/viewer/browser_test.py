"""The report in a browser: what a reader sees, clicks and filters."""

import json
import shutil

import pytest

from atgrpo_jax.viewer import report
from tests.rollout import scripted
from tests.viewer import browser as browser_lib
from tests.viewer import runs

PROGRAM = browser_lib.find()

pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason=f'no browser on the PATH: {", ".join(browser_lib.NAMES)}')


@pytest.fixture(scope='module')
def browser():
  with browser_lib.start(PROGRAM) as started:
    yield started


@pytest.fixture(scope='module')
def reports(tmp_path_factory):
  """Name -> report of a run: a tree, chains, or joint actions."""
  folder = tmp_path_factory.mktemp('reports')
  with pytest.MonkeyPatch.context() as monkeypatch:
    scripted.follow_scripts(monkeypatch)
    workdirs = {
        'tree': runs.make(folder / 'tree'),
        'chains': runs.make(
            folder / 'chains', mode='parallel', return_type='return_to_go'),
        'joint': runs.make(
            folder / 'joint', mode='joint', phases=(('a', 'b'),), group_size=2,
            return_type='return_to_go')}
  return {name: report.write(workdir) for name, workdir in workdirs.items()}


@pytest.fixture
def workdir(reports, tmp_path):
  """A copy of the run with a tree."""
  return shutil.copytree(reports['tree'].parent, tmp_path / 'run')


@pytest.fixture
def tree(browser, reports):
  """The page at task T4 of step 0."""
  page = browser.open(reports['tree'])
  _choose_task(page, 'T4')
  return page


def _choose_task(page, task):
  page.evaluate(f"document.querySelector('[data-task={task}]').click()")
  page.wait_for(
      "document.querySelector('.tree figcaption').innerText.includes("
      f"'{task}')")


def _all(page, selector, expression):
  """A JavaScript expression of each element `it` that matches."""
  return page.evaluate(
      f'[...document.querySelectorAll({json.dumps(selector)})].map('
      f'(it) => {expression})')


def _assert_quiet(page):
  """No errors, no requests, and no script of a completion has run."""
  assert page.complaints() == [] and page.requests() == []
  assert page.evaluate('typeof hit') == 'undefined'


def test_tree_shows_rewards_advantages_and_the_chosen_path(tree):
  # Local rewards are a tenth of a number, and the goal pays 1.
  assert _all(tree, '.row .reward', 'it.textContent') == [
      'reward 0.10', 'reward 1.40', 'reward 0.20', 'reward 0.30']
  # Returns 0.1, 1.4, 0.2, 0.3: mean 0.5, deviation 0.524.
  assert tree.texts('.row .chip') == ['−0.76', '+1.72', '−0.57', '−0.38']
  assert _all(tree, '.row .chip', "it.style.getPropertyValue('--heat')") == [
      '44%', '100%', '33%', '22%']
  assert _all(tree, '.row.chosen', "it.getAttribute('aria-label')") == [
      'Turn 1, a, candidate 2 of 4: advantage +1.72, ok, reward 1.4, chosen, '
      'solved']


def test_detail_shows_completion_prompt_and_state(tree):
  detail = tree.text('#detail')
  assert 'Turn 1, a, candidate 2 of 4' in detail
  assert runs.HOSTILE in tree.text('.completion')
  assert 'T4/a turn 0 total 0' in tree.text('.prompt')
  assert _all(tree, '.board', "it.getAttribute('aria-label')") == [
      'Before: ########; A.......', 'After: ########; ....A...']
  assert len(tree.texts('.board .changed')) == 2
  assert 'total, before' in detail and 'total, after' in detail
  assert '<img src=x onerror="hit=1">' in tree.evaluate(
      "document.querySelector('#detail').textContent")
  _assert_quiet(tree)


def test_keyboard_selects_a_candidate(tree):
  tree.evaluate("document.querySelectorAll('.row')[0].focus()")
  tree.press('Tab', 'Tab', 'Enter')
  assert 'candidate 3 of 4' in tree.text('#detail h3')


def test_slider_goes_through_the_records(tree):
  tree.focus('#source')
  names = [tree.text('#source-name')]
  for _ in range(2):
    tree.press('ArrowRight')
    names.append(tree.text('#source-name'))
  assert names == ['step 0', 'step 2', 'after training']
  # The task is kept, and both evaluations are drawn.
  tree.wait_for("document.querySelectorAll('.tree').length === 2")
  assert tree.texts('.tree figcaption') == [
      'T4, before training: not solved', 'T4, after training: not solved']
  assert tree.evaluate("document.querySelector('#next').disabled")
  assert tree.evaluate('location.hash') == '#tree/evaluation/after/1'
  assert tree.texts('.chip') == []
  tree.evaluate("document.querySelector('#previous').click()")
  assert tree.text('#source-name') == 'step 2'


def test_filters(tree):
  def tasks():
    return _all(tree, '#tasks button', 'it.dataset.task')

  assert tasks() == list(runs.GOALS)
  tree.choose('#solved', 'solved')
  solved = tasks()
  assert {'T1', 'T4'} <= set(solved) and 'T9' not in solved
  assert tree.text('#count') == f'{len(solved)} of 4 tasks'
  tree.choose('#solved', 'failed')
  assert sorted(solved + tasks()) == sorted(runs.GOALS)
  tree.choose('#solved', '')
  tree.choose('#outcome', 'parse_error')
  assert tasks() == ['T9']
  tree.choose('#role', 'a')
  assert tasks() == [] and 'No task passes' in tree.text('#drawn')
  tree.choose('#outcome', '')
  tree.focus('#zero-advantage')
  tree.press(' ')
  assert 'T4' not in tasks()


@pytest.mark.parametrize('name, num_rows, min_lines', [
    ('chains', 4, 4), ('joint', 2, 2)])
def test_chains_and_joint_actions(
    name, num_rows, min_lines, browser, reports):
  page = browser.open(reports[name])
  _choose_task(page, 'T9')
  node = "document.querySelector('.node')"
  assert page.evaluate(f"{node}.querySelectorAll('.row').length") == num_rows
  # Every candidate continues, so none is chosen.
  assert page.evaluate(f"{node}.querySelectorAll('.chosen').length") == 0
  assert len(_all(page, '.lines path', '1')) >= min_lines
  if name == 'joint':
    assert page.evaluate(
        f"{node}.querySelector('.row').querySelectorAll('.chip').length") == 2
    assert page.texts('#detail .candidate h4') == [
        'Completion of a (candidate 1 of 2)',
        'Completion of b (candidate 1 of 2)']
    assert page.text('#detail h3') == 'Turn 1, a + b, joint action 1 of 2'
  _assert_quiet(page)


def test_replay_is_drawn_beside_its_record(browser, workdir):
  (workdir / 'replays').mkdir()
  for path in ('groups/000002.jsonl.gz', 'evals/after.jsonl.gz'):
    shutil.copy(workdir / path, workdir / 'replays')
  written = report.write(workdir)
  for anchor, titles in (
      ('step/000002/2', ['T9, step 2: not solved']),
      ('replay/000002/2', [
          'T9, step 2: not solved', 'T9, replay of step 2: not solved']),
      ('replay/after/0', [
          'T1, after training: solved',
          'T1, replay of after training: solved'])):
    page = browser.open(written, anchor=f'#tree/{anchor}')
    assert page.texts('.tree figcaption strong') == titles


@pytest.mark.parametrize('damaged', ['sources', 'trees-1'])
def test_damaged_trees_are_reported(damaged, browser, reports, tmp_path):
  path = tmp_path / 'report.html'
  path.write_text(reports['tree'].read_text().replace(
      f'id="{damaged}">H4sI', f'id="{damaged}">XXXX'))
  page = browser.open(path)
  assert page.text('#notice').startswith('The trees cannot be drawn')


def test_new_run_has_empty_sections(browser, reports, tmp_path):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  shutil.copy(reports['tree'].parent / 'config.json', workdir)
  page = browser.open(report.write(workdir))
  assert 'nothing recorded yet' in page.text('#subtitle')
  assert page.text('#notice') == 'No trees are recorded yet.'
  for section in ('#curves', '#evaluations'):
    assert 'No ' in page.text(section)
  _assert_quiet(page)
