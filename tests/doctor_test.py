"""doctor.py: what it says of a run that could start."""

import dataclasses
import re

import pytest

from atgrpo_jax import doctor
from atgrpo_jax import errors
from atgrpo_jax.distributed import chips
from tests import echo


@pytest.fixture(scope='module')
def examined(echo_folder, tmp_path_factory):
  """The lines of a run with adapters, on a chip that is made up."""
  lines, folder = [], tmp_path_factory.mktemp('doctor')
  experiment = echo.experiment(echo_folder, policies='lora_per_role')
  chip = dataclasses.replace(chips.TPUS['v5e'], flops=1e9, bandwidth=1e12)
  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(chips, 'chip_of', lambda device: chip)
    for line in doctor._findings(experiment, folder / 'new' / 'run'):
      lines.append(line)
  assert not list(folder.iterdir())  # Nothing was written.
  return lines


def test_all_is_looked_at_in_the_order_in_which_it_would_fail(examined):
  assert list(dict.fromkeys(what for what, _ in examined)) == [
      'devices', 'mesh', 'sandbox', 'disk', 'tasks', 'model', 'answer',
      'decode', 'update', 'change']


def test_what_is_said(examined, echo_folder):
  said = {}
  for what, line in examined:
    said.setdefault(what, []).append(line)
  assert '15.75 GiB each' in said['devices'][0]
  assert said['tasks'] == ['48 in train, 16 in validation, 48 in test']
  first, second = said['model']  # One frozen model.
  assert str(echo_folder) in first
  assert first.partition(':')[2] == second.partition(':')[2]
  assert len(said['answer']) == 1  # `second` would have to see an answer.
  assert said['answer'][0].startswith('first: ')


@pytest.mark.parametrize('what', ['decode', 'update'])
def test_what_is_timed_stands_beside_what_the_chip_needs(examined, what):
  for line in [line for found, line in examined if found == what]:
    seconds, least, share = map(float, re.search(
        r'([\d.]+) m?s for .* needs ([\d.]+) for its products, (\d+) %',
        line).groups())
    assert seconds > 0 < least
    assert share == pytest.approx(100 * least / seconds, rel=0.05, abs=1)


def test_at_most_three_settings_are_named(examined):
  lines = [line for what, line in examined if what == 'change']
  assert 1 <= len(lines) <= 3
  # Of the chip's memory this model takes next to nothing.
  assert re.match(
      r'(--config\.\S+ ?)+: should sample \d+\.\d\d times as fast', lines[0])


def test_on_a_cpu_the_environment_is_looked_at(echo_folder, monkeypatch):
  monkeypatch.setattr(doctor.os, 'cpu_count', lambda: 64)
  experiment = echo.experiment(echo_folder)
  experiment.config.environment.num_workers = 16
  found = doctor._changes(experiment, None)
  assert found[0].startswith('JAX_NUM_CPU_DEVICES=64')
  assert not any('num_workers' in line for line in found)
  experiment.config.environment.num_workers = 15
  assert '--config.environment.num_workers=16' in doctor._changes(
      experiment, None)[-1]


def test_without_room_on_the_disk_it_ends_there(
    echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(
      doctor.shutil, 'disk_usage',
      lambda path: doctor.shutil._ntuple_diskusage(1, 1, 0))
  found = []
  with pytest.raises(errors.UserError, match='0 bytes free'):
    for what, _ in doctor._findings(echo.experiment(echo_folder), tmp_path):
      found.append(what)
  assert found[-1] == 'sandbox'


def test_a_workdir_that_cannot_be_made_is_refused(echo_folder, tmp_path):
  (tmp_path / 'taken').write_text('')
  with pytest.raises(errors.UserError, match='taken is a file'):
    list(doctor._findings(
        echo.experiment(echo_folder), tmp_path / 'taken' / 'run'))
