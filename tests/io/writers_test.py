"""Who else gets the metrics."""

import pathlib
import sys
import types

import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics
from atgrpo_jax.io import writers


class _Recorder:
  """A writer as clu has them, and a run of wandb."""

  def __init__(self, *args, **kwargs):
    self.made, self.said = (args, kwargs), []

  def __getattr__(self, name):
    return lambda *args, **kwargs: self.said.append((name, args, kwargs))


def test_a_module_of_the_user(tmp_path, monkeypatch):
  made = []
  monkeypatch.setitem(sys.modules, 'my_writer', types.SimpleNamespace(
      make_writer=lambda *args: made.append(_Recorder(*args)) or made[-1]))
  writer = metrics.MetricsWriter(
      tmp_path, writers=('my_writer',), config={'seed': 3})
  writer.write(1, {'x': 2})
  writer.close()
  recorder, = made
  assert recorder.made == ((tmp_path, {'seed': 3}, None), {})
  assert recorder.said == [
      ('write_scalars', (1, {'x': 2.0}), {}), ('flush', (), {}),
      ('close', (), {})]
  # A run that goes on says from where.
  offset = (tmp_path / 'metrics.jsonl').stat().st_size
  metrics.MetricsWriter(tmp_path, offset=offset, writers=('my_writer',))
  assert made[-1].made[0][2] == 2


def test_wandb(tmp_path, monkeypatch):
  runs = []
  monkeypatch.setitem(sys.modules, 'wandb', types.SimpleNamespace(
      init=lambda **kwargs: runs.append(_Recorder(**kwargs)) or runs[-1]))
  for first_step in (None, 1):
    writer, = writers.make(('wandb',), tmp_path, {'seed': 3}, first_step)
    writer.write_scalars(1, {'x': 2.0})
    writer.flush()
    writer.close()
  first, second = runs
  assert first.said == second.said == [
      ('log', ({'x': 2.0},), {'step': 1}), ('finish', (), {})]
  # The same run goes on; another workdir is another run.
  assert first.made[1] == second.made[1]
  assert first.made[1]['resume'] == 'allow'
  (tmp_path / 'other').mkdir()
  writers.make(('wandb',), tmp_path / 'other', {}, None)
  assert runs[-1].made[1]['id'] != first.made[1]['id']
  writers.make(('wandb',), files.as_path('gs://bucket/run'), {}, None)
  assert runs[-1].made[1]['dir'] is None
  assert not pathlib.Path('gs:').exists()


@pytest.mark.parametrize('name, words', [
    ('wandb', 'not installed'), ('tensorbord', 'none of tensorboard, wandb'),
    ('json', "has no attribute 'make_writer'")])
def test_writers_that_cannot_be_had(name, words, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  with pytest.raises(errors.UserError, match=words):
    writers.make((name,), tmp_path, {}, None)


def test_a_writer_that_fails_to_start_is_named(tmp_path, monkeypatch):
  def make_writer(*args):
    raise ConnectionError('no server')

  monkeypatch.setitem(
      sys.modules, 'my_writer', types.SimpleNamespace(make_writer=make_writer))
  writers.check(('my_writer',))
  with pytest.raises(errors.UserError, match="'my_writer'.*no server"):
    writers.make(('my_writer',), tmp_path, {}, None)
