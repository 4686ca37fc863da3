"""Several processes train as one, end together, and resume."""

import json
import re
import signal
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import train
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import tree as tree_lib
from tests import commands
from tests import echo

# jax aborts a process if it notices a lost one before a computation fails.
PEER_LOST = errors.InfrastructureError.status, -signal.SIGABRT


def _start(folder, workdir, **changes):
  """Starts the two processes of a run, with one device each."""
  command = commands.train(
      'tests/echo.py', workdir, {'model.folder': folder} | changes)
  return commands.start_together(
      lambda address, index: [
          *command, '--distributed', f'--coordinator_address={address}',
          '--num_processes=2', f'--process_id={index}'],
      num_processes=2, num_devices=2)


def _wait_for_steps(workdir, num_steps, processes):
  metrics = workdir / 'metrics.jsonl'
  while not metrics.exists() or metrics.read_text().count('\n') < num_steps:
    assert not any(process.poll() for process in processes)
    time.sleep(0.05)


def _groups(workdir):
  """The recorded trees without log-probabilities, which are rounded."""
  trees = []
  for path in sorted((workdir / 'groups').iterdir()):
    for tree in map(tree_lib.Tree.to_json, tree_lib.read(path)):
      for node in tree['nodes']:
        for group in node['groups']:
          for candidate in group['candidates']:
            candidate['logprobs'] = len(candidate['logprobs'])
      trees.append(tree)
  return trees


def test_two_processes_equal_one_process_after_a_kill(echo_folder, tmp_path):
  changes = {
      'train.num_steps': 3, 'train.checkpoint_every': 1,
      'train.groups_every': 1, 'evaluation.validate_every': 2,
      'rollout.num_tasks': 2}
  single, workdir = tmp_path / 'single', tmp_path / 'run'
  experiment = echo.experiment(echo_folder, **changes)
  assert train.train(experiment, single)
  changes |= {'mesh.fsdp': 2, 'buckets.rows': 4}  # Candidates wait for rows.

  processes = _start(echo_folder, workdir, **changes)
  _wait_for_steps(workdir, 1, processes)
  processes[1].kill()
  _, stderr = processes[0].communicate(timeout=60)
  assert processes[0].returncode in PEER_LOST
  assert re.search('Another process of the run|another task died', stderr)
  processes[1].communicate()

  for process in _start(echo_folder, workdir, **changes):
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
  assert _groups(workdir) == _groups(single)
  for name in ('before', 'after'):
    found, expected = (
        json.loads((run / 'evals' / f'{name}.json').read_text())
        for run in (workdir, single))
    del found['config_hash'], expected['config_hash']
    assert found == expected
  assert (workdir / 'metrics.jsonl').read_text().count('\n') == 3
  (found, step), (expected, _) = map(
      experiment.trained_params, (workdir, single))
  assert step == 3
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      found, expected)


def test_exchanges_of_many_sizes_need_few_programs(monkeypatch):
  shapes = set()

  def gather(x):
    shapes.add(x.shape)
    return np.stack([x, x])

  monkeypatch.setattr(hosts.jax, 'process_count', lambda: 2)
  monkeypatch.setattr(hosts.multihost_utils, 'process_allgather', gather)
  for size in range(0, 5000, 100):
    assert hosts.exchange('a' * size) == ['a' * size] * 2
  assert len(shapes) <= 12


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
  _wait_for_steps(tmp_path, 1, processes)
  processes[victim].send_signal(number)
  try:
    processes[1 - victim].communicate(timeout=130)
    assert processes[1 - victim].returncode in PEER_LOST
  finally:
    for process in processes:
      process.kill()
      process.communicate()
