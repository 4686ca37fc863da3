"""Records survive storage unchanged, and errors name the damaged file."""

import pandas as pd
import pytest

from atgrpo_jax import errors
from paper import records
from tests.paper import finished_runs

WORKDIR = 'main/plan_path/at_grpo/seed-1'


def test_workdirs_are_stored_bit_for_bit(tmp_path):
  runs = finished_runs.merge(
      finished_runs.some(),
      finished_runs.run(WORKDIR, before=5, after=48, budget=1_250_000),
      finished_runs.run(
          'main/sokoban/at_grpo/seed-0', before=5, split_hash='other',
          clusters=[0] * finished_runs.NUM_TASKS))
  steps = runs.steps.copy()
  for name, value in (('validation/success', 0.1 + 0.2),
                      ('validation/turns_to_solve', 1e22),
                      ('tool/advantage_mean', -5e-324)):
    steps.loc[WORKDIR, name] = value
  runs = records.Records(runs.evaluations, steps)
  finished_runs.write(tmp_path / 'out', runs)
  read = records.read_workdirs(tmp_path / 'out')
  records.write(tmp_path / 'kept', read)
  for found in (read, records.read(tmp_path / 'kept')):
    assert found.evaluations == runs.evaluations
    pd.testing.assert_frame_equal(
        found.steps.sort_index(kind='stable'),
        runs.steps.sort_index(kind='stable'), check_exact=True,
        check_like=True)


@pytest.mark.parametrize('file, old, new', [
    (f'{WORKDIR}/metrics.jsonl', 'time/step', 'x'),
    (f'{WORKDIR}/config.json', '}', ''),
    (f'{WORKDIR}/evals/after.json', 'clusters', 'kinds'),
    ('evaluations.jsonl', '}', ''), ('splits.jsonl', 'clusters', 'x'),
    ('steps.csv', '400000', 'many')])
def test_damaged_file_is_named(tmp_path, file, old, new):
  write, read = records.write, records.read
  if file.startswith(WORKDIR):
    write, read = finished_runs.write, records.read_workdirs
  write(tmp_path, finished_runs.some())
  path = tmp_path / file
  path.write_text(path.read_text().replace(old, new))
  with pytest.raises(errors.UserError, match=file):
    read(tmp_path)
