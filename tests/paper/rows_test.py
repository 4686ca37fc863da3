"""rows.py: what is taken together of the seeds of a row."""

import itertools

import pytest

from atgrpo_jax import errors
from paper import cells
from paper import game_cells
from paper import problem_cells
from paper import published
from paper import rows
from tests.paper import finished_runs


def test_the_memory_is_that_of_devices_where_they_tell():
  runs = finished_runs.seeds('main/plan_path/at_grpo', 48, 46)
  assert rows.read_row(runs, 'main/plan_path/at_grpo', 'after').peak_gib == 1.3
  for step in runs['main/plan_path/at_grpo/seed-1'].steps:
    step['memory/device_peak_gib'] = 9.0
  assert rows.read_row(runs, 'main/plan_path/at_grpo', 'after').peak_gib == 9.0


def test_a_row_is_no_other_whose_name_begins_alike():
  runs = finished_runs.seeds('main/plan_path/at_grpo_per_role', 48)
  assert rows.read_row(runs, 'main/plan_path/at_grpo', 'after') is None


def test_seeds_on_other_tasks_are_refused():
  runs = finished_runs.some() | {
      'main/plan_path/mas_grpo/seed-2': finished_runs.run(
          after=1, split_hash='other')}
  with pytest.raises(errors.UserError, match='seeds of .*mas_grpo.*different'):
    rows.read_systems(runs)


@pytest.mark.parametrize('name, words', [
    ('after', 'delete its evals/after.json'), ('before', 'its workdir')])
def test_rows_with_tasks_that_are_left_out_are_refused(name, words):
  # Bite: what is left out counts as not solved.
  runs = {'main/plan_path/at_grpo/seed-0': finished_runs.run(before=5, after=9)}
  evaluation = runs['main/plan_path/at_grpo/seed-0'].evaluations[name]
  evaluation['successes'] = '-' + evaluation['successes'][1:]
  with pytest.raises(errors.UserError, match=f'{name}.*left out.*{words}'):
    rows.read_row(runs, 'main/plan_path/at_grpo', name)


def test_every_published_row_has_its_place():
  shown = {name for *_, name in rows.SYSTEMS.values()} | {
      cell.path.split('/')[2] for cell in cells.make_cells('nano', 1)}
  for table in (published.QWEN3_1_7B, published.QWEN3_8B):
    assert table.keys() <= shown
    assert {task for row in table.values() for task in row} <= {
        *game_cells.TASKS, *itertools.chain(
            *problem_cells.BENCHMARKS.values())}
