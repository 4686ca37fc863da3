"""What tpu_vm.sh and tpu_pod.sh do on the machine that starts them.

_tpu.sh calls this with their options. An attempt gets the TPU VMs, installs the
checkout there, starts the trainer, watches it and asks how it ended. If the TPU
VMs are taken away meanwhile, or cannot be reached, there is another attempt.
What happens on a worker is in _tpu_worker.sh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import re
import shlex
import signal
import sys
import time

import _tpu_attempts
import _tpu_machine

_BUCKET = 'gs://'
_WORKER = 'bash atgrpo_jax/launch/_tpu_worker.sh'
_STATUS = re.compile(r'(\S+): exit status (\d+)(, as asked)?\n?')
# Exit statuses: of gcloud, if it cannot connect; of a trainer that was stopped
# by a signal, or has lost another process.
_NO_CONNECTION = 255
_STOPPED = 42
_BEREFT = 3
_CONNECTIONS = 5  # To a TPU VM that is ready; then there is no connection.
_MAX_PAUSE = 20  # Times --poll-seconds, between attempts that never ran.
_NOT_COPIED = (
    './.git', './.venv', './.cache', './runs', './models/Qwen*', '__pycache__')


@dataclasses.dataclass(frozen=True)
class Settings:
  """The options of the scripts; see their --help."""

  root: pathlib.Path
  script: str
  name: str
  zone: str
  project: str
  accelerator_type: str
  version: str
  num_slices: int
  queued: bool
  spot: bool
  valid_until: str
  retries: int
  poll_seconds: float
  setup: str
  workdir: str
  collect: pathlib.Path
  pod: bool
  stop: bool
  delete: bool
  dry_run: bool
  trainer: tuple[str, ...]  # Its arguments.


def read_settings(args: Sequence[str]) -> Settings:
  """Reads NAME=VALUE ... -- ARGUMENT ..."""
  split = args.index('--')
  values = dict(arg.split('=', 1) for arg in args[:split])
  readers = {
      'bool': lambda text: text == 'true', 'int': int, 'float': float,
      'pathlib.Path': pathlib.Path, 'str': str}
  return Settings(trainer=tuple(args[split + 1:]), **{
      field.name: readers[field.type](values[field.name])
      for field in dataclasses.fields(Settings) if field.name != 'trainer'})


class Driver:
  """Makes attempts until the run is over."""

  def __init__(self, settings: Settings):
    self._settings = settings
    self._machine = _tpu_machine.Machine(
        settings.name, settings.zone, project=settings.project,
        accelerator_type=settings.accelerator_type, version=settings.version,
        num_slices=settings.num_slices, queued=settings.queued,
        spot=settings.spot, valid_until=settings.valid_until,
        poll_seconds=settings.poll_seconds, say=self._say)
    self._attempts = _tpu_attempts.Attempts(settings.collect)
    self._num_failed = 0
    delete = _tpu_machine.show(self._machine.delete_command)
    self._advice = f'delete it with: {delete}'
    # How to go on, or not, for whoever ends this.
    self._left = f'if the TPU VM {settings.name} is there, {self._advice}'
    self._worker = _WORKER
    if os.environ.get('HF_HOME'):
      self._worker = f'HF_HOME={shlex.quote(os.environ["HF_HOME"])} {_WORKER}'

  def run(self) -> int:
    """Returns the exit status."""
    settings = self._settings
    if settings.stop:
      return self._ask_to_stop()
    folders = settings.root / '.cache', settings.collect
    if settings.dry_run:
      print(shlex.join(['mkdir', '-p', *map(str, folders)]))
      return self._attempt()
    for folder in folders:
      folder.mkdir(parents=True, exist_ok=True)
    try:
      return self._make_attempts()
    except KeyboardInterrupt:
      self._attempts.end('not watched any more')
      self._say(f'interrupted; {self._left}', sys.stderr)
      return 130
    finally:
      print(self._attempts.table(), end='', flush=True)

  def _ask_to_stop(self) -> int:
    try:
      self._step('stopping the run', self._machine.on_all(
          f'{self._worker} stop'))
    except _tpu_machine.Failure as failure:
      self._say(f'error: {failure}', sys.stderr)
      return 1
    return 0

  def _make_attempts(self) -> int:
    settings, num_unstarted = self._settings, 0
    while True:
      self._attempts.begin()
      try:
        return self._attempt()
      except _tpu_machine.Failure as failure:
        num_unstarted = 0 if self._attempts.has_started() else num_unstarted + 1
        self._attempts.end(failure.outcome)
        if failure.is_final or not self._may_fail():
          self._say(f'error: {failure}', sys.stderr)
          return 1
        self._num_failed += 1
        self._say(
            f'attempt failed: {failure.outcome}; trying again '
            f'({self._num_failed} of {settings.retries} times)')
        time.sleep(settings.poll_seconds * min(num_unstarted, _MAX_PAUSE))

  def _may_fail(self) -> bool:
    return self._num_failed < self._settings.retries

  # ---- An attempt -----------------------------------------------------------

  def _attempt(self) -> int:
    """The exit status of a run that is over; raises Failure if it is not."""
    settings, machine = self._settings, self._machine
    of_run = shlex.join((settings.workdir, *settings.trainer))
    if settings.dry_run:
      self._show_get()
      is_new = True
    else:
      is_new = machine.get(may_delete=settings.retries > 0)
    self._attempts.note('ready')
    self._left = (
        f'the TPU VM {settings.name} is left as it is: run this again to go '
        f'on, or {self._advice}')
    if is_new or not self._is_in_progress(of_run):
      self._install()
      self._check_storage()
      self._step('starting the run', machine.on_all(
          f'{self._worker} start {of_run}'))
    self._attempts.note('started')
    self._left = (
        f'the run on {settings.name} goes on: run this again to watch it, add '
        f'--stop to stop it, or {self._advice}')
    self._watch_run()
    self._left = (
        f'the TPU VM {settings.name} is left as it is; {self._advice}')
    status = self._ask_status()
    self._end(status)
    return status

  def _is_in_progress(self, of_run: str) -> bool:
    """On TPU VMs that were there; raises Failure if another run is."""
    settings, machine, lines = self._settings, self._machine, []
    self._say(f'using the TPU VM {settings.name}, which is there')
    if not settings.pod and machine.num_workers > 1:
      raise _tpu_machine.Failure(
          f'the TPU VM {settings.name} has {machine.num_workers} workers; use '
          'launch/tpu_pod.sh', 'several workers', is_final=True)
    self._step('asking what runs there', [machine.on_first(
        f'if test -e {_WORKER.split()[-1]}; then {self._worker} state '
        f'{of_run}; fi')], lines.append)
    found = ''.join(lines).strip()
    if found == 'another':
      raise _tpu_machine.Failure(
          f'another run is in progress on {settings.name}; wait for it, stop '
          'it (--stop) or give another --name', 'another run', is_final=True)
    if found:
      self._say('this run is in progress there; watching it')
    return bool(found)

  def _install(self) -> None:
    settings, machine = self._settings, self._machine
    archive = str(settings.root / '.cache/atgrpo_jax.tar.gz')
    self._step('packing the checkout', [(
        'tar', '-czf', archive, '-C', str(settings.root),
        *(f'--exclude={name}' for name in _NOT_COPIED), '.')])
    self._step('copying the checkout', machine.copy_to_all(
        archive, 'atgrpo_jax.tar.gz'))
    # A module that is gone here must go there.
    self._step('installing', machine.on_all(
        'rm -f atgrpo_jax.token && mkdir -p atgrpo_jax && find atgrpo_jax '
        '-mindepth 1 -maxdepth 1 ! -name .venv ! -name .cache ! -name models '
        '! -name runs -exec rm -rf {} + && tar -xzf atgrpo_jax.tar.gz -C '
        f'atgrpo_jax && {self._worker} install'))
    if os.environ.get('HF_TOKEN'):
      self._copy_token(str(settings.root / '.cache/token'))
    if settings.setup:
      self._step('running --setup', machine.on_all(
          f'{self._worker} setup {shlex.quote(settings.setup)}'))

  def _copy_token(self, path: str) -> None:
    """As a file: gcloud and ps keep and show whole commands."""
    commands = self._machine.copy_to_all(path, 'atgrpo_jax.token')
    if self._settings.dry_run:
      print(f'(umask 077; echo "$HF_TOKEN" > {shlex.quote(path)})')
      self._step('copying HF_TOKEN', commands)
      print(shlex.join(['rm', path]))
      return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as file:
      file.write(os.environ['HF_TOKEN'])
    try:
      self._step('copying HF_TOKEN', commands)
    finally:
      os.remove(path)

  def _check_storage(self) -> None:
    """Whether all workers have one --workdir, which outlives the TPU VMs."""
    settings, machine = self._settings, self._machine
    if settings.workdir.startswith(_BUCKET) or (
        not settings.pod and not settings.retries):
      return
    token = str(time.time_ns())
    kind = 'outlives' if settings.retries else 'shared'
    self._step('checking --workdir', [machine.on_first(
        f'{self._worker} mark {settings.workdir} {token}')])
    self._step('checking --workdir on all workers', machine.on_all(
        f'{self._worker} check {settings.workdir} {token} {kind}'))

  def _watch_run(self) -> None:
    machine = self._machine
    follow = machine.on_first(f'{self._worker} follow')
    if self._settings.dry_run:
      self._step('watching the run', [follow])
      return
    self._say('watching the run')
    num_broken = 0
    # Of a TPU VM that is gone, too, some workers may tell how they ended.
    while machine.watch([follow], self._attempts.take_line):
      num_broken += machine.look_up() == 'READY'
      if machine.is_gone():
        return
      if num_broken == _CONNECTIONS:
        raise _tpu_machine.Failure(
            'watching the run failed, for the reason above; '
            f'{self._left}', 'no connection', is_final=False)
      self._say('the connection is broken; watching again')
      time.sleep(self._settings.poll_seconds)

  def _ask_status(self) -> int:
    """The first failure's, else 42 if one was stopped, else 0."""
    machine, lines = self._machine, []

    def take_line(line):
      lines.append(line)
      print(line, end='', flush=True)

    commands = machine.on_all(f'{self._worker} result')
    if self._settings.dry_run:
      self._step('collecting exit statuses', commands)
      return 0
    self._say('collecting exit statuses')
    machine.watch(commands, take_line)
    found = {  # gcloud repeats a command whose connection broke.
        told[1]: told for told in map(_STATUS.fullmatch, lines) if told}
    statuses = [int(told[2]) for told in found.values()]
    failures = [status for status in statuses if status not in (0, _STOPPED)]
    status = (failures or [max(statuses, default=0)])[0]
    all_told = len(statuses) >= machine.num_workers
    if all_told and (status == 0 or any(told[3] for told in found.values())):
      return status
    if self._may_fail() and (
        machine.is_gone_soon() or not all_told or status in (
            _STOPPED, _BEREFT)):
      raise _tpu_machine.Failure(
          f'the run on {self._settings.name} was lost; {self._left}',
          self._outcome(f'exit status {status}' if all_told else 'no status'),
          is_final=False)
    if not all_told:
      raise _tpu_machine.Failure(
          f'only {len(statuses)} of the {machine.num_workers} workers of '
          f'{self._settings.name} told how they ended; {self._left}',
          self._outcome('no status'), is_final=True)
    return status

  def _end(self, status: int) -> None:
    """Collects what there is, and deletes the TPU VMs of a run that is done."""
    settings, machine = self._settings, self._machine
    logs, folders = f'{settings.workdir}.logs', [settings.workdir]
    if settings.workdir.startswith(_BUCKET):
      logs, folders = f'atgrpo_jax/runs/{pathlib.PurePosixPath(logs).name}', []
    if status not in (0, _STOPPED):
      machine.watch([machine.copy_from_first([logs], str(settings.collect))])
      self._say(
          f'error: the run failed with exit status {status}; {self._left}',
          sys.stderr)
      self._attempts.end(f'exit status {status}')
      return
    self._step('collecting the workdir', [machine.copy_from_first(
        [*folders, logs], str(settings.collect))], is_last=True)
    if settings.delete and not status:
      self._delete()
    elif not settings.dry_run:
      self._say(f'collected in {settings.collect}; {self._left}')
    if not settings.dry_run:
      self._attempts.end('stopped' if status else 'done')

  def _delete(self) -> None:
    if self._settings.dry_run:
      print(_tpu_machine.show(self._machine.delete_command))
      return
    doing = f'deleting the TPU VM {self._settings.name}'
    self._say(doing)
    if self._machine.delete():
      raise _tpu_machine.Failure(
          f'{doing} failed, for the reason above; {self._left}',
          'not deleted', is_final=True)

  def _show_get(self) -> None:
    machine = self._machine
    looks = [_tpu_machine.show(look) for look in machine.look_up_commands()]
    if not self._settings.accelerator_type:
      print('\n'.join(looks))
      return
    print(f'{looks[0]} || {_tpu_machine.show(machine.create_command)}')
    if self._settings.queued:
      print(f'until test "$({looks[0]})" = ACTIVE; do sleep '
            f'{self._settings.poll_seconds}; done')

  def _step(
      self, doing: str, commands: Sequence[_tpu_machine.Command],
      take_line: Callable[[str], None] | None = None, *,
      is_last: bool = False) -> None:
    """Runs commands, or prints them; raises Failure.

    The TPU VMs may be to blame, unless `is_last`: then all else is done.
    """
    if self._settings.dry_run:
      for command in commands:
        print(_tpu_machine.show(command))
      return
    self._say(doing)
    status = self._machine.watch(commands, take_line)
    if status == 0:
      return
    may_go_on = not is_last and self._may_fail() and (
        status in (None, _NO_CONNECTION) or self._machine.is_gone_soon())
    raise _tpu_machine.Failure(
        f'{doing} failed, for the reason above; {self._left}',
        self._outcome(f'{doing} failed'), is_final=not may_go_on)

  def _outcome(self, otherwise: str) -> str:
    if self._machine.is_gone():
      return f'{self._machine.state}: {otherwise}'
    return otherwise

  def _say(self, text: str, file=None) -> None:
    print(f'{self._settings.script}: {text}', file=file, flush=True)


def main() -> int:
  def interrupt(number, frame):
    raise KeyboardInterrupt

  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:  # As nohup has it.
      signal.signal(number, interrupt)
  return Driver(read_settings(sys.argv[1:])).run()


if __name__ == '__main__':
  sys.exit(main())
