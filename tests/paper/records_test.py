"""Records survive storage unchanged, and errors name the damaged file."""

import pathlib
import re

import pandas as pd
import pytest

from atgrpo_jax import errors
from paper import records
from tests import checkout
from tests.paper import finished_runs

STORED = checkout.ROOT / 'paper/results/nano'
WORKDIR = 'main/plan_path/at_grpo/seed-1'


def test_stored_results_are_written_as_they_were_read(tmp_path):
  records.write(tmp_path, records.read(STORED))
  for name in (records.EVALUATIONS, records.SPLITS, records.STEPS):
    assert (tmp_path / name).read_bytes() == (STORED / name).read_bytes()


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


@pytest.mark.parametrize('file, old, new, named', [
    ('metrics.jsonl', '.*', '', 'step'),
    ('metrics.jsonl', 'shared/num_updates', 'shared/updates',
     'POLICY/num_updates'),
    ('config.json', '.*', '{}', 'not the config'),
    ('config.json', '}', '', 'not the config'),
    ('evals/after.json', 'clusters', 'kinds', 'clusters')])
def test_damaged_workdir_is_named(tmp_path, file, old, new, named):
  finished_runs.write(tmp_path, finished_runs.some())
  path = tmp_path / WORKDIR / file
  path.write_text(re.sub(old, new, path.read_text(), flags=re.DOTALL))
  with pytest.raises(errors.UserError, match=f'{file}.*{named}'):
    records.read_workdirs(tmp_path)


# A changed line, and the file that the error names.
@pytest.mark.parametrize('file, number, change, named', [
    ('evaluations.jsonl', 2, lambda x: x[:40] + '\n', 'evaluations'),
    ('evaluations.jsonl', 3, lambda x: x.replace('mean_turns"', 'x"'),
     'evaluations.*no mean_turns'),
    ('evaluations.jsonl', 1, lambda x: x.replace('s": "1', 's": "'),
     'evaluations.*splits'),
    ('splits.jsonl', 1, lambda x: x.replace('abc', 'x'), "evaluations.*'abc'"),
    ('splits.jsonl', 1, lambda x: '[]\n', 'splits'),
    ('steps.csv', 1, lambda x: x.replace('time/step', 'x'),
     'steps.*time/step'),
    ('steps.csv', 5, lambda x: x[:40] + '\n', 'steps'),
    ('steps.csv', 28, lambda x: x[:-2], 'steps'),
    ('steps.csv', 28, lambda x: '', 'evaluations.*lacks steps'),
    ('steps.csv', 2, lambda x: x.replace('400000', 'many'), 'steps')])
def test_damaged_records_are_named(tmp_path, file, number, change, named):
  records.write(tmp_path, finished_runs.some())
  path: pathlib.Path = tmp_path / file
  lines = path.read_text().splitlines(keepends=True)
  lines[number - 1] = change(lines[number - 1])
  path.write_text(''.join(lines))
  with pytest.raises(errors.UserError, match=f'{named}.*--keep'):
    records.read(tmp_path)
