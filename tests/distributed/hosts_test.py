"""Several processes are one run, which begins and ends as one."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import train
from atgrpo_jax.distributed import hosts
from atgrpo_jax.rollout import tree as tree_lib
from tests import echo
from tests.distributed import peers_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHANGES = {
    'train.num_steps': 2, 'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 2}


def test_a_job_of_slurm_is_found(monkeypatch):
  for name in list(os.environ):
    if name.startswith(('SLURM_', 'OMPI_')):
      monkeypatch.delenv(name)
  with pytest.raises(errors.UserError, match='--distributed: .* --process_id.'):
    hosts.detect()
  for name, value in (
      ('JOB_ID', 7), ('STEP_NODELIST', 'node[3-4]'), ('NTASKS', 16),
      ('PROCID', 9), ('LOCALID', 1)):
    monkeypatch.setenv(f'SLURM_{name}', str(value))
  assert hosts.detect() == {
      'coordinator_address': 'node3:61447', 'num_processes': 16,
      'process_id': 9}


def _start(folder, workdir, num_processes, num_devices=1, **changes):
  """The processes of one run, with so many devices each."""
  command = [
      sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
      f'--workdir={workdir}', f'--config.model.folder={folder}',
      *(f'--config.{name}={value}' for name, value in changes.items())]
  address = f'localhost:{peers_test.free_port()}'
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
  """One run of the program; returns what each process printed."""
  printed = []
  for process in _start(*args, **kwargs):
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    printed.append(stdout)
  return printed


def _groups(workdir):
  """All of the records but the digits of the log-probabilities."""
  trees = []
  for path in sorted((workdir / 'groups').iterdir()):
    for tree in map(tree_lib.Tree.to_json, tree_lib.read(path)):
      for node in tree['nodes']:
        for group in node['groups']:
          for candidate in group['candidates']:
            candidate['logprobs'] = len(candidate['logprobs'])
      trees.append(tree)
  return trees


def test_two_processes_are_one_run(echo_folder, tmp_path):
  alone, workdir = tmp_path / 'alone', tmp_path / 'run'
  experiment = echo.experiment(echo_folder, **CHANGES)
  assert train.train(experiment, alone)
  first, second = _run(
      echo_folder, workdir, 2, **CHANGES | {'mesh.fsdp': 2})
  # Only the first speaks.
  assert 'held-out success: before' in first and 'success' not in second
  assert _groups(workdir) == _groups(alone)
  for name in ('before', 'after'):
    found, expected = (
        json.loads((run / 'evals' / f'{name}.json').read_text())
        for run in (workdir, alone))
    del found['config_hash'], expected['config_hash']
    assert found == expected
  assert (workdir / 'metrics.jsonl').read_text().count('\n') == 2
  # The state of two processes is read by one.
  _assert_same_parameters(experiment, workdir, alone)


def _assert_same_parameters(experiment, *workdirs):
  (found, step), (expected, last) = map(experiment.trained_params, workdirs)
  assert step == last == experiment.config.train.num_steps
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      found, expected)


def test_a_run_goes_on_with_other_devices_and_processes(echo_folder, tmp_path):
  changes = {'train.checkpoint_every': 1}
  alone, workdir = tmp_path / 'alone', tmp_path / 'run'
  experiment = echo.experiment(
      echo_folder, **changes | {'train.num_steps': 1})
  assert train.train(experiment, workdir)
  _run(echo_folder, workdir, 1, num_devices=4, **changes | {
      'train.num_steps': 2, 'mesh.fsdp': 2, 'mesh.tensor': 1})
  _run(echo_folder, workdir, 2, **changes | {
      'train.num_steps': 3, 'mesh.fsdp': 2})
  experiment = echo.experiment(
      echo_folder, **changes | {'train.num_steps': 3})
  assert train.train(experiment, alone)
  _assert_same_parameters(experiment, workdir, alone)


def test_a_pool_of_one_process_is_refused_before_weights_are_read(
    echo_folder, tmp_path):
  for process in _start(echo_folder, tmp_path, 2, **{
      'policies': 'per_role', 'mesh.pools': 'first=0:1,second=1:2'}):
    _, stderr = process.communicate(timeout=300)
    assert process.returncode
    assert "policy 'first' has devices of 1 of 2 processes" in stderr
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('victim', [0, 1])
def test_when_one_is_killed_the_other_ends(victim, echo_folder, tmp_path):
  processes = _start(echo_folder, tmp_path, 2, **{'train.num_steps': 10_000})
  metrics = tmp_path / 'metrics.jsonl'
  while not metrics.exists() or not metrics.read_text():
    assert not any(process.poll() for process in processes)
    time.sleep(0.1)
  processes[victim].kill()
  other = processes[1 - victim]
  _, stderr = other.communicate(timeout=60)
  # But for what it warned of before.
  assert other.returncode == errors.InfrastructureError.status == 3
  assert stderr.splitlines()[-1] == (
      f'error: Process {victim} has ended without a word; see what it printed, '
      'then run the same command again.')
  assert not re.search(r'Traceback|Gloo|\*\*\*|coordination', stderr)
  processes[victim].communicate()
