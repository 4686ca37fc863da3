"""records.py: what is read of runs survives being kept; damage is named."""

import math
import re

import pytest

from atgrpo_jax import errors
from paper import records
from tests.paper import finished_runs

WORKDIR = 'main/plan_path/at_grpo/seed-1'


def test_what_is_kept_is_what_workdirs_gave(tmp_path):
  runs = finished_runs.some()
  runs[WORKDIR] = finished_runs.run(before=5, after=48, budget=1_250_000)
  runs[WORKDIR].steps[1].update({
      'validation/success': 0.1 + 0.2, 'validation/turns_to_solve': 1e22,
      'tool/advantage_mean': -5e-324, 'diagnosis/tool/entropy': math.nan,
      'diagnosis/tool/grad_norm': -0.0, 'diagnosis/tool/kl_to_start': math.inf})
  runs['main/sokoban/at_grpo/seed-0'] = finished_runs.run(
      before=5, split_hash='other', clusters=[0] * finished_runs.NUM_TASKS)
  finished_runs.write(tmp_path / 'out', runs)
  (tmp_path / 'out' / WORKDIR / 'checkpoints').mkdir()
  read = records.read_workdirs(tmp_path / 'out')
  records.write(tmp_path / 'kept', read)
  assert {path.name for path in (tmp_path / 'kept').iterdir()} == {
      'evaluations.jsonl', 'splits.jsonl', 'steps.csv'}
  for found in (read, records.read(tmp_path / 'kept')):
    assert found.keys() == runs.keys()
    for workdir, run in found.items():
      assert run.evaluations == runs[workdir].evaluations
      # As text, since NaN equals nothing, and -0.0 another number.
      assert [str(sorted(step.items())) for step in run.steps] == [
          str(sorted(step.items())) for step in runs[workdir].steps]


@pytest.mark.parametrize('file, old, new, words', [
    ('metrics.jsonl', '.*', '', r'metrics.jsonl:1 has no step.*run it again'),
    ('metrics.jsonl', 'shared/num_updates', 'shared/updates',
     'metrics.jsonl:1 has no POLICY/num_updates.*older.*run it again'),
    ('config.json', '.*', '{}', 'config.json is no config'),
    ('config.json', '}', '', 'config.json is no config'),
    ('evals/after.json', 'clusters', 'kinds',
     'after.json .*no clusters.*put it back')])
def test_a_workdir_that_cannot_be_read_is_named(
    tmp_path, file, old, new, words):
  finished_runs.write(tmp_path, finished_runs.some())
  path = tmp_path / WORKDIR / file
  path.write_text(re.sub(old, new, path.read_text(), flags=re.DOTALL))
  with pytest.raises(errors.UserError, match=f'seed-1.*{words}'):
    records.read_workdirs(tmp_path)


# The file, the line that is changed, how, and what is said of which line.
@pytest.mark.parametrize('file, number, change, words', [
    ('evaluations.jsonl', 2, lambda x: x[:40] + '\n', 'evaluations.jsonl:2 '),
    ('evaluations.jsonl', 3, lambda x: x.replace('mean_turns"', 'x"'),
     'evaluations.jsonl:3 .*no mean_turns'),
    ('evaluations.jsonl', 1, lambda x: x.replace('s": "1', 's": "'),
     'evaluations.jsonl:1 .*do not fit'),
    ('splits.jsonl', 1, lambda x: x.replace('abc', 'x'),
     "evaluations.jsonl:1 .*'abc'"),
    ('splits.jsonl', 1, lambda x: '[]\n', 'splits.jsonl:1 '),
    ('steps.csv', 1, lambda x: x.replace('time/step', 'x'),
     'steps.csv:2 .*no time/step'),
    ('steps.csv', 5, lambda x: x[:40] + '\n', r'steps.csv:5 .*values for 1\d'),
    ('steps.csv', 28, lambda x: x[:-2], 'steps.csv:28 .*cut off'),
    ('steps.csv', 28, lambda x: '', 'evaluations.jsonl:14 .*3 steps'),
    ('steps.csv', 2, lambda x: x.replace('400000', 'many'),
     'steps.csv:2 .*many')])
def test_a_damaged_line_is_named(tmp_path, file, number, change, words):
  records.write(tmp_path, finished_runs.some())
  path = tmp_path / file
  lines = path.read_text().splitlines(keepends=True)
  lines[number - 1] = change(lines[number - 1])
  path.write_text(''.join(lines))
  with pytest.raises(errors.UserError, match=f'{words}.*--keep'):
    records.read(tmp_path)
