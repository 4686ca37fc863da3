"""Flags to train, evaluate, export, report and so on; see `--help`."""

from concurrent import futures
import contextlib
import os
import pathlib
import select
import sys
import traceback

from absl import app
from absl import flags
from absl import logging
import ml_collections
from ml_collections import config_flags

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import workers as workers_lib
from environments import sandbox as sandbox_lib

_CONFIG = config_flags.DEFINE_config_file(
    'config', None,
    'Config file, as in configs/plan_path.py:size=nano. Override its values '
    'with --config.a.b=value. Without it, the config of the run in --workdir.'
    )
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run, here or gs://...; a run that was '
    'stopped is resumed.')
_MODE = flags.DEFINE_enum(
    'mode', 'train',
    ['train', 'evaluate', 'export', 'replay', 'compile_check', 'doctor',
     'report'],
    'What to do.')
_CHECKPOINT = flags.DEFINE_string(
    'checkpoint', 'latest',
    'With --mode=evaluate and --mode=export: the step of a checkpoint, or '
    'latest, or best, of the highest validation success.')
_STEP = flags.DEFINE_string(
    'step', None,
    'With --mode=replay: a recorded training step, counted from 0 as in '
    'groups/, or an evaluation, such as after.')
_TASK = flags.DEFINE_string(
    'task', None, 'With --mode=replay: the only task to play.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False,
    'Join a run of several processes. On TPU pods, SLURM and Open MPI they '
    'find each other; elsewhere give the three flags below as well.')
_COORDINATOR = flags.DEFINE_string(
    'coordinator_address', None, 'HOST:PORT of the first process.')
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', None, 'Processes of the run.', lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', None, 'Which of them this is, from 0.', lower_bound=0)
_TRACEBACK = flags.DEFINE_bool(
    'traceback', False, 'Show where in the code a user error was found.')

# What a config must have.
_RUN = (
    'seed', 'policies', 'per_policy', 'model', 'lora', 'mesh', 'environment',
    'sandbox', 'dataset', 'rollout', 'advantage', 'critic', 'loss',
    'optimizer', 'buckets',
    'train', 'evaluation', 'export')

# Exit statuses: 0 done; those of the errors; and
DOES_NOT_FIT = 3  # With --mode compile_check.
DIFFERS = 1  # With --mode replay.
STOPPED = signals.STOPPED  # By a signal; the same command resumes.


def main(argv: list[str]) -> int:
  errors.refuse_arguments(argv)
  _check_flags_of_mode(_MODE.value)
  if _MODE.value == 'report':
    return make_report()
  if not _WORKDIR.value and _MODE.value != 'compile_check':
    raise errors.UserError('--workdir is missing; see --help.')
  if not _CONFIG.value:
    raise errors.UserError(
        '--config is missing, and --workdir holds no run whose config could be '
        'taken; see --help.')
  config = _CONFIG.value
  check_sections(_MODE.value, config)
  if _MODE.value == 'compile_check':
    from atgrpo_jax import config as config_lib
    from atgrpo_jax.compile_check import report
    config_lib.check_run(config)
    return 0 if report.compile_check(config) else DOES_NOT_FIT
  workdir = files.as_path(_WORKDIR.value)
  process = {
      'coordinator_address': _COORDINATOR.value,
      'num_processes': _NUM_PROCESSES.value, 'process_id': _PROCESS_ID.value}
  _check_process(process)
  stop = signals.StopFlag()
  with contextlib.ExitStack() as stack:
    stack.enter_context(stop.listen())
    # Before jax runs: such a process must not fork.
    workers = stack.enter_context(workers_lib.Workers(
        config.environment.num_workers, config.environment.program_slots,
        config.sandbox.level, config.sandbox.url, is_stopped=stop.is_set))
    config.sandbox.level = workers.level  # Resolves 'auto'.
    from atgrpo_jax.distributed import hosts
    if _DISTRIBUTED.value:
      stack.enter_context(hosts.ExitOnError(_report))
      hosts.initialize(**process)
    if not hosts.is_first():
      silence = stack.enter_context(open(os.devnull, 'w'))
      stack.enter_context(contextlib.redirect_stdout(silence))
    return run_mode(
        _MODE.value, config, workdir, sandbox=workers.sandbox,
        executor=workers, stop=stop, checkpoint=_CHECKPOINT.value,
        step=_STEP.value, task_id=_TASK.value)


def run_mode(
    mode: str, config: ml_collections.ConfigDict, workdir: pathlib.Path, *,
    sandbox: sandbox_lib.Sandbox | None,
    executor: futures.Executor | workers_lib.Workers,
    stop: signals.StopFlag, checkpoint: str = 'latest', step: str | None = None,
    task_id: str | None = None) -> int:
  """Does what one of the modes of a run says; the exit status."""
  from atgrpo_jax import config as config_lib

  def build(config):
    return config_lib.build(config, sandbox=sandbox, executor=executor)

  with files.disk_errors_as_user_errors(workdir):
    if mode == 'replay':
      from atgrpo_jax import replay
      from atgrpo_jax import saved_config
      run = replay.recorded_config(
          config, saved_config.get_config(str(workdir)))
      is_as_expected = replay.replay(
          build(run), build(config), workdir, step=step, task_id=task_id)
      return 0 if is_as_expected else DIFFERS
    experiment = build(config)
    if mode == 'evaluate':
      from atgrpo_jax import evaluate
      evaluate.evaluate_run(experiment, workdir, checkpoint)
      return 0
    if mode == 'doctor':
      from atgrpo_jax import doctor
      doctor.examine(experiment, workdir)
      return 0
    if mode == 'export':
      from atgrpo_jax import export
      export.export_run(experiment, workdir, checkpoint)
      return 0
    from atgrpo_jax import train
    return 0 if train.train(experiment, workdir, stop) else STOPPED


def make_report() -> int:
  """Writes `report.html` of a workdir; the exit status."""
  if not _WORKDIR.value:
    raise errors.UserError('--workdir is missing; see --help.')
  if _CONFIG.value or _DISTRIBUTED.value:
    raise errors.UserError(
        '--mode=report reads the config of its workdir, in one process; leave '
        'out --config and --distributed.')
  from atgrpo_jax.viewer import report
  workdir = files.as_path(_WORKDIR.value)
  with files.disk_errors_as_user_errors(workdir):
    print(f'written to {report.write(workdir)}')
  return 0


def _check_flags_of_mode(mode: str) -> None:
  """Raises UserError for a flag that another mode reads, or that is missing."""
  for flag, modes in (
      (_CHECKPOINT, ('evaluate', 'export')),
      (_STEP, ('replay',)), (_TASK, ('replay',))):
    if flag.present and mode not in modes:
      raise errors.UserError(
          f'--{flag.name} is given without --mode={" or ".join(modes)}; add '
          'it.')
  if mode == 'replay' and not _STEP.value:
    raise errors.UserError(
        '--step is missing; give a recorded step, such as 0, or an evaluation, '
        'such as after.')


def check_sections(mode: str, config: ml_collections.ConfigDict) -> None:
  """Raises UserError for a config of another mode, or a part of one."""
  needed = _RUN
  if mode == 'compile_check':
    needed += ('compile_check',)
  missing = [name for name in needed if name not in config]
  if missing:
    example = (
        'configs/pod.py' if mode == 'compile_check' else 'configs/plan_path.py')
    raise errors.UserError(
        f'--mode={mode}: the config has no {", ".join(missing)}; give one like '
        f'{example}.')


def _check_process(process: dict[str, str | int | None]) -> None:
  """Says what does not fit together before the processes wait in vain."""
  given = [name for name, value in process.items() if value is not None]
  if given and not _DISTRIBUTED.value:
    raise errors.UserError(
        f'--{given[0]} is given without --distributed; add that to join a run '
        'of several processes.')
  if given and len(given) < len(process):
    raise errors.UserError(
        f'--{given[0]} is given, but not --'
        f'{", --".join(process.keys() - given)}; give all three or none.')
  if given and process['process_id'] >= process['num_processes']:
    raise errors.UserError(
        f'--process_id={process["process_id"]} is none of the '
        f'{process["num_processes"]} processes, which count from 0.')


def run() -> None:
  """Parses the flags and exits with a status; user errors are one line."""
  logging.set_verbosity(logging.WARNING)
  # It would report at every start that PyTorch, which we do not use, is absent.
  os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
  # Python's own clean-up would complain after a run that ends at once.
  os.environ.setdefault('PYTHONWARNINGS', 'ignore:resource_tracker')
  try:
    app.run(main, flags_parser=parse_flags)
  except errors.REPORTED_ERRORS as error:
    sys.exit(_report(error))
  except BrokenPipeError:
    if not _lost_output():
      raise
    sys.exit(_report(errors.UserError(
        'standard output was closed while there was more to print; give it a '
        'file, as in `> run.log`, and run the same command again, which '
        'resumes a run.')))


def _lost_output() -> bool:
  """Whether nobody reads what is printed, which then goes nowhere."""
  output = select.poll()
  output.register(sys.stdout.fileno(), 0)
  if not output.poll(0):
    return False
  # Else Python would try again at its end.
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return True


def _report(error: BaseException) -> int:
  """Prints what has ended the program; the exit status."""
  wants_traceback = flags.FLAGS.is_parsed() and _TRACEBACK.value
  if isinstance(error, errors.REPORTED_ERRORS) and not wants_traceback:
    print(f'error: {error}', file=sys.stderr)
  else:
    traceback.print_exception(error)
  return getattr(error, 'status', 1)


def parse_flags(
    argv: list[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Parses the flags; what is wrong in them or the config is a UserError."""
  argv = _with_saved_config(argv)
  path = _value_of('config', argv).partition(':')[0]
  if path and not pathlib.Path(path).is_file():
    raise errors.UserError(
        f'--config: there is no file {path!r} in {os.getcwd()}; give a config '
        'such as configs/plan_path.py:size=nano.')
  try:
    rest = values(argv)
    # If there was an OSError in the file, this raises it.
    is_config = hasattr(values.config, 'to_dict')
  except errors.USER_CODE_ERRORS as error:
    raise errors.UserError(_flag_error(path, error)) from error
  except SystemExit as error:  # As --help does.
    if not _lines_in(path, error):
      raise
    raise errors.UserError(_flag_error(path, error)) from error
  if path and not is_config:
    raise errors.UserError(
        f'{path}: get_config() returned {values.config!r}; it must return an '
        'ml_collections.ConfigDict, as configs/common.py makes one.')
  return rest


def _with_saved_config(argv: list[str]) -> list[str]:
  """The same with the config of the run in --workdir, if none is given."""
  workdir = _value_of('workdir', argv)
  if (_value_of('config', argv) or not workdir
      or _value_of('mode', argv) in ('compile_check', 'report')):
    return argv
  with files.disk_errors_as_user_errors(files.as_path(workdir)):
    if not (files.as_path(workdir) / 'config.json').exists():
      return argv
  from atgrpo_jax import saved_config
  saved_config.get_config(workdir)  # Raises what cannot be read.
  # Where `config_flags` looks for overrides, before which it must stand.
  sys.argv = [argv[0], f'--config={saved_config.__file__}:{workdir}', *argv[1:]]
  return sys.argv


def _value_of(flag: str, argv: list[str]) -> str:
  """What a flag is given on the command line; '' for nothing."""
  for argument, following in zip(argv, [*argv[1:], '']):
    name, equals, value = argument.partition('=')
    if name in (f'-{flag}', f'--{flag}'):
      return value if equals else following
  return ''


def _lines_in(path: str, error: BaseException) -> list[int]:
  """Where an error came through a file."""
  return [
      frame.lineno for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == path]


def _flag_error(path: str, error: BaseException) -> str:
  """What is wrong in the flags, or in the config file at `path`."""
  lines = _lines_in(path, error)
  if isinstance(error, SyntaxError):
    return f'{path} cannot be read: {errors.one_line(error)}.'
  if lines:
    return f'{path}, line {lines[-1]}: {errors.one_line(error)}.'
  if isinstance(error, (AttributeError, KeyError)):
    # An AttributeError may have the KeyError inside. Its text is 'group_sise'
    # and, on a line of its own, the nearest valid name, if one is near.
    inner = error.args[0]
    found = inner.args[0] if isinstance(inner, KeyError) else str(inner)
    if 'get_config' in found:
      return f'{path}: {errors.one_line(error)}.'
    name, _, advice = found.partition('\n')
    return (f'Unknown config key {name}. '
            f'{advice or "See the config file for those it has."}')
  # An error inside the config file comes with its traceback as text.
  text = str(error).strip()
  if not isinstance(error, OSError) and 'parsing config file' not in text:
    return ' '.join(text.split())
  message = text.rpartition('\n')[2]
  message = (message.partition('ValueError: ')[2] or message).strip()
  return f'{path}: {message}'


if __name__ == '__main__':
  run()
