"""doctor.py: the checks of a run that can start, and of runs that cannot."""

import re
import shutil

import pytest

from atgrpo_jax import doctor
from atgrpo_jax import errors
from tests import echo

CHECKS = [
    'devices', 'mesh', 'sandbox', 'disk', 'tokenizer', 'data', 'decode',
    'gradient']


def test_checks_are_printed_in_order_and_write_nothing(
    echo_folder, tmp_path, capsys):
  experiment = echo.experiment(
      echo_folder, policies='lora_per_role',
      **{'evaluation.validation': 'validation[:8]'})
  doctor.examine(experiment, tmp_path / 'new' / 'run')
  assert not list(tmp_path.iterdir())
  printed = capsys.readouterr().out
  checks = [line.split()[0] for line in printed.splitlines()]
  assert list(dict.fromkeys(checks)) == CHECKS
  # The second role waits for the first; each role has an adapter.
  assert checks.count('decode') == 1 and checks.count('gradient') == 2
  assert experiment.config.rollout.max_new_tokens == 2
  assert 'validation[:8]: 8 tasks' in printed
  words, = re.findall("decode +first: '(.*)', after", printed)
  assert len(words.split()) <= 2


def test_a_failed_check_does_not_keep_others_from_running(
    echo_folder, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
      shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(1, 1, 0))
  with pytest.raises(errors.UserError, match='0 bytes free'):
    doctor.examine(echo.experiment(
        echo_folder, **{'dataset.train': 'training'}), tmp_path)
  printed = capsys.readouterr().out
  assert 'FAILED: The disk of' in printed
  assert "FAILED: tests.echo.tasks('training') failed" in printed
  assert '\ngradient ' in printed
