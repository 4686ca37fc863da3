"""One device and eight compute the same step."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import eight_devices

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp('eight')
  subprocess.run(
      [sys.executable, '-m', 'tests.eight_devices', folder], cwd=ROOT,
      check=True, timeout=600, env=os.environ | {
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '8'})
  return json.loads((folder / 'report.json').read_text())


@pytest.mark.parametrize('name', eight_devices.CASES)
def test_step_equals_one_device(report, name):
  found = report[name]
  # Float32 sums in another order differ by about 1e-6.
  assert found['completions']
  assert found['loss'] < 1e-6
  assert found['grads'] < 1e-5
  assert found['params'] < 1e-5
  # Norms are replicated, and adapters are not sharded over `tensor`.
  fsdp, tensor, lora = eight_devices.CASES[name]
  fraction = 1 / (fsdp if lora else fsdp * tensor)
  assert fraction <= found['bytes'] < fraction + 0.02
  assert found['sharding_kept']


def test_critic_equals_one_device(report):
  assert report['critic'] < 1e-4


def test_finished_candidates_are_not_decoded(report):
  # Each of eight shards has one group at a time and stops after its longest
  # candidate. Bite: shards that stop together.
  found = report['fsdp']
  assert found['decoded_rows'] == found['longest']
  # Four shards of two groups, whose devices share heads, stop together.
  assert report['all three']['decoded_rows'] > found['longest']
