"""A wrong command line ends with one line, exit status 2, and no workdir."""

import pytest

from atgrpo_jax import errors
from atgrpo_jax import main
from tests import command_line

CONFIG = '--config=tests/echo.py'

# Arguments (a workdir is added) -> words of the message.
CASES = [
    ([CONFIG, '--config.rollout.group_sise=4'], ["'group_sise'", 'group_size']),
    ([CONFIG, '--config.rollout.group_size=four'], ['group_size=four']),
    ([CONFIG, '--workdri=x'], ["'workdri'", 'workdir']),
    ([CONFIG, 'stray'], ['stray']),
    ([], ['--config']),
    ([CONFIG, '--workdir='], ['--workdir is missing']),
    ([CONFIG, '--checkpoint=best'], ['--checkpoint', '--mode=evaluate']),
    ([CONFIG, '--mode=replay'], ['--step']),
    ([CONFIG, '--process_id=0'], ['--process_id', '--distributed']),
    ([CONFIG, '--mode=compile_check'], ['compile_check', 'configs/pod.py']),
    (['--config=configs/none.py:debug'], ["'configs/none.py'"]),
    (['--config=configs/plan_path.py:size=3b'], ["size='3b'", '1.7b']),
    # Launch scripts check a run before they use a machine of the cloud.
    (['--check', '--config=configs/pod.py:topology=v5e-16'],
     ["'v5e-16'", "did you mean 'v5litepod-16'"]),
    (['--check', CONFIG, '--config.policies=lora_per_role',
      '--config.lora.rank=0'], ['rank=0']),
    (['--check', CONFIG, '--config.sandbox.level=bwarp'],
     ["sandbox.level='bwarp'", "'bwrap'"]),
]
VALID = [
    ['--check', '--config=docs/examples/debate.py'],  # Names modules beside it.
    ['--check', '--config=configs/pod.py:topology=v5litepod-16'],
    ['--check', '--config=configs/plan_path.py:size=1.7b', '--mode=evaluate',
     '--checkpoint=best', '--config.policies=lora_per_role']]


@pytest.fixture(scope='module')
def results(echo_folder, tmp_path_factory):
  """Exit status and stderr of each case, and the folder of the workdirs."""
  folder = tmp_path_factory.mktemp('stderr')
  workdirs = tmp_path_factory.mktemp('workdirs')
  cases = []
  for number, argv in enumerate([*(argv for argv, _ in CASES), *VALID]):
    argv = list(argv)
    if CONFIG in argv:
      argv.insert(
          argv.index(CONFIG) + 1, f'--config.model.folder={echo_folder}')
    if not any('workdir' in argument for argument in argv):
      argv.insert(0, f'--workdir={workdirs / str(number)}')
    cases.append(argv)
  return command_line.run_main(cases, folder), workdirs


def _error(stderr):
  """Returns the only line that is not a warning."""
  line, = [
      line for line in stderr.splitlines()
      if not line.startswith(('W', '[transformers]'))]
  prefix, _, message = line.partition('error: ')
  assert prefix == '', stderr
  return message


@pytest.mark.parametrize('number', range(len(CASES)))
def test_mistake_is_one_line(number, results):
  (status, stderr), workdirs = results[0][number], results[1]
  assert status == 2, stderr
  message = _error(stderr)
  for words in CASES[number][1]:
    assert words in message
  assert '\\n' not in message
  assert not (workdirs / str(number)).exists()


def test_valid_launches_pass_the_check(results):
  start = len(CASES)
  assert results[0][start:start + len(VALID)] == [(0, '')] * len(VALID)


def test_traceback_of_user_code_precedes_the_message(capsys):
  error = errors.UserError('Env.step failed.')
  error.user_traceback = 'Traceback:\n  line 3\n'
  assert main._report(error) == 2
  assert capsys.readouterr().err == (
      'Traceback:\n  line 3\nerror: Env.step failed.\n')
