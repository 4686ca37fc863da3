"""The page in a browser: what is drawn, and what keys and filters do."""

import json
import pathlib
import shutil

import pytest

from atgrpo_jax.viewer import report
from tests.rollout import scripted
from tests.viewer import browser as browser_lib
from tests.viewer import runs

JOINT = {
    'mode': 'joint', 'phases': (('a', 'b'),), 'group_size': 2,
    'return_type': 'return_to_go'}
PROGRAM = browser_lib.find()

pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason=f'there is no browser on the PATH: {", ".join(browser_lib.NAMES)}')


@pytest.fixture(scope='module')
def browser():
  with browser_lib.start(PROGRAM) as started:
    yield started


@pytest.fixture(scope='module')
def reports(tmp_path_factory):
  """Name -> the report of a run: a tree, chains, or joint actions."""
  folder = tmp_path_factory.mktemp('reports')
  with pytest.MonkeyPatch.context() as monkeypatch:
    scripted.follow_scripts(monkeypatch)
    workdirs = {
        'tree': runs.make(folder / 'tree'),
        'chains': runs.make(
            folder / 'chains', mode='parallel', return_type='return_to_go'),
        'joint': runs.make(folder / 'joint', **JOINT)}
  return {name: report.write(workdir) for name, workdir in workdirs.items()}


@pytest.fixture(scope='module')
def page(browser, reports):
  """The report of a tree; a test begins at T4 of step 0."""
  return browser.open(reports['tree'])


@pytest.fixture
def tree(page):
  """The page, at T4 of step 0 without filters."""
  for name in ('solved', 'role', 'outcome'):
    page.choose(f'#{name}', '')
  page.evaluate(
      "(() => { const it = document.querySelector('#source'); it.value = 1; "
      "it.dispatchEvent(new Event('input')); })()")
  page.wait_for("document.querySelector('[data-task=T4]')")
  page.evaluate("document.querySelector('[data-task=T4]').click()")
  page.wait_for("document.querySelector('.tree').innerText.includes('T4')")
  return page


def _quiet(page):
  assert page.complaints() == [] and page.requests() == []
  assert page.evaluate('typeof hit') == 'undefined'


def test_the_head(tree):
  assert tree.text('h1') == 'Echo'
  assert 'finished after step 4' in tree.text('#subtitle')
  success = tree.texts('.figure .value')[:2]
  assert success == ['25.0 %', '25.0 %']
  assert tree.evaluate("document.querySelector('#notice').hidden")
  _quiet(tree)


def test_the_tree_has_rewards_advantages_and_the_chosen_path(tree):
  first, = tree.texts('.node')[:1]
  # Local rewards are a tenth of a number, and the goal pays 1.
  assert tree.evaluate(
      "[...document.querySelectorAll('.row .paid')].map((it) => "
      "it.textContent)") == [
          'reward 0.10', 'reward 1.40', 'reward 0.20', 'reward 0.30']
  assert 'chosen' in first
  chosen = tree.evaluate(
      "[...document.querySelectorAll('.row.chosen')].map((it) => "
      "it.getAttribute('aria-label'))")
  # Returns 0.1, 1.4, 0.2, 0.3: mean 0.5, deviation 0.524.
  assert chosen == [
      'Turn 1, a, answer 2 of 4: advantage +1.72, ok, reward 1.4, chosen, '
      'solved']
  assert tree.texts('.row .chip') == ['−0.76', '+1.72', '−0.57', '−0.38']
  heat = tree.evaluate(
      "[...document.querySelectorAll('.row .chip')].map((it) => "
      "it.style.getPropertyValue('--heat'))")
  assert heat == ['44%', '100%', '33%', '22%']


def test_the_detail_of_an_answer(tree):
  detail = tree.text('#detail')
  assert 'Turn 1, a, answer 2 of 4' in detail
  assert runs.HOSTILE in tree.text('.said')
  assert 'T4/a turn 0 total 0' in tree.text('.prompt')
  assert tree.texts('.board span')[:8] == ['#'] * 8
  # A is on the first cell before, and on the fifth after.
  boards = tree.evaluate(
      "[...document.querySelectorAll('.board')].map((it) => "
      "it.getAttribute('aria-label'))")
  assert boards == [
      'Before: ########; A.......', 'After: ########; ....A...']
  assert len(tree.texts('.board .changed')) == 2
  assert 'total, before' in detail and 'total, after' in detail
  assert '<img src=x onerror="hit=1">' in tree.evaluate(
      "document.querySelector('#detail').textContent")
  _quiet(tree)


def test_keys_walk_through_a_tree(tree):
  tree.evaluate("document.querySelector('[data-task=T9]').click()")
  tree.wait_for("document.querySelector('.tree').innerText.includes('T9')")
  tree.focus('.row[tabindex="0"]')
  focused = "document.activeElement.getAttribute('aria-label')"
  assert tree.evaluate(focused).startswith('Turn 1, a, answer 1 of 4')
  assert len(tree.evaluate(
      "[...document.querySelectorAll('.row[tabindex=\"0\"]')]")) == 1
  for key, expected in (
      ('ArrowDown', 'Turn 1, a, answer 2 of 4'),
      ('ArrowUp', 'Turn 1, a, answer 1 of 4'),
      ('ArrowUp', 'Turn 1, a, answer 1 of 4'),
      ('End', 'Turn 1, a, answer 4 of 4'),
      # What follows is behind the chosen answer.
      ('ArrowRight', 'Turn 1, b, answer 2 of 4'),
      ('ArrowRight', 'Turn 2, a, answer'),
      ('ArrowLeft', 'Turn 1, b, answer 2 of 4'),
      ('ArrowLeft', 'Turn 1, a, answer 1 of 4')):
    tree.press(key)
    assert tree.evaluate(focused).startswith(expected), key
    assert tree.text('#detail h3').startswith(expected), key
  assert 'no signal' in tree.texts('.node-head')[0]


def test_enter_opens_and_tab_leaves(tree):
  tree.evaluate("document.querySelectorAll('.row')[0].focus()")
  assert 'answer 2 of 4' in tree.text('#detail h3')
  tree.press('Enter')
  assert 'answer 1 of 4' in tree.text('#detail h3')
  tree.press('Tab')
  assert tree.evaluate("Boolean(document.activeElement.closest('.detail'))")


def test_the_slider_goes_through_the_records(tree):
  tree.focus('#source')
  names = [tree.text('#source-name')]
  for _ in range(2):
    tree.press('ArrowRight')
    names.append(tree.text('#source-name'))
  assert names == ['step 0', 'step 2', 'after training']
  assert tree.evaluate(
      "document.querySelector('#source').getAttribute('aria-valuetext')"
  ) == 'after training'
  # The task that was looked at stays, before and after training.
  tree.wait_for("document.querySelectorAll('.tree').length === 2")
  assert tree.texts('.tree figcaption') == [
      'T4, before training: not solved', 'T4, after training: not solved']
  assert tree.evaluate("document.querySelector('#next').disabled")
  assert tree.evaluate('location.hash') == '#tree/evaluation/after/1'
  assert tree.evaluate("document.querySelectorAll('.chip').length") == 0
  tree.evaluate("document.querySelector('#previous').click()")
  assert tree.text('#source-name') == 'step 2'


def test_filters(tree):
  def tasks():
    return tree.evaluate(
        "[...document.querySelectorAll('#tasks button')].map((it) => "
        'it.dataset.task)')

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
  assert tasks() == []
  assert 'No task passes' in tree.text('#drawn')
  tree.choose('#outcome', '')
  tree.focus('#no-signal')
  tree.press(' ')
  without = tasks()
  tree.press(' ')
  assert 'T4' not in without and tasks() == list(runs.GOALS)


def test_curves(tree):
  titles = tree.texts('#charts figcaption strong')
  assert titles[:2] == ['Success', 'Return'] and 'Outcomes of b' in titles
  assert tree.evaluate(
      "[...document.querySelectorAll('#charts canvas')].length") == len(titles)
  label = tree.evaluate(
      "document.querySelector('.plot').getAttribute('aria-label')")
  assert 'validation from 0.0 % to 40.0 %' in label
  # The table has what is drawn: no validation where there was none.
  tree.evaluate("document.querySelector('.card details').open = true")
  tree.wait_for("document.querySelector('.card table')")
  rows = tree.evaluate(
      "[...document.querySelectorAll('.card table tr')].map((row) => "
      '[...row.children].map((cell) => cell.innerText))')
  assert rows[0] == ['step', 'rollout', 'validation']
  assert [row[2] for row in rows[1:]] == ['0.0 %', '–', '20.0 %', '–', '40.0 %']
  tree.choose('#axis', 'tokens')
  assert len(tree.texts('#charts figcaption')) == len(titles)
  tree.choose('#metric', 'time/update')
  assert tree.texts('#other figcaption strong') == ['time/update']
  button = "document.querySelector('.legend button')"
  tree.evaluate(f'{button}.click()')
  assert tree.evaluate(f"{button}.getAttribute('aria-pressed')") == 'false'
  _quiet(tree)


def test_every_control_has_a_name(tree):
  assert tree.evaluate(
      "[...document.querySelectorAll('button, select, input')].filter((it) => "
      "!(it.innerText || it.getAttribute('aria-label') || it.labels?.length))"
      '.length') == 0


@pytest.mark.parametrize(
    'name, rows, lines', [('chains', 4, 4), ('joint', 2, 2)])
def test_other_forms_of_trees(name, rows, lines, browser, reports):
  page = browser.open(reports[name])
  page.evaluate("document.querySelector('[data-task=T9]').click()")
  page.wait_for("document.querySelector('.tree').innerText.includes('T9')")
  first = "document.querySelector('.node')"
  assert page.evaluate(f"{first}.querySelectorAll('.row').length") == rows
  # Each of the first answers goes on.
  assert page.evaluate(
      f"{first}.querySelectorAll('.chosen').length") == 0
  node = page.evaluate("document.querySelectorAll('.lines path').length")
  assert node >= lines
  if name == 'joint':
    assert page.evaluate(
        f"{first}.querySelector('.row').querySelectorAll('.chip').length") == 2
    assert page.texts('#detail .answer h4') == [
        'Answer of a (1 of 2)', 'Answer of b (1 of 2)']
    assert page.text('#detail h3') == 'Turn 1, a + b, joint action 1 of 2'
  _quiet(page)


def test_a_phone_in_the_dark(browser, reports):
  page = browser.open(reports['tree'], width=400, height=800, scheme='dark')
  assert page.evaluate('document.documentElement.scrollWidth') == 400
  assert page.evaluate(
      'getComputedStyle(document.body).backgroundColor') == 'rgb(16, 20, 27)'
  _quiet(page)


def test_a_tree_and_its_list_do_not_move_the_page(browser, reports):
  page = browser.open(
      reports['tree'], width=400, height=300, anchor='#tree/step/000002/3')
  assert page.evaluate('scrollY') == 0
  assert page.evaluate("document.querySelector('#tasks').scrollTop") > 0
  # A heading that a link leads to is not behind the bar of links.
  page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
  page.evaluate("document.querySelector('nav a').click()")
  page.wait_for('scrollY')
  assert page.evaluate(
      "document.querySelector('h2').getBoundingClientRect().top >= "
      "document.querySelector('nav').getBoundingClientRect().bottom")


def test_a_link_to_a_tree(browser, reports):
  page = browser.open(reports['tree'], anchor='#tree/step/000002/2')
  assert page.text('.tree figcaption strong') == 'T9, step 2: not solved'


def test_a_replay_is_drawn_beside_its_record(browser, reports, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(reports['tree'].parent, workdir)
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
    found = page.texts('.tree figcaption strong')
    assert found == titles
    is_graded = '00' in anchor
    assert page.evaluate(
        "document.querySelector('#no-signal').disabled") != is_graded
    _quiet(page)


def test_two_runs(browser, reports):
  folder = reports['joint'].parent
  compared = report.write(folder, reports['tree'].parent)
  page = browser.open(compared)
  assert page.text('#runs-legend').split() == ['joint', 'tree']
  assert 'rollout, joint' in page.text('.legend')
  assert 'rollout, tree' in page.text('.legend')
  assert 'rollout.mode' not in page.texts('td')  # Their configs are equal.
  _quiet(page)


@pytest.mark.parametrize('damage, words', [
    ('data', 'This page cannot be drawn'),
    ('trees-1', 'The trees of step 0 cannot be read')])
def test_a_damaged_page_says_so(damage, words, browser, reports, tmp_path):
  path = tmp_path / 'report.html'
  path.write_text(reports['tree'].read_text().replace(
      f'id="{damage}">H4sI', f'id="{damage}">XXXX'))
  page = browser.open(
      path, ready="document.querySelector('#notice')?.innerText.includes("
      "'cannot be')")
  assert page.text('#notice').startswith(words)
  assert not page.evaluate("document.querySelector('#notice').hidden")


def test_what_is_left_out_is_told(browser, reports, tmp_path):
  workdir = reports['tree'].parent
  text = reports['tree'].read_text()
  try:
    page = browser.open(report.write(workdir, max_bytes=4))
    assert page.text('#count') == (
        '1 of 1 task. Not in this page: the last 3 of 4; they are in '
        'groups/000000.jsonl.gz.')
    _quiet(page)
  finally:
    reports['tree'].write_text(text)


def test_a_run_without_a_step(browser, reports, tmp_path):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  config = pathlib.Path(reports['tree'].parent / 'config.json').read_text()
  (workdir / 'config.json').write_text(json.dumps(json.loads(config)))
  page = browser.open(report.write(workdir))
  assert 'nothing recorded yet' in page.text('#subtitle')
  assert page.text('#no-trees') == 'No trees are recorded yet.'
  assert page.text('#no-curves') == 'No training step is over yet.'
  assert 'None is done yet' in page.text('#evaluations-body')
  _quiet(page)


def test_policies_in_other_roles_make_a_matrix(browser, reports, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(reports['tree'].parent, workdir)
  after = json.loads((workdir / 'evals/after.json').read_text())
  roles, policies = zip(*after['policy_map'].items())
  (workdir / 'evals/swapped.json').write_text(json.dumps(after | {
      'policy_map': dict(zip(roles, reversed(policies))), 'success': 0.5}))
  page = browser.open(report.write(workdir))
  title = f'{roles[0]} (rows) and {roles[1]} (columns) played by these policies'
  assert title in page.text('#evaluations-body h3')
  assert '50.0 %' in page.texts('#evaluations-body table')[1]
  _quiet(page)


@pytest.mark.parametrize('level, is_told', [('kernel', False), ('bwrap', True)])
def test_evaluations_in_other_sandboxes_are_not_compared(
    browser, reports, tmp_path, level, is_told):
  workdir = tmp_path / 'run'
  shutil.copytree(reports['tree'].parent, workdir)
  after = json.loads((workdir / 'evals/after.json').read_text())
  after['budget']['program_runs'] = 3
  for name, sandbox in (('before', 'kernel'), ('after', level)):
    (workdir / f'evals/{name}.json').write_text(
        json.dumps(after | {'sandbox': sandbox}))
  page = browser.open(report.write(workdir))
  told = 'sandbox level kernel, and bwrap after'
  assert (told in page.text('#figures')) == is_told
  assert level in page.text('#evaluations-body')
  _quiet(page)
