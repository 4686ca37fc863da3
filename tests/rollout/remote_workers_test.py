"""Runs with a SandboxFusion service."""

import json

import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api
from environments.sandbox import remote
from tests import echo
from tests.environments.sandbox import fusion
from tests.rollout import programs

_BUSY = 503, b'busy'


@pytest.fixture(scope='module')
def service():
  with fusion.running() as running:
    yield running


@pytest.fixture
def step(service, tmp_path, monkeypatch):
  """Steps the game of programs once; `step.workers` steps it."""
  monkeypatch.setattr(remote, '_PAUSES', ())
  monkeypatch.setattr(remote, '_RESTART_SECONDS', 0.2)
  monkeypatch.setattr(remote, '_RESTART_PAUSE', 0.1)
  with workers_lib.Workers(1, 1, 'remote', service.url) as workers:
    environment = programs.Programs(workers.sandbox, str(tmp_path / 'mark'))

    def step_once():
      call = workers.submit(
          env_api.step_all, environment, [programs.State('A', 3)],
          [{'a': 'one'}])
      return call.result()[0]

    step_once.workers = workers
    yield step_once
    del service.failures[:]


def test_step_is_repeated_after_an_outage(service, step):
  expected = step()
  assert step.workers.level == 'remote' and expected.state.total == 1
  assert not any(step.workers.take_counts().values())
  service.failures[:] = [_BUSY] * 4  # Three attempts and the first trial.
  assert step() == expected
  assert step.workers.take_counts() == {
      'server_restarts': 1, 'pool_restarts': 0, 'repeated_steps': 1}


def test_permanent_outage_stops_the_run(service, step, monkeypatch):
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 2)
  service.failures[:] = [_BUSY] * 1000
  with pytest.raises(errors.InfrastructureError) as caught:
    step()
  assert 'connection to the sandbox service' in str(caught.value)


def test_training_with_a_remote_sandbox(service, echo_folder, tmp_path):
  config = echo.get_config()
  config.update_from_flattened_dict({
      'model.folder': str(echo_folder), 'train.num_steps': 1,
      'environment.module': 'tests.environments.echo_programs',
      'rollout.num_tasks': 2, 'evaluation.test': 'validation',
      'evaluation.validate_every': 9, 'train.checkpoint_every': 1,
      'sandbox.level': 'remote', 'sandbox.url': service.url})
  workdir = tmp_path / 'run'
  results = api.train(config, workdir)
  for result in results.values():
    assert result['sandbox'] == 'remote'
    assert result['budget']['program_runs'] >= result['num_tasks'] == 16
    assert result['num_left_out'] == 0
  saved = json.loads((workdir / 'config.json').read_text())['config']
  assert saved['sandbox'] == {'level': 'remote', 'url': service.url}
