"""Several processes train as one, end together, and resume."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import train
from atgrpo_jax.rollout import tree as tree_lib
from tests import echo

ROOT = pathlib.Path(__file__).resolve().parents[2]
# jax aborts a process if it notices a lost one before a computation fails.
PEER_LOST = errors.InfrastructureError.status, -signal.SIGABRT


def _start(folder, workdir, num_processes, num_devices=1, **changes):
  """Starts the processes of one run, with `num_devices` each."""
  command = [
      sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
      f'--workdir={workdir}', f'--config.model.folder={folder}',
      *(f'--config.{name}={value}' for name, value in changes.items())]
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  return [
      subprocess.Popen(
          command + (num_processes > 1) * [
              '--distributed', f'--coordinator_address={address}',
              f'--num_processes={num_processes}', f'--process_id={index}'],
          cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
          env=os.environ | {
              'JAX_PLATFORMS': 'cpu',
              'JAX_NUM_CPU_DEVICES': str(num_devices)})
      for index in range(num_processes)]


def _run(*args, **kwargs):
  """Runs the program to its end; returns the stdout of each process."""
  printed = []
  for process in _start(*args, **kwargs):
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    printed.append(stdout)
  return printed


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


def test_two_processes_equal_one_after_a_stop_a_kill_and_other_devices(
    echo_folder, tmp_path):
  changes = {
      'train.num_steps': 4, 'train.checkpoint_every': 1,
      'train.groups_every': 1, 'evaluation.validate_every': 2}
  alone, workdir = tmp_path / 'alone', tmp_path / 'run'
  experiment = echo.experiment(echo_folder, **changes)
  assert train.train(experiment, alone)
  changes['mesh.fsdp'] = 2

  processes = _start(echo_folder, workdir, 2, **changes)
  _wait_for_steps(workdir, 1, processes)
  processes[1].terminate()
  for process in processes:
    process.communicate(timeout=300)
    assert process.returncode == 42

  processes = _start(echo_folder, workdir, 2, **changes)
  _wait_for_steps(workdir, 2, processes)
  processes[1].kill()
  _, stderr = processes[0].communicate(timeout=60)
  assert processes[0].returncode in PEER_LOST
  assert re.search('Another process of the run|another task died', stderr)
  processes[1].communicate()

  _run(echo_folder, workdir, 1, num_devices=4, **changes | {
      'train.num_steps': 3})
  first, second = _run(echo_folder, workdir, 2, **changes)
  assert 'held-out success: before' in first and 'success' not in second
  assert _groups(workdir) == _groups(alone)
  for name in ('before', 'after'):
    found, expected = (
        json.loads((run / 'evals' / f'{name}.json').read_text())
        for run in (workdir, alone))
    del found['config_hash'], expected['config_hash']
    assert found == expected
  assert (workdir / 'metrics.jsonl').read_text().count('\n') == 4
  (found, step), (expected, _) = map(
      experiment.trained_params, (workdir, alone))
  assert step == 4
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      found, expected)


@pytest.mark.long
@pytest.mark.parametrize('victim', [0, 1])
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_lost_process_ends_the_other_within_the_heartbeat_timeout(
    number, victim, echo_folder, tmp_path):
  processes = _start(echo_folder, tmp_path, 2, **{'train.num_steps': 10_000})
  _wait_for_steps(tmp_path, 1, processes)
  processes[victim].send_signal(number)
  try:
    processes[1 - victim].communicate(timeout=40)
    assert processes[1 - victim].returncode in PEER_LOST
  finally:
    for process in processes:
      process.kill()
      process.communicate()


def test_error_ends_all_processes_before_writing(
    echo_folder, tmp_path):
  processes = _start(echo_folder, tmp_path, 2, **{
      'policies': 'per_role',
      'mesh.pools': (('first', 0, 1), ('second', 1, 2))})
  for process in processes:
    _, stderr = process.communicate(timeout=300)
    # The first to exit may abort the other.
    assert process.returncode in (errors.UserError.status, *PEER_LOST)
    if process.returncode == errors.UserError.status:
      assert "policy 'first' has devices of 1 of 2 processes" in stderr
  assert errors.UserError.status in [p.returncode for p in processes]
  assert not any(tmp_path.iterdir())
