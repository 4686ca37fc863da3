"""What the user gets wrong is one line, exit status 2, and no workdir."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIG = '--config=tests/echo.py'

# arguments (a workdir is added, unless one is there) -> what the line says.
CASES = [
    ([CONFIG, '--config.rollout.group_sise=4'],
     ['Unknown config key \'group_sise\'', 'Did you mean "group_size"']),
    ([CONFIG, '--config.rolout.group_size=4'],
     ['Unknown config key \'rolout\'', 'Did you mean "rollout"']),
    ([CONFIG, '--config.zebra=4'],
     ['Unknown config key \'zebra\'', 'See the config file']),
    ([CONFIG, '--config.rollout.group_size=four'],
     ['--config.rollout.group_size=four', 'invalid literal for int']),
    ([CONFIG, '--config.model.remat=perhaps'],
     ['--config.model.remat=perhaps', 'Non-boolean']),
    ([CONFIG, '--workdri=x'], ["'workdri'", 'Did you mean: workdir']),
    ([CONFIG, '--mode=trian'],
     ['--mode=trian',
      '<train|evaluate|export|replay|compile_check|doctor|report>']),
    ([CONFIG, 'stray'], ['Unexpected arguments: stray']),
    ([], ['--config is missing']),
    ([CONFIG, '--workdir'], ['workdir']),
    ([CONFIG, '--mode=report'],
     ['--mode=report reads the config of its workdir', 'leave out --config']),
    (['--mode=report', '--workdir='], ['--workdir is missing']),
    (['--mode=report'], ['not a workdir']),
    ([CONFIG, '--workdir='], ['--workdir is missing']),
    ([CONFIG, '--checkpoint=best'],
     ['--checkpoint is given without --mode=evaluate or export']),

    ([CONFIG, '--task=x'], ['--task is given without --mode=replay']),
    ([CONFIG, '--mode=replay'], ['--step is missing', 'such as after']),
    (['--mode=replay', '--step=0'], ['--config is missing', 'holds no run']),
    (['--config=configs/none.py:debug'], ["no file 'configs/none.py'"]),
    (['--config=configs/plan_path.py:size=3b'], ["size='3b'", '1.7b']),
    (['--config=configs/plan_path.py:debgu'], ["'debgu'", "'debug'"]),
    ([CONFIG, '--config.environment.program_slots=100000'],
     ['environment.program_slots=100000', 'below 1025', 'process']),
    ([CONFIG, '--config.environment.program_slots=0'],
     ['environment.program_slots=0', 'at least 1']),
    # Found when the experiment is built, and when it is run.
    ([CONFIG, '--config.rollout.group_size=1'],
     ['group_size=1', 'at least 2']),
    ([CONFIG, '--config.evaluation.test=exam'],
     ["echo has no split 'exam'", 'test (48 tasks)']),
    ([CONFIG, '--mode=evaluate', '--config.evaluation.name=after'],
     ["evaluation.name='after'", 'plain file name']),
]

# One import serves all cases: each is the program in a process of its own.
_PROGRAM = """
import json
import os
import sys
from atgrpo_jax import main
from atgrpo_jax import train

folder, cases = sys.argv[1], json.loads(sys.argv[2])
for number, argv in enumerate(cases):
  if not os.fork():
    os.dup2(os.open(f'{folder}/{number}', os.O_CREAT | os.O_WRONLY), 2)
    sys.argv = ['main.py', *argv]
    main.run()
  print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope='module')
def answers(echo_folder, tmp_path_factory):
  """(exit status, stderr) of each case, and the folder of their workdirs."""
  folder = tmp_path_factory.mktemp('stderr')
  workdirs = tmp_path_factory.mktemp('workdirs')
  cases = []
  for number, (argv, _) in enumerate(CASES):
    argv = list(argv)
    if CONFIG in argv:
      argv.insert(1, f'--config.model.folder={echo_folder}')
    if not any('workdir' in argument for argument in argv):
      argv.insert(0, f'--workdir={workdirs / str(number)}')
    cases.append(argv)
  cases += [[CONFIG], [CONFIG, '--traceback']]  # Without a workdir.
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, folder, json.dumps(cases)], cwd=ROOT,
      text=True, stdout=subprocess.PIPE, check=True, timeout=300)
  return [
      (int(status), (folder / str(number)).read_text())
      for number, status in enumerate(done.stdout.split())], workdirs


def _error(stderr):
  """The line that is no warning."""
  line, = [
      line for line in stderr.splitlines()
      if not line.startswith(('W', '[transformers]'))]
  prefix, _, message = line.partition('error: ')
  assert prefix == '', stderr
  return message


@pytest.mark.parametrize('number', range(len(CASES)))
def test_mistake_is_one_line(number, answers):
  (status, stderr), workdirs = answers[0][number], answers[1]
  assert status == 2, stderr
  message = _error(stderr)
  for words in CASES[number][1]:
    assert words in message
  assert '\\n' not in message
  assert not (workdirs / str(number)).exists()


def test_missing_workdir_and_traceback_on_demand(answers):
  (status, stderr), (status_with, stderr_with) = answers[0][-2:]
  assert (status, status_with) == (2, 2)
  assert '--workdir is missing' in _error(stderr)
  assert 'in main' in stderr_with and 'UserError: --workdir' in stderr_with


@pytest.mark.parametrize('is_closed, status', [(True, 2), (False, 1)])
def test_output_that_nobody_reads_is_one_sentence(is_closed, status):
  """As behind `| head`; a broken pipe to something else is another matter."""
  done = subprocess.run(
      ['bash', '-c', f'set -o pipefail; {sys.executable} -c "$1" | '
       + ('true' if is_closed else 'cat'), 'x', '''
import time
from atgrpo_jax import main

def run(main, flags_parser):
  time.sleep(1)
  print("x", flush=True)
  raise BrokenPipeError

main.app.run = run
main.run()
'''], cwd=ROOT, text=True, capture_output=True, timeout=300)
  assert done.returncode == status
  if is_closed:
    assert done.stderr.startswith('error: standard output was closed')
    assert done.stderr.count('\n') == 1
  else:
    assert 'Traceback' in done.stderr
