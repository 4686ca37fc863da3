"""Several processes train as one, save together, end together, and resume.

A test runs this module as a program in each process.
"""

import os
import re
import signal
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints
from atgrpo_jax.io import signals
from configs import common
from tests import checkout
from tests import commands
from tests import fault_injection

# jax aborts a process if it notices a lost one before a computation fails.
PEER_LOST = errors.InfrastructureError.status, -signal.SIGABRT

POOLS = {
    'policies': 'per_role',
    'mesh.pools': (('first', 0, 2), ('second', 2, 4))}
RUNS = {
    'shared': {'mesh.fsdp': 2},
    'pools': POOLS | {'mesh.fsdp': 2},
    # An adapter and a whole model, each with a critic.
    'critics': POOLS | common.MAGRPO | common.IAC | {
        'per_policy': (('first', 'model.trained', 'lora'),),
        'train.diagnose_every': 1,
        'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.1}}


def _start(folder, workdir, num_processes=2, num_devices=2, **changes):
  """Starts the processes of a run."""
  command = commands.train('tests/echo.py', workdir, {
      'model.folder': folder, 'rollout.num_tasks': 4,
      'train.checkpoint_every': 1, 'train.groups_every': 1,
      'evaluation.validate_every': 2} | changes)
  return commands.start_together(
      lambda address, index: [
          *command, '--distributed', f'--coordinator_address={address}',
          f'--num_processes={num_processes}', f'--process_id={index}'],
      num_processes, num_devices)


def _wait_for_a_checkpoint(workdir, processes):
  def is_saved():
    assert not any(process.poll() for process in processes)
    return (workdir / 'checkpoints/1').exists()

  checkout.wait_until(is_saved, seconds=300)


@pytest.mark.parametrize('name, num_devices, before, after', [
    ('shared', 2, 2, 2), ('pools', 4, 2, 1),
    pytest.param('pools', 4, 4, 2, marks=pytest.mark.long),
    pytest.param('critics', 4, 4, 2, marks=pytest.mark.long)])
def test_any_number_of_processes_resumes_a_killed_run(
    name, num_devices, before, after, echo_folder, tmp_path):
  def start(workdir, num_processes):
    return _start(
        echo_folder, workdir, num_processes, num_devices, **RUNS[name],
        **{'train.num_steps': 4})

  one, many = tmp_path / 'one', tmp_path / 'many'
  processes = start(many, before)
  _wait_for_a_checkpoint(many, processes)
  processes.pop().kill()
  for process in processes:
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in PEER_LOST
    assert re.search('Another process of the run|another task died', stderr)

  for workdir, num_processes in ((one, 1), (many, after)):
    processes = start(workdir, num_processes)
    outputs = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), outputs
  assert 'resumes after step' in outputs[0][0]
  assert fault_injection.results(many) == fault_injection.results(one)
  assert min(
      value for step in fault_injection.steps(one)
      for metric, value in step.items() if metric.endswith('/grad_norm')) > 1e-6


def test_signal_ends_a_process_that_waits_for_another(echo_folder, tmp_path):
  waits, missing = _start(echo_folder, tmp_path)
  missing.kill()
  missing.communicate()
  for line in waits.stdout:
    if line.startswith('waiting for all processes'):
      break
  waits.terminate()
  stdout, stderr = waits.communicate(timeout=60)
  assert waits.returncode == signals.STOPPED, stderr
  assert 'SIGTERM: stopping\n' in stdout


@pytest.mark.long
@pytest.mark.parametrize('victim', [0, 1])
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_lost_process_ends_the_other_within_the_heartbeat_timeout(
    number, victim, echo_folder, tmp_path):
  processes = _start(echo_folder, tmp_path, **{'train.num_steps': 10_000})
  _wait_for_a_checkpoint(tmp_path, processes)
  processes[victim].send_signal(number)
  try:
    processes[1 - victim].communicate(timeout=130)
    assert processes[1 - victim].returncode in PEER_LOST
  finally:
    for process in processes:
      process.kill()
      process.communicate()


def _state(step, devices):
  """Two arrays on two pools of the devices."""
  num = len(devices) // 2 or 1
  meshes = mesh_lib.make_meshes(
      ['first', 'second'], devices, pools=(
          ('first', 0, num), ('second', len(devices) - num, len(devices))))
  return {
      name: mesh_lib.put_rows(
          np.full((64, 32), step + index, np.float32), mesh)
      for index, (name, mesh) in enumerate(meshes.items())}


def save_twice(directory):
  """Saves steps 1 and 2; process 3 is killed after it started to write 2."""
  async_save = ocp.PyTreeCheckpointHandler.async_save

  async def async_save_and_die(*args, **kwargs):
    await async_save(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

  saved = checkpoints.Checkpoints(directory)
  for step in (1, 2):
    if step == 2 and jax.process_index() == 3:
      ocp.PyTreeCheckpointHandler.async_save = async_save_and_die
    saved.save(step, _state(step, jax.devices()), {'step': step})
    saved.wait()


def test_kill_during_a_save_leaves_the_previous_step(tmp_path):
  processes = commands.start_together(
      lambda address, index: [
          sys.executable, '-m', 'tests.distributed.hosts_test', tmp_path,
          address, str(index)], num_processes=4, num_devices=4)
  outputs = [process.communicate() for process in processes]
  assert all(process.returncode for process in processes), outputs
  assert processes[3].returncode == -signal.SIGKILL, outputs
  names = {path.name for path in tmp_path.iterdir()}
  assert '1' in names and '2' not in names
  assert any(name.startswith('2.') for name in names)
  # This process reads what four have written. Only saving removes the rest.
  saved = checkpoints.Checkpoints(tmp_path)
  restored = saved.restore(_state(0, jax.devices()[:1]))
  assert restored.meta == {'step': 1}
  assert {path.name for path in tmp_path.iterdir()} == names
  for name, value in (('first', 1), ('second', 2)):
    np.testing.assert_array_equal(restored.state[name], value)
  saved.save(3, restored.state, {'step': 3})
  saved.close()
  assert {path.name for path in tmp_path.iterdir()} == {'1', '3'}


if __name__ == '__main__':
  directory, coordinator, process_id = sys.argv[1:]
  hosts.initialize(coordinator, 4, int(process_id))
  save_twice(directory)
