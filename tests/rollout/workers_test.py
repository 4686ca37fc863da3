"""Faults of workers and the sandbox do not change results."""

import collections
from concurrent import futures
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api
from environments.sandbox import launcher
from environments.sandbox import remote
from tests import checkout
from tests.checkout import wait_until
from tests.environments.sandbox import fusion
from tests.rollout import programs
from tests.rollout import scripted

OUTCOME = env_api.Outcome
# A level at which programs can reach the server.
UNSAFE = 'unsafe_rlimit'
GOALS = {'A': 3, 'B': 5}
_BUSY = 503, b'busy'  # A reply of a SandboxFusion service.


@pytest.fixture(scope='module')
def workers():
  """Shared by most tests, which it must survive."""
  with workers_lib.Workers(2, 2, UNSAFE) as running:
    yield running


@pytest.fixture
def play(workers, tmp_path, monkeypatch):
  """Makes a runner whose only agent says one of some texts."""
  scripted.follow_scripts(monkeypatch)

  def make(*texts, max_turns=2):
    return scripted.make_runner(
        {'one': collections.defaultdict(lambda: texts)}, {'a': 'one'},
        environment=programs.Programs(
            sandbox=workers.sandbox, mark=str(tmp_path / 'mark'),
            max_turns=max_turns),
        max_new_tokens=16, executor=workers)

  make.mark = tmp_path / 'mark'
  return make


def _step(runner, *texts):
  state = runner.environment.reset(scripted.task('A', 3))
  return scripted.wait_for(runner, runner.step_environments(
      [state] * len(texts), [{'a': text} for text in texts], task_id='A',
      turn=0))


def _server(workers):
  return [workers._server.pid]


def _supervisors(workers):
  pid, = _server(workers)
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(child) for child in path.read_text().split()]


def _processes(workers):
  return [process.pid for process in workers._context.started]


# Name -> (processes, signal, counter of the replacement).
FAULTS = {
    f'{name} {number.name}': (pids_fn, number, replaced)
    for name, pids_fn, replaced in (
        ('server', _server, 'server_restarts'),
        ('supervisor', lambda workers: _supervisors(workers)[:1], None),
        ('worker', lambda workers: _processes(workers)[:1], 'pool_restarts'))
    for number in (signal.SIGKILL, signal.SIGSTOP)}
FAULTS['server and supervisors SIGSTOP'] = (
    lambda workers: _server(workers) + _supervisors(workers), signal.SIGSTOP,
    'server_restarts')


def _inject(workers, mark, name):
  """Sends the signal as soon as a program runs."""
  pids_fn, number, _ = FAULTS[name]
  wait_until(mark.exists)
  for pid in pids_fn(workers):
    os.kill(pid, number)


@pytest.mark.parametrize('num_cores, num_workers', [
    (1, 2), (16, 8), (224, 32)])
def test_default_number_follows_the_cores(num_cores, num_workers, monkeypatch):
  monkeypatch.setattr(os, 'cpu_count', lambda: num_cores)
  found = workers_lib.Workers(0, 0, workers_lib.NO_PROGRAMS).num_workers
  assert found == num_workers


def test_faults_do_not_change_rollouts(play, workers):
  def rollout():
    trees = scripted.collect(
        play('slow', 'one', 'slow', 'two'), GOALS, group_size=4)
    play.mark.unlink()
    return [dataclasses.asdict(tree) for tree in trees]

  workers.take_counts()
  undisturbed = rollout()
  assert not any(workers.take_counts().values())
  for name, (_, _, replaced) in FAULTS.items():
    with futures.ThreadPoolExecutor(1) as pool:
      fault = pool.submit(_inject, workers, play.mark, name)
      np.testing.assert_equal(rollout(), undisturbed, name)
      fault.result()
    counts = workers.take_counts()
    for kind in ('server_restarts', 'pool_restarts'):
      assert counts[kind] == (kind == replaced), (name, counts)


def test_program_that_kills_its_supervisor_is_penalised(play, workers):
  workers.take_counts()
  runner = play('end supervisor', 'one', 'two', max_turns=1)
  tree, = scripted.collect(runner, {'A': 2}, group_size=3)
  group, = tree.nodes[0].groups
  assert [candidate.outcome for candidate in group.candidates] == [
      OUTCOME.PROGRAM_ERROR, OUTCOME.OK, OUTCOME.OK]
  assert group.valid.all() and group.advantages[0] < 0
  result = evaluate.evaluate(
      play('end supervisor', max_turns=1), [scripted.task('A', 2)])
  assert (result['successes'], result['num_left_out']) == ('0', 0)
  assert not any(workers.take_counts().values())


def test_program_that_kills_the_server_affects_no_other(play, workers):
  texts = ['one', 'end server', 'two', 'slow', 'end server', 'one', 'two']
  steps = _step(play(), *texts)
  failed = [step.outcomes['a'] is OUTCOME.INFRASTRUCTURE for step in steps]
  assert failed == [text == 'end server' for text in texts]
  assert [s.state.total for s in steps] == [1, 0, 2, 3, 0, 1, 2]
  assert workers.take_counts()['server_restarts'] > 1
  step, = _step(play(), 'one')
  assert step.state.total == 1


def test_step_that_kills_its_worker_affects_no_other(play, workers):
  steps = _step(play(), 'one', 'end worker', 'two')
  assert [step.outcomes['a'] for step in steps] == [
      OUTCOME.OK, OUTCOME.INFRASTRUCTURE, OUTCOME.OK]
  assert [step.state.total for step in steps] == [1, 0, 2]
  # At least two together, and two alone.
  assert 4 <= workers.take_counts()['pool_restarts'] < workers_lib.MAX_IN_A_ROW
  step, = _step(play(), 'one')
  assert step.state.total == 1


@pytest.mark.parametrize('kind, words', [
    ('server', 'The sandbox server'),
    ('worker', "process of a step for role 'a' in turn 1 of")])
def test_persistent_faults_stop_the_run(
    kind, words, play, monkeypatch):
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 2)
  with workers_lib.Workers(1, 1, 'auto') as running:
    runner = dataclasses.replace(play(), executor=running, environment=(
        programs.Programs(sandbox=running.sandbox, mark='')))
    if kind == 'server':
      monkeypatch.setattr(launcher, '_START_SERVER', '1 / 0')
      os.kill(*_server(running), signal.SIGKILL)
    with pytest.raises(errors.InfrastructureError, match=words):
      _step(runner, 'end worker' if kind == 'worker' else 'one')


def test_an_environment_without_a_sandbox_may_fail(play):
  with workers_lib.Workers(1, 1, workers_lib.NO_PROGRAMS) as running:
    step, = _step(dataclasses.replace(play(), executor=running), 'fail')
    assert step.outcomes['a'] is OUTCOME.INFRASTRUCTURE
    assert running.take_counts() == {
        'server_restarts': 0, 'pool_restarts': 0, 'repeated_steps': 2}


def test_step_is_repeated_after_an_outage_of_the_service(
    workers, monkeypatch):
  monkeypatch.setattr(remote.RemoteSandbox, '_pauses', ())
  monkeypatch.setattr(remote, '_RESTART_SECONDS', 0.2)
  monkeypatch.setattr(remote, '_RESTART_PAUSE', 0.1)
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 2)
  with (fusion.running(workers.sandbox) as service,
        workers_lib.Workers(1, 1, 'remote', service.url) as running):
    environment = programs.Programs(sandbox=running.sandbox, mark='')

    def step():
      return running.submit(
          contract.step_all, environment, [contract.StepRequest(
              programs.State('A', 3), {'a': 'one'}, task_id='A', turn=0)],
      ).result()

    expected = step()
    assert expected[0].state.total == 1
    assert not any(running.take_counts().values())
    # Three attempts and the first trial.
    service.failures[:] = [_BUSY] * 4
    assert step() == expected
    assert running.take_counts() == {
        'server_restarts': 1, 'pool_restarts': 0, 'repeated_steps': 1}
    service.failures[:] = [_BUSY] * 1000
    with pytest.raises(errors.InfrastructureError, match='sandbox service'):
      step()


def test_stopped_processes_do_not_block_the_exit(monkeypatch):
  monkeypatch.setattr(workers_lib, '_END_SECONDS', 0.5)
  with workers_lib.Workers(1, 1, 'auto') as running:
    running.submit(contract.step_all, None, []).result()
    pids = _server(running) + _processes(running)
    for pid in pids:
      os.kill(pid, signal.SIGSTOP)
  # Another process reaps the server inside bubblewrap.
  wait_until(lambda: not any(map(checkout.is_running, pids)))


def test_failed_start_of_the_workers_closes_the_sandbox(monkeypatch):
  running = workers_lib.Workers(1, 1, UNSAFE)
  monkeypatch.setattr(  # As with a full /dev/shm.
      workers_lib.futures, 'ProcessPoolExecutor', lambda *_, **__: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    running.__enter__()
  assert not os.path.exists(os.path.dirname(running.sandbox.address))


def test_a_script_without_a_guard_is_told_at_once(tmp_path):
  script = tmp_path / 'script.py'
  script.write_text("""
from atgrpo_jax.rollout import contract, workers

with workers.Workers(1, 1, 'none') as running:
  running.submit(contract.step_all, None, []).result()
""")
  result = subprocess.run(
      [sys.executable, script], capture_output=True, text=True, timeout=120,
      env=os.environ | {'PYTHONPATH': str(checkout.ROOT)})
  assert result.returncode
  assert "below `if __name__ == '__main__':`" in result.stderr
  assert 'will be replaced' not in result.stderr
