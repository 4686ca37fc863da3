"""workdirs.py: what is read of finished runs, refused, and kept."""

import json

import pytest

from atgrpo_jax import errors
from atgrpo_jax.runtime import metrics
from paper import tables
from paper import workdirs
from tests.paper import finished_runs


def test_the_memory_is_that_of_devices_where_they_tell(results):
  row = results / 'main/plan_path/at_grpo'
  assert workdirs.read_row(row, 'after').peak_gib == 1.3
  finished_runs.write_steps(row / 'seed-1', [
      {**line, 'memory/device_peak_gib': 9.0}
      for line in metrics.read(row / 'seed-1')])
  assert workdirs.read_row(row, 'after').peak_gib == 9.0


def test_what_is_kept_gives_the_same_tables(results, tmp_path):
  for path in results.glob('**/evals'):
    (path.parent / 'checkpoints').mkdir()
    (path.parent / 'checkpoints/large').touch()
  paths = tables.make_tables(results)
  folder = tmp_path / 'kept'
  workdirs.keep(results, folder)
  again = tables.make_tables(folder)
  assert [path.read_bytes() for path in again] == [
      path.read_bytes() for path in paths]
  names = {path.name for path in folder.rglob('*') if path.is_file()}
  assert names - {path.name for path in paths} == {
      'config.json', 'metrics.jsonl', 'after.json', 'before.json',
      'evaluation.json'}


def test_a_run_without_steps_is_named(results):
  finished_runs.write_steps(results / 'main/plan_path/at_grpo/seed-1', [])
  with pytest.raises(errors.UserError, match='seed-1/metrics.jsonl is empty'):
    workdirs.read_systems(results)


def test_files_of_older_versions_are_named(results):
  workdir = results / 'main/plan_path/at_grpo/seed-1'
  path = workdir / 'metrics.jsonl'
  text = path.read_text()
  path.write_text(text.replace('shared/num_updates', 'shared/updates'))
  with pytest.raises(
      errors.UserError, match='no POLICY/num_updates.*older.*run it again'):
    workdirs.read_systems(results)
  path.write_text(text)
  for config in ('{}', 'no JSON'):
    (workdir / 'config.json').write_text(config)
    with pytest.raises(errors.UserError, match='config.json is no config'):
      workdirs.read_systems(results)
  result = json.loads((workdir / 'evals/after.json').read_text())
  del result['clusters']
  (workdir / 'evals/after.json').write_text(json.dumps(result))
  with pytest.raises(
      errors.UserError, match='after.json .*without clusters.*run it again'):
    workdirs.read_systems(results)


def test_seeds_on_other_tasks_are_refused(results):
  row = results / 'main/plan_path/mas_grpo'
  finished_runs.write(row, 2, 1, split_hash='other')
  with pytest.raises(errors.UserError, match='seeds in .*mas_grpo.*different'):
    workdirs.read_systems(results)
