"""doctor.py: the checks of a run that can start, and of runs that cannot."""

import pytest

from atgrpo_jax import doctor
from atgrpo_jax import errors
from tests import echo


def test_every_check_is_printed_in_order_and_nothing_is_written(
    echo_folder, tmp_path, capsys):
  experiment = echo.experiment(echo_folder, policies='lora_per_role')
  doctor.examine(experiment, tmp_path / 'new' / 'run')
  assert not list(tmp_path.iterdir())
  lines = [
      line.partition(' ') for line in capsys.readouterr().out.splitlines()]
  assert list(dict.fromkeys(check for check, _, _ in lines)) == [
      'devices', 'mesh', 'sandbox', 'disk', 'tasks', 'model', 'tokenizer',
      'decode', 'gradient']
  results = {}
  for check, _, result in lines:
    results.setdefault(check, []).append(result.strip())
  assert results['tasks'] == ['48 in train, 16 in validation, 48 in test']
  first, second = results['model']  # Both adapters lie over one model.
  assert str(echo_folder) in first
  assert first.partition(':')[2] == second.partition(':')[2]
  decoded, = results['decode']  # The second role waits for the first.
  assert decoded.startswith('first: ')
  assert len(results['gradient']) == 2


def test_a_full_disk_is_refused_before_weights_are_read(
    echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(
      doctor.shutil, 'disk_usage',
      lambda path: doctor.shutil._ntuple_diskusage(1, 1, 0))
  checks = []
  with pytest.raises(errors.UserError, match='0 bytes free'):
    for check, _ in doctor.check_all(echo.experiment(echo_folder), tmp_path):
      checks.append(check)
  assert checks[-1] == 'sandbox'


def test_a_workdir_below_a_file_is_refused(echo_folder, tmp_path):
  (tmp_path / 'taken').write_text('')
  with pytest.raises(errors.UserError, match='taken is a file'):
    list(doctor.check_all(
        echo.experiment(echo_folder), tmp_path / 'taken' / 'run'))
