"""The grader process: limits, replacement, and the measured figures."""

import json
import os
import pathlib
import signal

import pytest

from environments.math_problems import grader
from environments.math_problems import measure

EQUAL, DIFFERENT = grader.Verdict.EQUAL, grader.Verdict.DIFFERENT
CUT_OFF, FAILED = grader.Verdict.CUT_OFF, grader.Verdict.FAILED


@pytest.fixture(autouse=True)
def empty_cache():
  grader._grade.cache_clear()


def test_integers_and_long_answers_need_no_process(monkeypatch):
  monkeypatch.setattr(grader, '_grade', None)
  assert grader.grade('-12', '-012') is EQUAL
  assert grader.grade('-12', '12') is DIFFERENT
  assert grader.grade('1' * (grader.MAX_LETTERS + 1), '7') is CUT_OFF


def test_endless_comparison_is_cut_off(monkeypatch):
  monkeypatch.setattr(grader, 'CPU_SECONDS', 1)
  assert grader.grade(r'9^{9^{9^{9}}}', '7') is CUT_OFF
  # The grader still runs.
  assert grader.grade(r'\frac{1}{2}', '0.5') is EQUAL
  assert grader.grade(r'\frac{1}{2}', '0.51') is DIFFERENT


def test_grader_has_one_thread():
  # On hosts with many cores, a thread for each would take all memory.
  assert grader.grade('x+1', '1+x') is EQUAL
  tasks = pathlib.Path(f'/proc/{grader._grader.process.pid}/task')
  assert len([*tasks.iterdir()]) == 1


@pytest.mark.parametrize('answer', [
    '', '\0', '\ud800', '\n', '"', '\\', '\\boxed{', r'\frac', '{' * 50,
    r'\text{', '9' * 1900 + '.5e999', '1/0', '$', r'\infty-\infty'])
def test_malformed_answers_are_wrong(answer):
  assert grader.grade(answer, '7') in (CUT_OFF, DIFFERENT)


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_hanging_grader_is_replaced(end, monkeypatch):
  class Next(grader._Grader):
    def __init__(self):
      monkeypatch.undo()
      super().__init__()

  assert grader.grade('x+1', '1+x') is EQUAL
  first = grader._grader.process.pid
  os.kill(first, end)
  monkeypatch.setattr(grader, '_WALL_SECONDS', 0.1)
  monkeypatch.setattr(grader, '_Grader', Next)
  assert grader.grade('x+2', '2+x') is EQUAL
  assert grader._grader.process.pid != first
  with pytest.raises(ProcessLookupError):
    os.kill(first, 0)


def test_second_failure_is_no_judgement_and_not_cached(monkeypatch):
  class Broken:
    owner = os.getpid()
    ask = staticmethod(lambda request: FAILED)
    close = staticmethod(lambda: None)

  with monkeypatch.context() as patch:
    patch.setattr(grader, '_Grader', Broken)
    patch.setattr(grader, '_grader', None)
    assert grader.grade('x+3', '3+x') is FAILED
  assert grader.grade('x+3', '3+x') is EQUAL


def test_measure_prints_every_exception(tmp_path, capsys):
  path = tmp_path / 'downloads/manual/aime25/test.jsonl'
  path.parent.mkdir(parents=True)
  path.write_text(''.join(
      json.dumps({'question': 'Find $x$.', 'answer': answer}) + '\n'
      for answer in ('025', '$x+y$, where $y>3$')))
  measure.main(str(tmp_path), 'aime25')
  lines = capsys.readouterr().out.splitlines()
  assert lines[-1] == (
      'aime25: 2 of 2 gold answers accepted; wrong answers refused: digit 1 of '
      '2, text 2 of 2, unit 2 of 2, equation 2 of 2, unknowns 2 of 2, blank 1 '
      'of 1, size 2 of 2')
  assert "wrong answer '$x+y$, where $y>4$'" in lines[-2]
