"""Lines of progress break a silence, and only a silence."""

import sys
import time

import jax

from atgrpo_jax import api
from atgrpo_jax.io import metrics
from atgrpo_jax.io import progress
from tests import echo


def _watch(monkeypatch):
  """Watches the captured output of a test; returns jax's listeners."""
  listeners = []
  for kind in ('scalar', 'event_duration_secs'):
    monkeypatch.setattr(
        jax.monitoring, f'register_{kind}_listener', listeners.append)
  monkeypatch.setattr(progress, '_SILENT_SECONDS', 0.2)
  monkeypatch.setattr(progress, '_activities', [])
  monkeypatch.setattr(sys, 'stdout', sys.stdout)  # Ends the thread.
  progress.watch_compilations.cache_clear()
  progress.watch()
  progress.watch_compilations()
  return listeners


def _lines(capsys, num_lines):
  """Waits until so many lines are printed."""
  printed, end = '', time.monotonic() + 30
  while printed.count('\n') < num_lines and time.monotonic() < end:
    time.sleep(0.05)
    printed += capsys.readouterr().out
  return printed.splitlines()


def test_compiling_programs_are_named(monkeypatch, capsys):
  start, end = _watch(monkeypatch)

  def compile_program(fun_name, num_lines):
    for event in (progress.COMPILE, '/jax/another'):
      start(event, 0.0, fun_name=fun_name)
    lines = _lines(capsys, num_lines)
    for event in (progress.COMPILE, '/jax/another'):
      end(event, 1.0, fun_name=fun_name)
    return lines

  assert compile_program('jit(decode)', 2) == 2 * ['compiling decode …']
  time.sleep(0.5)  # Nothing happens.
  assert capsys.readouterr().out == ''
  with metrics.StepClock().part('update'):
    assert compile_program('step', 1) == ['compiling step …']
    assert _lines(capsys, 1) == ['update …']


def test_other_lines_end_a_silence(monkeypatch, capsys):
  _watch(monkeypatch)
  with progress.activity(lambda: 'busy'):
    end = time.monotonic() + 1
    while time.monotonic() < end:
      print('other')
      time.sleep(0.01)
    assert 'busy' not in capsys.readouterr().out
    assert _lines(capsys, 1) == ['busy']


def test_a_run_of_a_script_is_watched_until_it_ends(monkeypatch, capsys):
  monkeypatch.setattr(progress, '_SILENT_SECONDS', 0.2)
  before = sys.stdout
  with api.Run(echo.get_config(), 'unused', executor=object()):
    with progress.activity(lambda: 'busy'):
      assert _lines(capsys, 1) == ['busy']
    with progress.watching():  # Already watched.
      assert sys.stdout is not before
  assert sys.stdout is before


def test_what_is_printed_is_copied_from_the_start(
    monkeypatch, capsys, tmp_path):
  _watch(monkeypatch)
  print('before')
  progress.copy_to(tmp_path / 'terminal.log')
  print('after')
  progress.print_error('error: a reason')
  assert (tmp_path / 'terminal.log').read_text() == (
      'before\nafter\nerror: a reason\n')
  assert capsys.readouterr() == ('before\nafter\n', 'error: a reason\n')
