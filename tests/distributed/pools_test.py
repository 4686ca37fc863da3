"""Pools of devices of different processes.

The tests run this module as a program in each process.
"""

import functools
import json
import os
import pathlib
import signal
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from atgrpo_jax import train
from atgrpo_jax.distributed import hosts
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.io import checkpoints
from configs import common
from tests import commands
from tests import echo
from tests import fault_injection

CHANGES = {
    'policies': 'per_role', 'rollout.num_tasks': 4, 'train.checkpoint_every': 1,
    'train.groups_every': 1,
    'mesh.pools': (('first', 0, 2), ('second', 2, 4))}
RUNS = {
    'models': CHANGES | {'mesh.fsdp': 2},  # Split over two devices.
    # An adapter and a whole model, each with a critic.
    'critics': CHANGES | common.MAGRPO | common.IAC | {
        'per_policy': (('first', 'model.trained', 'lora'),),
        'train.diagnose_every': 1,
        'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.1}}


def _start(function, *args, num_processes):
  """Calls a function of this module in processes with 4 devices in total."""
  return commands.start_together(
      lambda address, index: [
          sys.executable, '-m', 'tests.distributed.pools_test', address,
          str(num_processes), str(index), function, *map(str, args)],
      num_processes, num_devices=4)


def run(name, folder, workdir, num_steps):
  """Trains to a step."""
  changes = RUNS[name] | {'train.num_steps': int(num_steps)}
  assert train.train(
      echo.experiment(folder, **changes), pathlib.Path(workdir))


@pytest.mark.parametrize('name, before, after', [
    ('models', 2, 1),
    pytest.param('models', 4, 2, marks=pytest.mark.long),
    pytest.param('critics', 4, 2, marks=pytest.mark.long)])
def test_any_number_of_processes_gives_the_same_results(
    name, before, after, echo_folder, tmp_path):
  one, many = tmp_path / 'one', tmp_path / 'many'
  # The third run resumes the second on fewer processes.
  for workdir, num_steps, num_processes in (
      (one, 2, 1), (many, 1, before), (many, 2, after)):
    processes = _start(
        'run', name, echo_folder, workdir, num_steps,
        num_processes=num_processes)
    outputs = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), outputs
  assert 'resumes after step 1' in outputs[0][0]
  for step in fault_injection.steps(one):
    assert min(step['first/grad_norm'], step['second/grad_norm']) > 1e-3
  assert fault_injection.results(many) == fault_injection.results(one)
  record = json.loads((many / 'checkpoints/1/meta/metadata').read_text())
  assert record['items'].keys() == {'state_0', 'state_1'}


# A process killed during a save.


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
  processes = _start('save_twice', tmp_path, num_processes=4)
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
  coordinator, number, process_id, called, *arguments = sys.argv[1:]
  if called == 'save_twice':  # The others hear of the kill in 10, not 100 s.
    jax.distributed.initialize = functools.partial(
        jax.distributed.initialize, heartbeat_timeout_seconds=10)
  if number != '1':
    hosts.initialize(coordinator, int(number), int(process_id))
  globals()[called](*arguments)
