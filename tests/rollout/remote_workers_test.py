"""Runs whose programs run behind a gateway."""

from concurrent import futures
import dataclasses
import json
import os

import numpy as np
import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api
from environments.sandbox import remote
from tests import echo
from tests.environments.sandbox import gateways
from tests.environments.sandbox import servers
from tests.rollout import programs
from tests.rollout import scripted

GOALS = {'A': 3, 'B': 5}
REMOTE_LEVEL = gateways.remote_level(gateways.LEVEL)
# Where a program can write the file that says that it runs.
UNSAFE = 'unsafe_rlimit'


@pytest.fixture(scope='module')
def gateway(tmp_path_factory):
  with gateways.running(
      tmp_path_factory.mktemp('gateway'), UNSAFE) as running:
    yield running


def connect(gateway, level='remote', token_variable=gateways.TOKEN_VARIABLE):
  return workers_lib.Workers(1, 1, level, gateway.url, token_variable)


class _Script:
  def __init__(self, *texts):
    self._texts = texts

  def __getitem__(self, prompt):
    return self._texts


def _play(workers, mark, *texts):
  return scripted.make_runner(
      {'one': _Script(*texts)}, {'a': 'one'},
      environment=programs.Programs(workers.sandbox, str(mark), 2),
      max_new_tokens=16, executor=workers)


def _collect(workers, mark):
  return list(map(dataclasses.asdict, scripted.collect(
      _play(workers, mark, 'slow', 'one', 'slow', 'two'), GOALS,
      group_size=4)))


def _harm_gateway(gateway, mark):
  """Once a program runs: it is killed, and started again."""
  servers.wait_until(mark.exists, 60)
  gateway.kill()
  gateway.start()


def _harm_server(gateway, mark):
  servers.wait_until(mark.exists, 60)
  os.kill(gateway.server_pid(), 9)


@pytest.mark.parametrize('harm', [_harm_gateway, _harm_server])
def test_a_rollout_is_as_if_nothing_had_been(
    harm, gateway, tmp_path, monkeypatch):
  scripted.follow_scripts(monkeypatch)
  mark = tmp_path / 'mark'
  with connect(gateway) as workers:
    assert workers.level == 'remote_unsafe_rlimit'
    expected = _collect(workers, mark)
    assert not any(workers.take_counts().values())
    mark.unlink()
    with futures.ThreadPoolExecutor(1) as pool:
      harmed = pool.submit(harm, gateway, mark)
      np.testing.assert_equal(_collect(workers, mark), expected)
      harmed.result()
    counts = workers.take_counts()
    # A gateway that replaces its server in time is not noticed.
    if harm is _harm_gateway:
      assert counts['server_restarts'] > 0 and counts['repeated_steps'] > 0
    assert not counts['pool_restarts']


def test_a_gateway_that_stays_away_ends_the_run(tmp_path, monkeypatch):
  # Bite: a busy loop, or none at all.
  scripted.follow_scripts(monkeypatch)
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 2)
  monkeypatch.setattr(remote, '_WAIT_SECONDS', 0.5)
  pauses = []
  monkeypatch.setattr(
      remote.time, 'sleep',
      lambda seconds, sleep=remote.time.sleep: (
          pauses.append(seconds), sleep(0.1)))
  with (gateways.running(tmp_path, UNSAFE) as gateway,
        connect(gateway) as workers):
    state = programs.State('A', 3)
    environment = programs.Programs(workers.sandbox, str(tmp_path / 'mark'))

    def step():
      call = workers.submit(
          env_api.step_all, environment, [state], [{'a': 'one'}])
      return call.result()[0].state.total

    assert step() == 1
    gateway.kill()
    with pytest.raises(errors.InfrastructureError) as caught:
      step()
    message = str(caught.value)
    assert 'the connection to the sandbox gateway had to be replaced again, ' \
        'after 2 rep' in message and '\n' not in message
    assert set(pauses) == {remote._PAUSE_SECONDS} and 4 < len(pauses) < 20
    # It has come back at another level, or with another token: no waiting.
    del pauses[:]
    gateway.token_file.write_text('x' * 32)
    gateway.start()
    workers._in_a_row = 0
    with pytest.raises(errors.InfrastructureError):
      step()
    assert len(pauses) == 2
    gateway.end()
    gateway.token_file.write_text(gateways.TOKEN)
    gateway.start()
    workers._in_a_row = 0
    assert step() == 1


@pytest.mark.skipif(
    gateways.LEVEL == UNSAFE, reason='there is one level here')
def test_a_gateway_that_comes_back_at_another_level_is_refused(
    tmp_path, monkeypatch):
  # Bite: one evaluation has programs of two levels.
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 1)
  monkeypatch.setattr(remote, '_PAUSE_SECONDS', 0.0)
  with (gateways.running(tmp_path, UNSAFE) as gateway,
        connect(gateway) as workers):
    assert gateway.end() == 0
    gateway.level = gateways.LEVEL
    gateway.start()
    result = workers.sandbox.run('print(1)')
    assert f'runs programs at {gateways.LEVEL}, and not' in result.stderr
    environment = programs.Programs(workers.sandbox, str(tmp_path / 'mark'))
    call = workers.submit(
        env_api.step_all, environment, [programs.State('A', 3)],
        [{'a': 'one'}])
    with pytest.raises(errors.InfrastructureError):
      call.result()


@pytest.mark.parametrize('changes, words', [
    ({'url': ''}, ['sandbox.level=remote needs sandbox.url=tcp://HOST:PORT']),
    ({'url': 'host:1'}, ['is tcp://HOST:PORT, and not', "'host:1'"]),
    ({'url': 'tcp://secret@host:1'}, ['no token in it']),
    ({'url': 'tcp://127.0.0.1:1'},
     ['tcp://127.0.0.1:1 does not answer', 'refused']),
    ({'token_variable': 'NOBODY_SETS_THIS'}, ["'NOBODY_SETS_THIS'", 'not set']),
    ({'token_variable': ''}, ['variable', 'not set']),
    ({'token_variable': 'PATH'}, ['has another token']),
    ({'level': 'remote_bwrap'},
     ['sandbox.level=remote_bwrap, but the gateway at', 'at unsafe_rlimit',
      'give sandbox.level=remote']),
    ({'level': 'auto'},
     ['sandbox.url is given, but with sandbox.level=auto', 'level=remote']),
    ({'level': 'none'}, ['sandbox.url is given']),
    ({'level': 'remote_strong'}, ["sandbox.level='remote_strong' is unknown"])],
    ids=lambda value: ' '.join(value.values()) or 'empty' if isinstance(
        value, dict) else '')
def test_what_cannot_be_is_refused_before_anything_is_done(
    changes, words, gateway):
  given = {
      'level': 'remote', 'url': gateway.url,
      'token_variable': gateways.TOKEN_VARIABLE} | changes
  with pytest.raises(errors.UserError) as caught:
    workers_lib.Workers(1, 1, **given).__enter__()
  message = str(caught.value)
  for part in words:
    assert part in message
  assert '\n' not in message and 'secret' not in message
  assert gateways.TOKEN not in message and os.environ['PATH'] not in message


def test_a_whole_training(echo_folder, tmp_path, monkeypatch):
  config = echo.get_config()
  config.update_from_flattened_dict({
      'model.folder': str(echo_folder), 'train.num_steps': 1,
      'environment.module': 'tests.environments.echo_programs',
      'rollout.num_tasks': 2, 'evaluation.test': 'validation',
      'evaluation.validate_every': 9, 'train.checkpoint_every': 1,
      'sandbox.level': 'remote',
      'sandbox.token_variable': gateways.TOKEN_VARIABLE})
  workdir = tmp_path / 'run'
  with gateways.running(tmp_path) as gateway:
    config.sandbox.url = gateway.url
    results = api.train(config, workdir)
    for result in results.values():
      assert result['sandbox'] == REMOTE_LEVEL
      assert result['budget']['program_runs'] >= result['num_tasks'] == 16
      assert result['num_left_out'] == 0
    written = (workdir / 'config.json').read_text()
    assert json.loads(written)['config']['sandbox'] == {
        'level': REMOTE_LEVEL, 'url': gateway.url,
        'token_variable': gateways.TOKEN_VARIABLE}
    assert gateways.TOKEN not in written
    # From the workdir alone: that level is wanted.
    with api.Run(None, workdir) as run:
      assert run.evaluate()['successes'] == results['after']['successes']
    monkeypatch.setenv(gateways.TOKEN_VARIABLE, 'x' * 32)
    with pytest.raises(errors.UserError, match='has another token'):
      api.Run(None, workdir).__enter__()
