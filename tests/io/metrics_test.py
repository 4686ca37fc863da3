"""metrics.py: one line per write, no line twice after a resume."""

import io
import json
import math
import struct
import sys
import time

import jax
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from atgrpo_jax import errors
from atgrpo_jax.io import metrics


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()

  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  return [
      json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def _events(workdir):
  """Every event of every file: length u64, crc u32, bytes, crc u32."""
  events = []
  for path in sorted((workdir / 'tensorboard').iterdir()):
    data = path.read_bytes()
    while data:
      (length,) = struct.unpack('<Q', data[:8])
      events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
      data = data[16 + length :]
  return events


def test_write_is_on_disk_at_once(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, writers=('tensorboard',))
  writer.write(0, {'train/loss': 0.5, 'tokens': 12})
  # Nothing was closed: this is what is left after a kill.
  assert _lines(tmp_path) == [{'step': 0, 'train/loss': 0.5, 'tokens': 12}]
  (event,) = [e for e in _events(tmp_path) if e.HasField('summary')]
  assert event.step == 0
  assert {v.tag: v.simple_value for v in event.summary.value} == {
      'train/loss': 0.5, 'tokens': 12}
  with pytest.raises(ValueError, match="called 'step'"):
    writer.write(1, {'step': 1})
  writer.close()


def test_what_is_not_finite_is_written_and_read_back(tmp_path):
  values = {'a': np.float32('nan'), 'b': math.inf, 'c': np.array(-np.inf)}
  writer = metrics.MetricsWriter(tmp_path, writers=('tensorboard',))
  writer.write(1, values)
  writer.close()
  assert _lines(tmp_path) == [
      {'step': 1, 'a': 'NaN', 'b': 'Infinity', 'c': '-Infinity'}]
  line, = metrics.read(tmp_path)
  np.testing.assert_equal(line, {'step': 1} | {
      name: float(value) for name, value in values.items()})


@pytest.mark.parametrize('text', [
    '{"step": 1}\n{"st', '{"step": "one"}\n', '[1]\n', '{"step": null}\n'])
def test_what_cannot_be_read_is_named(text, tmp_path):
  with pytest.raises(errors.UserError, match='No such file.*metrics.jsonl'):
    metrics.read(tmp_path)
  (tmp_path / 'metrics.jsonl').write_text(text)
  with pytest.raises(errors.UserError, match='metrics.jsonl is cut off'):
    metrics.read(tmp_path)


def test_resume_writes_no_line_twice(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, writers=('tensorboard',))
  for step in range(3):
    writer.write(step, {'x': step})
  offset = writer.offset()
  whole = (tmp_path / 'metrics.jsonl').read_bytes()
  assert offset == len(whole)
  writer.write(3, {'x': 3})
  with open(tmp_path / 'metrics.jsonl', 'ab') as f:
    f.write(b'{"step": 4, "x"')  # Killed in the middle of a line.

  resumed = metrics.MetricsWriter(
      tmp_path, offset=offset, writers=('tensorboard',))
  assert (tmp_path / 'metrics.jsonl').read_bytes() == whole
  assert resumed.offset() == offset
  resumed.write(3, {'x': 3})
  assert [line['step'] for line in _lines(tmp_path)] == [0, 1, 2, 3]
  assert resumed.offset() == (tmp_path / 'metrics.jsonl').stat().st_size

  # The first writer's events are still there, and TensorBoard is told to
  # forget those from step 3 on.
  steps = [e.step for e in _events(tmp_path) if e.HasField('summary')]
  assert steps == [0, 1, 2, 3, 3]
  (start,) = [e for e in _events(tmp_path) if e.HasField('session_log')]
  assert start.step == 3
  assert start.session_log.status == event_pb2.SessionLog.START
  # Before the first checkpoint nothing is kept.
  metrics.MetricsWriter(tmp_path, offset=0).write(0, {'x': 7})
  assert _lines(tmp_path) == [{'step': 0, 'x': 7}]


@pytest.mark.parametrize('offset, words', [
    (None, 'bytes of another run'), (5, 'no line that ends at byte 5'),
    (10_000, 'no line that ends at byte 10000')])
def test_lines_of_another_run_are_left_alone(offset, words, tmp_path):
  metrics.MetricsWriter(tmp_path, writers=('tensorboard',)).write(0, {'x': 1})
  with pytest.raises(errors.UserError, match=words):
    metrics.MetricsWriter(
      tmp_path, offset=offset, writers=('tensorboard',))
  assert _lines(tmp_path) == [{'step': 0, 'x': 1}]


_VALUES = {
    'rollout/success': 0.25, 'validation/success': 0.125, 'validation/step': 20,
    'return/mean': -0.5, 'budget/completion_tokens': 2469, 'compile/count': 0,
    'compile/seconds': 0.0, 'time/step': 2.0, 'time/sample': 0.5,
    'time/update': 1.26, 'time/records': 0.09}
_TEXT = (
    'success: rollout 0.250, validation 0.125 (step 20)  return -0.500  '
    '1,234 tokens/s  2.0 s: update 1.3, sample 0.5')


@pytest.mark.parametrize('num_steps, shares, lines', [
    (40, (1 / 40, 2 / 40, 3 / 40), [
        f'step 1/40  {_TEXT}', f'step 2/40  {_TEXT}  0:01:16 left',
        f'step 3/40  {_TEXT}  0:01:14 left']),
    # Without a number of steps.
    (0, (0.25, 0.5), [f'step 1  {_TEXT}', f'step 2  {_TEXT}  0:00:04 left'])])
def test_progress_prints_lines_into_a_file(
    num_steps, shares, lines, monkeypatch, capsys):
  clock = iter([100.0, 102.0, 104.0])
  monkeypatch.setattr(time, 'monotonic', lambda: next(clock))
  progress = metrics.Progress(num_steps)
  for done, share in enumerate(shares, start=1):
    progress.update(done, share_done=share, values=_VALUES)
  progress.close()
  assert capsys.readouterr().out.splitlines() == lines


def test_progress_says_what_was_compiled(capsys):
  metrics.Progress(40).update(12, share_done=0.3, values=_VALUES | {
      'compile/count': 2, 'compile/seconds': 1.04})
  assert capsys.readouterr().out == (
      f'step 12/40  {_TEXT}, of these 1.0 to compile 2\n')


def test_progress_draws_a_bar_on_a_terminal(monkeypatch):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stdout', terminal)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '180')
  # rich's own clock must go on, so time is not faked here.
  progress = metrics.Progress(40, num_done=10, share_done=0.25)
  assert '10/40' in terminal.getvalue()
  progress.update(11, share_done=11 / 40, values=_VALUES)
  progress.close()
  assert '11/40' in terminal.getvalue()
  assert _TEXT in terminal.getvalue()
  assert '\x1b[?25h' in terminal.getvalue()  # The cursor is back.


def test_compiles_are_counted():
  counter = metrics.CompileCounter()
  assert not any(counter.lap().values())
  now = time.time()  # So that no earlier run has kept the program.

  def shift():  # Another function each time, as of another process.
    return jax.jit(lambda x: x + now)

  shift_here = shift()
  shift_here(np.zeros(3))
  first = counter.lap()
  assert first.pop('compile/seconds') > 0
  assert first == {'compile/count': 1, 'compile/from_cache': 0}
  shift_here(np.ones(3))
  shift_here(np.ones(4))
  shift()(np.zeros(3))
  last = counter.lap()
  assert (last['compile/count'], last['compile/from_cache']) == (1, 1)
  assert not any(counter.lap().values())
