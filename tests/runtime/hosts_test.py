"""Two and four processes are one run: the same groups, updates and files."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from atgrpo_jax.runtime import checkpoints as checkpoints_lib
from tests import echo

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHANGES = {
    'train.num_steps': 2, 'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 2}


def _run(folder, workdir, num_processes, **changes):
  """One run of the program; returns what each process printed."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = free.getsockname()[1]
  command = [
      sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
      f'--workdir={workdir}', f'--config.model.folder={folder}',
      *(f'--config.{name}={value}'
        for name, value in (CHANGES | changes).items())]
  processes = []
  for index in range(num_processes):
    joining = [] if num_processes == 1 else [
        '--distributed', f'--coordinator_address=localhost:{port}',
        f'--num_processes={num_processes}', f'--process_id={index}']
    processes.append(subprocess.Popen(
        command + joining, cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {'JAX_PLATFORMS': 'cpu'}))
  printed = []
  for process in processes:
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    printed.append(stdout)
  return printed


@pytest.fixture(scope='module')
def alone(echo_folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('alone') / 'run'
  _run(echo_folder, workdir, 1)
  return workdir


def _groups(workdir):
  """Everything of the groups but the digits of the log-probabilities."""
  groups = []
  for path in sorted((workdir / 'groups').iterdir()):
    for line in path.read_text().splitlines():
      group = json.loads(line)
      for candidate in group['candidates']:
        candidate['logprobs'] = len(candidate['logprobs'])
      groups.append(group)
  return groups


def _params(workdir, folder):
  experiment = echo.experiment(folder)
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  restored = checkpoints.restore(experiment.state_template())
  checkpoints.close()
  assert restored.step == 2
  return jax.device_get(restored.state['shared'].params)


@pytest.mark.parametrize('num_processes, fsdp', [(2, 2), (4, 1)])
def test_several_processes_are_one_run(
    num_processes, fsdp, alone, echo_folder, tmp_path):
  workdir = tmp_path / 'run'
  printed = _run(
      echo_folder, workdir, num_processes, **{'mesh.fsdp': fsdp})
  # Only the first speaks.
  assert 'held-out success: before' in printed[0]
  assert not any('success' in text for text in printed[1:])
  assert _groups(workdir) == _groups(alone)
  for name in ('before', 'after'):
    found, expected = (
        json.loads((run / 'evals' / f'{name}.json').read_text())
        for run in (workdir, alone))
    del found['config_hash'], expected['config_hash']
    assert found == expected
  assert (workdir / 'metrics.jsonl').read_text().count('\n') == 2
  # The state of several processes is read by one.
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      _params(workdir, echo_folder), _params(alone, echo_folder))
