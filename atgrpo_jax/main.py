"""The command line: flags, and the mode that they select; see `--help`."""

import argparse
import contextlib
import functools
import gc
import os
import pathlib
import re
import signal
import sys
import traceback
import typing

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from atgrpo_jax import errors
from atgrpo_jax import settings
from atgrpo_jax.io import files
from atgrpo_jax.io import progress
from atgrpo_jax.io import signals

if typing.TYPE_CHECKING:
  from atgrpo_jax import api

_CONFIG = config_flags.DEFINE_config_file(
    'config', None,
    'Config file, e.g. configs/plan_path.py:size=nano. --config.a.b=value '
    'overrides a value. By default the config of the run in --workdir.')
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run, local or gs://...; an existing run is '
    'resumed.')
_MODE = flags.DEFINE_enum(
    'mode', 'train',
    ['train', 'evaluate', 'export', 'replay', 'play', 'compile_check',
     'doctor', 'report', 'compare'],
    'What to do.')
_CHECKPOINT = flags.DEFINE_string(
    'checkpoint', 'latest',
    'With --mode=evaluate and --mode=export: the step of a checkpoint, '
    '"latest", or "best" (highest validation success).')
_STEP = flags.DEFINE_string(
    'step', None,
    'With --mode=replay: a recorded training step, counted from 0 as in '
    'groups/, or the name of an evaluation, such as after.')
_REPLIES = flags.DEFINE_string(
    'replies', 'typed',
    'With --mode=play: "typed", "empty", "random" (words of the prompt), or a '
    'file with a JSON text per line.')
_TASKS = flags.DEFINE_integer(
    'tasks', 1, 'With --mode=play: number of training tasks.', lower_bound=1)
_WATCH = flags.DEFINE_bool(
    'watch', False,
    'With --mode=compare: write the page again while a run is running.')
_CHECK = flags.DEFINE_bool(
    'check', False,
    'Only check the flags and the config, which needs no device and no model.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False,
    'Join a run of several processes. On TPU pods, SLURM and Open MPI they '
    'find each other; elsewhere give the following three flags, too.')
_COORDINATOR = flags.DEFINE_string(
    'coordinator_address', None, 'HOST:PORT of process 0.')
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', None, 'Number of processes of the run.', lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', None, 'Index of this process, from 0.', lower_bound=0)

# Flags that only some modes read.
_MODE_FLAGS = (
    (_CHECKPOINT, ('evaluate', 'export')), (_STEP, ('replay',)),
    (_REPLIES, ('play',)), (_TASKS, ('play',)), (_WATCH, ('compare',)),
    (_CHECK, ('train', 'evaluate', 'export', 'doctor')))

# Exit statuses besides 0 and those of `errors`.
DOES_NOT_FIT = 3  # --mode=compile_check.
DIFFERS = 1  # --mode=replay.
STOPPED = signals.STOPPED  # Stopped by a signal; the same command resumes.


def main(argv: list[str]) -> int:
  """Runs the selected mode; returns the exit status."""
  mode = _MODE.value
  if mode != 'compare':
    errors.refuse_arguments(argv)
  _cache_programs()
  process = {
      'coordinator_address': _COORDINATOR.value,
      'num_processes': _NUM_PROCESSES.value, 'process_id': _PROCESS_ID.value}
  _check_flags(mode, process)
  # `doctor` reports mistakes beside those of other parts.
  if mode not in ('report', 'compare', 'doctor'):
    settings.read(_CONFIG.value, None)
  if mode == 'play':
    from atgrpo_jax import play
    play.play(_CONFIG.value, _REPLIES.value, _TASKS.value)
    return 0
  progress.watch()
  # jax is imported here, so that mistakes in the flags are reported sooner.
  loading = progress.activity(lambda: 'loading jax and other libraries …')
  if _CHECK.value:
    with loading:
      from atgrpo_jax import config as config_lib
    config_lib.check(_CONFIG.value)
    return 0
  if mode in ('report', 'compare'):
    with loading:
      from atgrpo_jax.viewer import compare
      from atgrpo_jax.viewer import report
    workdir = files.as_path(_WORKDIR.value)
    with files.disk_errors_as_user_errors(workdir):
      path = report.write(workdir) if mode == 'report' else compare.compare(
          workdir, [files.as_path(run, 'a run') for run in argv[1:]],
          _WATCH.value)
    print(f'written to {path}')
    return 0
  if mode == 'compile_check':
    config = _CONFIG.value
    if 'compile_check' not in config:
      raise errors.UserError(
          '--mode=compile_check: --config has no section compile_check; see '
          'configs/pod.py.')
    with loading:
      from atgrpo_jax import config as config_lib
      from atgrpo_jax.compile_check import report
      progress.watch_compilations()
    config_lib.check_run(config)
    return 0 if report.compile_check(config)['fits'] else DOES_NOT_FIT
  stop = signals.StopFlag()
  with contextlib.ExitStack() as stack:
    stack.enter_context(stop.listen())
    with loading:
      from atgrpo_jax import api
      from atgrpo_jax.distributed import hosts
      progress.watch_compilations()
    # Collections skip the objects of these modules. They took a second at exit.
    gc.freeze()
    workdir = files.as_path(_WORKDIR.value)
    stack.enter_context(files.disk_errors_as_user_errors(workdir))
    # The processes of the run start before jax has threads.
    run = stack.enter_context(api.Run(_CONFIG.value, workdir, stop=stop))
    if _DISTRIBUTED.value:
      stack.push(functools.partial(hosts.exit_on_error, _report))
      with stop.exit_at_once(), progress.activity(
          lambda: 'waiting for all processes to start …'):
        hosts.initialize(**process)
    hosts.check_platform()
    if not hosts.is_first():
      null = stack.enter_context(open(os.devnull, 'w'))
      stack.enter_context(contextlib.redirect_stdout(null))
    return run_mode(
        mode, run, checkpoint=_CHECKPOINT.value, step=_STEP.value)


def run_mode(
    mode: str, run: 'api.Run', *, checkpoint: str = 'latest',
    step: str | None = None) -> int:
  """Runs a mode that needs an experiment; returns the exit status."""
  with files.disk_errors_as_user_errors(run.workdir):
    if mode == 'evaluate':
      run.evaluate(checkpoint)
    elif mode == 'export':
      run.export(checkpoint)
    elif mode == 'replay':
      return 0 if run.replay(step) else DIFFERS
    elif mode == 'doctor':
      run.examine()
    elif 'after' not in run.train():
      return STOPPED
    return 0


def _cache_programs() -> None:
  """Keeps compiled programs in the user's cache, unless jax is told otherwise.

  The launch scripts name other folders.
  """
  cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  os.environ.setdefault(
      'JAX_COMPILATION_CACHE_DIR', os.path.join(cache, 'atgrpo_jax', 'jax'))
  # A run has dozens of small programs.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')


# ---- Checks of the flags ----------------------------------------------------


def _check_flags(mode: str, process: dict[str, str | int | None]) -> None:
  """Raises UserError for missing, surplus or contradictory flags."""
  for flag, modes in _MODE_FLAGS:
    if flag.present and mode not in modes:
      raise errors.UserError(
          f'--{flag.name} needs --mode={" or --mode=".join(modes)}.')
  if mode == 'replay' and not _STEP.value:
    raise errors.UserError(
        '--step is missing; give a recorded step such as 0, or an evaluation '
        'such as after.')
  if not _WORKDIR.value and mode not in ('compile_check', 'play'):
    raise errors.UserError('--workdir is missing; see --help.')
  if mode not in ('report', 'compare') and not _CONFIG.value:
    raise errors.UserError(
        '--config is missing, and --workdir holds no run with a config; see '
        '--help.')
  given = [name for name, value in process.items() if value is not None]
  if given and not _DISTRIBUTED.value:
    raise errors.UserError(
        f'--{given[0]} is given without --distributed; add --distributed.')


# ---- Parsing and errors -----------------------------------------------------


def run() -> None:
  """Parses the flags and exits; a user error is printed as one line."""
  logging.set_verbosity(logging.WARNING)
  # A caller that ignores it would hide the ends of this process's children.
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  if {'-h', '-help', '--help', '--helpshort', '--helpfull'} & {*sys.argv}:
    # absl would exit with 1.
    app.usage(shorthelp=True, writeto_stdout=True)
    sys.exit()
  try:
    app.run(main, flags_parser=parse_flags)
  except (*errors.REPORTED_ERRORS, signals.Stopped) as error:
    sys.exit(_report(error))


def _report(error: BaseException) -> int:
  """Prints why the program ends early; returns the exit status."""
  if isinstance(error, signals.Stopped):
    print(error, flush=True)
    return error.status
  if isinstance(error, errors.REPORTED_ERRORS):
    user_traceback = getattr(error, 'user_traceback', '')
    progress.print_error(f'{user_traceback}error: {error}')
  else:
    progress.print_error(''.join(traceback.format_exception(error)).rstrip())
  return getattr(error, 'status', 1)


def parse_flags(
    argv: list[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Parses the flags; raises UserError for errors in them or in the config.

  Without --config, reads the config of the run in --workdir.
  """
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for name in ('config', 'workdir', 'mode'):
    parser.add_argument(
        f'--{name}', f'-{name}', nargs='?', default=[], action='append')
  given, _ = parser.parse_known_args(argv)
  for name, found in vars(given).items():
    if len(found) > 1:
      raise errors.UserError(
          f'--{name} is given {len(found)} times, as '
          f'{", ".join(map(str, found))}; give it once.')
    setattr(given, name, ''.join(filter(None, found)))
  path = (given.config or '').partition(':')[0]
  if path and not pathlib.Path(path).is_file():
    example = pathlib.Path(__file__).parents[1] / path
    if not example.is_file():
      example = 'configs/plan_path.py:size=nano'
    raise errors.UserError(
        f'--config: there is no file {path!r} in {os.getcwd()}; give a config '
        f'such as {example}.')
  if path:  # The config may name modules beside it, also to the workers.
    sys.path.append(str(pathlib.Path(path).resolve().parent))
  if (given.workdir and not path
      and given.mode not in ('compile_check', 'report', 'compare')):
    argv = _add_saved_config(argv, given.workdir)
  try:
    rest = values(argv)
    # The first access raises an OSError of the config file.
    is_config = hasattr(values.config, 'to_dict')
  except Exception as error:  # A config file may raise anything.
    raise errors.UserError(_describe(path, error)) from error
  if path and not is_config:
    raise errors.UserError(
        f'{path}: get_config() returned {values.config!r}; expected an '
        'ml_collections.ConfigDict, see configs/common.py.')
  return rest


def _add_saved_config(argv: list[str], workdir: str) -> list[str]:
  """Adds the config of the run in `workdir`, if there is one."""
  with files.disk_errors_as_user_errors(files.as_path(workdir)):
    if not (files.as_path(workdir) / 'config.json').exists():
      return argv
  from atgrpo_jax import saved_config
  saved_config.get_config(workdir)  # Raises if it is unreadable.
  # config_flags looks for overrides in sys.argv, after --config.
  sys.argv = [argv[0], f'--config={saved_config.__file__}:{workdir}', *argv[1:]]
  return sys.argv


def _describe(path: str, error: BaseException) -> str:
  """Describes an error in the flags or in the config file at `path`."""
  path = path or '--config'
  lines = [
      frame.lineno for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == path]
  if lines:
    return f'{path}, line {lines[-1]}: {errors.one_line(error)}.'
  if isinstance(error, AttributeError) and isinstance(error.args[0], KeyError):
    error = error.args[0]
  if isinstance(error, KeyError):
    key, _, advice = error.args[0].partition('\n')
    nearest = re.match('Did you mean (".+") instead', advice)
    end = f'; did you mean {nearest[1]}?' if nearest else '.'
    return f'{path} has no key {key}{end}'
  if isinstance(error, flags.Error):
    # ml_collections puts the traceback of the config file into the message.
    first, *others = str(error).strip().splitlines()
    message = others[-1].removeprefix('ValueError: ') if others else first
    return f'{path}: {message}' if others else message
  return f'{path}: {errors.one_line(error)}.'


if __name__ == '__main__':
  run()
