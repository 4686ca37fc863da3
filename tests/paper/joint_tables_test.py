"""joint_tables.py: quality, cost and published numbers of MAGRPO's tasks."""

import numpy as np
import pytest

from atgrpo_jax import errors
from paper import cells
from paper import joint_cells
from paper import joint_tables
from paper import published
from paper import records
from paper import statistics
from tests.paper import finished_runs

TERMS = {
    'structure': 0.5, 'ratio': 1.0, 'vocabulary': 0.1, 'transitions': 0.2,
    'jaccard': 0.3}


def _run(mean_return, timed='', **given):
  """A run whose tasks return a little more or less, in turns."""
  found = finished_runs.run(**given)
  num = finished_runs.NUM_TASKS
  returns = (mean_return + 0.1 * (-1.0)**np.arange(num)).tolist()
  evaluations = {
      name: {
          **evaluation, 'returns': returns, 'reward_terms': TERMS,
          'budget': {'completion_tokens': 50 * num, 'model_calls': 2 * num,
                     'program_runs': 0}}
      for name, evaluation in found.evaluations.items()}
  if timed:
    seconds = {'response_seconds': 0.25, 'tokens_per_second': 200.0}
    evaluations[timed] = {
        **evaluations.get(timed, {'token_budget': 0}), **seconds,
        'num_timed': 5}
  return records.Run(evaluations, found.steps)


def _runs():
  return {
      'writing/posts/magrpo/seed-0': _run(0.90, 'timed', after=45),
      'writing/posts/magrpo/seed-1': _run(0.80, 'timed', after=40),
      'writing/posts/sa_grpo/seed-0': _run(0.70, after=30, budget=1_000_000),
      'writing/posts/untrained_pair/seed-0': _run(
          0.3, 'evaluation', evaluation=5),
      'writing/tldr/magrpo/seed-0': _run(0.9, after=45)}


def test_a_table_for_each_task():
  table, other = joint_tables.make_tables(_runs())
  assert (table.title, other.title) == ('Posts: writing', 'TL;DR: writing')
  rows = {row[0]: dict(zip(table.header, row)) for row in table.rows}
  assert list(rows) == ['Parallel generation', 'Single agent + GRPO', 'MAGRPO']
  returns = np.array([[0.9], [0.8]]) + 0.1 * (-1.0)**np.arange(
      finished_runs.NUM_TASKS)
  low, high = statistics.mean_interval(returns, range(returns.shape[1]))
  assert rows['MAGRPO'] == {
      '': 'MAGRPO', 'return %': '85.0', 'seeds': '2',
      '95 %': f'{100 * low:.1f} … {100 * high:.1f}', 'minus MAGRPO': '',
      'p': '', 'structure %': '80.0', 'style %': '50.0', 'coherence %': '50.0',
      'all levels %': '85.0', 'response s': '0.25', 'tokens/s': '200',
      'tokens a task': '50', 'calls a task': '2', 'updates': '3',
      'budget used': '', 'generated tokens': '1.2 M', 'minutes': '2.0',
      **dict.fromkeys(published.JOINT['writing'], '')}
  assert rows['Single agent + GRPO'].items() >= {
      'minus MAGRPO': '−15.0', 'p': '', '95 %': '', 'response s': '',
      'budget used': '120 %'}.items()
  assert rows['Parallel generation'].items() >= {
      'return %': '30.0', 'response s': '0.25', 'updates': ''}.items()
  assert dict(zip(other.header, other.rows[0])).items() >= {
      'arXiv 2508.04652, return %': '94.5',
      'arXiv 2601.21972, return %': '93.5',
      'arXiv 2601.21972, response s': '1.8'}.items()


def test_rows_on_other_tasks_are_refused():
  runs = _runs() | {'writing/posts/iac/seed-0': _run(
      0.5, after=1, split_hash='other')}
  with pytest.raises(errors.UserError, match='Posts: writing.*different tasks'):
    joint_tables.make_tables(runs)


def test_of_functions_each_turn_is_paid():
  terms = {'structure': 1., 'syntax': .5, 'tests': .25, 'cooperation': 1.5}
  run = _run(1.5, after=30)
  for evaluation in run.evaluations.values():
    evaluation |= {'reward_terms': terms, 'mean_turns': 2.0}
  table, = joint_tables.make_tables({'functions/humaneval/magrpo/seed-0': run})
  assert table.title == 'HumanEval: functions'
  assert dict(zip(table.header, table.rows[0])).items() >= {
      'return %': '75.0', 'structure %': '100.0', 'syntax %': '100.0',
      'tests %': '25.0', 'cooperation %': '100.0', 'all tests %': '60.0',
      'arXiv 2508.04652, return %': '86.7',
      'arXiv 2508.04652, tests %': '68.4'}.items()
  assert 'share of 2.1 points' in table.note


@pytest.mark.parametrize('table', joint_cells.TASKS)
def test_every_cell_has_its_row_and_every_published_number(table):
  made = {
      cell.path.split('/')[2] for cell in cells.make_cells('8b', 1)
      if cell.path.startswith(f'{table}/')}
  shown = {folder for folder, _ in joint_tables.ROWS.values()}
  # Nobody discusses functions.
  assert shown - made <= {'untrained_discussion'} and made <= shown
  for kinds in published.JOINT[table].values():
    assert kinds.keys() <= joint_cells.TASKS[table].keys()
    for rows in kinds.values():
      assert rows.keys() <= joint_tables.ROWS.keys()
