"""metrics.py: one line per step, none twice after a resume; the writers."""

import math
import struct
import sys
import time
from unittest import mock

import jax
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from atgrpo_jax import errors
from atgrpo_jax.io import metrics


def _events(workdir):
  """All TensorBoard events; a record is length u64, crc u32, bytes, crc u32."""
  events = []
  for path in sorted((workdir / 'tensorboard').iterdir()):
    data = path.read_bytes()
    while data:
      (length,) = struct.unpack('<Q', data[:8])
      events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
      data = data[16 + length :]
  return events


def test_nonfinite_numbers_are_null_and_read_as_nan(tmp_path):
  values = {'a': np.float32('nan'), 'b': math.inf, 'c': np.array(-np.inf)}
  writer = metrics.MetricsWriter(tmp_path)
  writer.write(1, values)
  writer.close()
  assert (tmp_path / 'metrics.jsonl').read_text() == (
      '{"step": 1, "a": null, "b": null, "c": null}\n')
  line, = metrics.read(tmp_path)
  np.testing.assert_equal(line, {'step': 1} | dict.fromkeys('abc', math.nan))


@pytest.mark.parametrize('text', [
    '{"step": 1}\n{"st', '{"step": "one"}\n', '[1]\n'])
def test_unreadable_metrics_are_a_user_error(text, tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(text)
  with pytest.raises(errors.UserError, match='metrics.jsonl is missing or'):
    metrics.read(tmp_path)


def test_resume_writes_no_line_twice(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, writers=('tensorboard',))
  for step in range(3):
    writer.write(step, {'x': step})
  offset = writer.offset()
  whole = (tmp_path / 'metrics.jsonl').read_bytes()
  assert offset == len(whole)  # A line is on the disk when `write` returns.
  writer.write(3, {'x': 3})
  with open(tmp_path / 'metrics.jsonl', 'ab') as f:
    f.write(b'{"step": 4, "x"')  # Killed in the middle of a line.

  resumed = metrics.MetricsWriter(
      tmp_path, offset=offset, writers=('tensorboard',))
  assert (tmp_path / 'metrics.jsonl').read_bytes() == whole
  assert resumed.offset() == offset
  resumed.write(3, {'x': 3})
  assert [line['step'] for line in metrics.read(tmp_path)] == [0, 1, 2, 3]
  assert resumed.offset() == (tmp_path / 'metrics.jsonl').stat().st_size

  # TensorBoard still has the old events and is told to hide steps from 3 on.
  assert [
      (event.step, value.tag, value.simple_value)
      for event in _events(tmp_path) for value in event.summary.value] == [
          (step, 'x', step) for step in (0, 1, 2, 3, 3)]
  (start,) = [e for e in _events(tmp_path) if e.HasField('session_log')]
  assert start.step == 3
  assert start.session_log.status == event_pb2.SessionLog.START
  # A run killed before its first checkpoint keeps nothing.
  metrics.MetricsWriter(tmp_path, offset=0).write(0, {'x': 7})
  assert metrics.read(tmp_path) == [{'step': 0, 'x': 7}]


@pytest.mark.parametrize('offset', [5, 10_000])
def test_record_of_another_run_is_not_overwritten(offset, tmp_path):
  metrics.MetricsWriter(tmp_path).write(0, {'x': 1})
  with pytest.raises(errors.UserError, match=str(offset)):
    metrics.MetricsWriter(tmp_path, offset=offset)
  assert metrics.read(tmp_path) == [{'step': 0, 'x': 1}]


def test_a_second_trainer_ends_the_first(tmp_path):
  first = metrics.MetricsWriter(tmp_path)
  first.write(1, {'x': 1})
  metrics.MetricsWriter(tmp_path, offset=first.offset()).write(2, {'x': 2})
  with pytest.raises(errors.LostWorkdirError, match='Another process wrote to'):
    first.write(2, {'x': 3})
  assert [line['x'] for line in metrics.read(tmp_path)] == [1, 2]


def test_wandb_resumes_the_run_of_a_workdir(tmp_path, monkeypatch):
  wandb = mock.Mock()
  monkeypatch.setitem(sys.modules, 'wandb', wandb)
  for folder, offset in (('a', None), ('a', 0), ('b', None)):
    writer = metrics.MetricsWriter(
        tmp_path / folder, offset=offset, writers=('wandb',), config={'c': 3})
    writer.write(1, {'x': 2.0})
    writer.close()
  log = wandb.init.return_value.log
  assert log.mock_calls == 3 * [mock.call({'x': 2.0}, step=1)]
  first, second, other = (call.kwargs for call in wandb.init.call_args_list)
  assert first == second
  assert first['resume'] == 'allow' and first['config'] == {'c': 3}
  assert first['id'] != other['id']
  wandb.init.side_effect = RuntimeError('no API key')
  with pytest.raises(errors.UserError, match='no API key.*wandb login'):
    metrics.MetricsWriter(
        tmp_path / 'c', offset=None, writers=('wandb',), config={})


def test_compilations_are_counted():
  counter = metrics.CompileCounter()
  assert not any(counter.lap().values())
  now = time.time() % 1000  # Makes a program that no earlier run has cached.

  def shift():  # A new function, as in another process.
    return jax.jit(lambda x: x + now)

  first_shift = shift()
  first_shift(np.zeros(3))
  first = counter.lap()
  assert first.pop('compile/seconds') > 0
  assert first == {'compile/count': 1, 'compile/from_cache': 0}
  first_shift(np.ones(3))
  first_shift(np.ones(4))
  shift()(np.zeros(3))
  last = counter.lap()
  assert (last['compile/count'], last['compile/from_cache']) == (1, 1)
  assert not any(counter.lap().values())
