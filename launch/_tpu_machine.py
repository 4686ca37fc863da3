"""The TPU VMs of a run: what gcloud is asked to do with them, and watches.

A run has one TPU VM, or, of several slices, one for each. A TPU VM has one or
more workers. gcloud creates it at once, or by a queued resource, a request that
waits for its turn and is deleted together with what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import os
import re
import shlex
import signal
import subprocess
import threading
import time

_TPU = 'gcloud', 'compute', 'tpus', 'tpu-vm'
_QUEUE = 'gcloud', 'compute', 'tpus', 'queued-resources'
# States in which a run may go on; '' where gcloud does not tell. A TPU VM that
# is repaired may keep it.
_USABLE = 'READY', 'RESTARTING', 'REPAIRING', ''
# What is left of it must be deleted before it can be created again.
_LOST = 'PREEMPTED', 'TERMINATED', 'SUSPENDED', 'FAILED', 'INCOMPLETE'
# Somebody wanted that.
_PUT_AWAY = 'STOPPED', 'STOPPING', 'HIDDEN', 'HIDING', 'UNKNOWN'
# gcloud's words for what it will refuse again, beside its status 2.
_REFUSED = re.compile(
    'INVALID_ARGUMENT|PERMISSION_DENIED|UNAUTHENTICATED|ALREADY_EXISTS|'
    'gcloud auth login|required property')
# Else a connection whose other side has vanished would be waited for for ever.
_KEEP_ALIVE = '-oServerAliveInterval=20'
_LOOKS = 3  # Until a TPU VM that is being taken away says so.

Command = tuple[str, ...]


class Failure(Exception):
  """An attempt has failed.

  Attributes:
    outcome: a few words for the log of attempts.
    is_final: whether another attempt would fail as well.

  Its text is a sentence for the user.
  """

  def __init__(self, sentence: str, outcome: str, *, is_final: bool):
    super().__init__(sentence)
    self.outcome = outcome
    self.is_final = is_final


def show(command: Command) -> str:
  """One line that can be pasted into a shell."""
  return shlex.join(command)


class Machine:
  """What a run has, by its name.

  Attributes:
    nodes: names of its TPU VMs.
    num_workers: of all of them together, once it is ready.
    state: a word of gcloud's, when it was last looked up; NOT_FOUND where
      there is none, INCOMPLETE where a slice is gone, '' if gcloud did not
      tell.
  """

  def __init__(
      self, name: str, zone: str, *, project: str, accelerator_type: str,
      version: str, num_slices: int, queued: bool, spot: bool,
      valid_until: str, poll_seconds: float, say: Callable[[str], None]):
    """`poll_seconds` lie between two looks; `say` tells the user."""
    self.nodes = [name]
    self.num_workers = 0
    self.state = ''
    self._name = name
    self._is_queued = queued
    self._poll_seconds = poll_seconds
    self._say = say
    self._error = ''
    self._accelerator_type = accelerator_type
    self._where = f'--zone={zone}', *([f'--project={project}'] * bool(project))
    what = [f'--accelerator-type={accelerator_type}', *['--spot'] * spot]
    self.delete_command: Command = (
        *_TPU, 'delete', name, *self._where, '--quiet')
    if not queued:
      self.create_command: Command = (
          *_TPU, 'create', name, *self._where, *what, f'--version={version}')
      return
    if num_slices > 1:
      self.nodes = [f'{name}-{i}' for i in range(num_slices)]
      what += [f'--node-count={num_slices}', f'--node-prefix={name}']
    else:
      what.append(f'--node-id={name}')
    if valid_until:
      kind = 'time' if re.search('[:-]', valid_until) else 'duration'
      what.append(f'--valid-until-{kind}={valid_until}')
    self.create_command = (
        *_QUEUE, 'create', name, *self._where, *what,
        f'--runtime-version={version}')
    self.delete_command = (
        *_QUEUE, 'delete', name, *self._where, '--force', '--quiet')

  # Commands.

  def on_first(self, command: str) -> Command:
    """Runs a shell command on the first worker of the first TPU VM."""
    return self._ssh(self.nodes[0], '0', command)

  def on_all(self, command: str) -> list[Command]:
    """Runs a shell command on all workers: one command for each TPU VM."""
    return [self._ssh(node, 'all', command) for node in self.nodes]

  def copy_to_all(self, path: str, name: str) -> list[Command]:
    """Copies a file into the home folder of all workers."""
    return [
        self._scp(path, f'{node}:{name}', '--worker=all')
        for node in self.nodes]

  def copy_from_first(self, folders: Sequence[str], to: str) -> Command:
    """Copies folders of the first worker."""
    return self._scp(
        '--recurse', *(f'{self.nodes[0]}:{folder}' for folder in folders), to,
        '--worker=0')

  def look_up_commands(self) -> list[Command]:
    """What tells whether it is there, and whether it is ready."""
    queue = (*_QUEUE, 'describe', self._name, *self._where,
             '--format=value(state.state)')
    return [queue] * self._is_queued + [
        (*_TPU, 'describe', node, *self._where,
         '--format=value(state,networkEndpoints.len())')
        for node in self.nodes]

  def _ssh(self, node, workers, command):
    return (
        *_TPU, 'ssh', node, *self._where, '--quiet', f'--worker={workers}',
        f'--ssh-flag={_KEEP_ALIVE}', f'--command={command}')

  def _scp(self, *args):
    return (
        *_TPU, 'scp', *args, *self._where, '--quiet',
        f'--scp-flag={_KEEP_ALIVE}')

  # Its life.

  def look_up(self) -> str:
    """Sets and returns `state`."""
    self.state, num_workers = 'READY', 0
    for command in self.look_up_commands():
      found = self._ask(command)
      if found == 'ACTIVE':
        continue
      self.state, _, count = found.partition('\t')
      if self.state != 'READY':
        is_node = command[:len(_TPU)] == _TPU
        if self._is_queued and is_node and self.state == 'NOT_FOUND':
          self.state = 'INCOMPLETE'
        return self.state
      num_workers += int(count)
    self.num_workers = num_workers
    return self.state

  def is_gone(self) -> bool:
    """Whether a run there must have ended, as far as can be told."""
    return self.state not in _USABLE

  def is_gone_soon(self) -> bool:
    """The same of one that may say READY for some seconds more."""
    for i in range(_LOOKS):
      time.sleep(self._poll_seconds * (i > 0))
      self.look_up()
      if self.is_gone():
        return True
    return False

  def get(self, *, may_delete: bool) -> bool:
    """Waits until it is ready; creates it if need be, and says whether it did.

    Args:
      may_delete: whether what is left of a lost one is deleted; gcloud is
        waited for then, too, if it does not answer.

    Raises:
      Failure: it cannot be had.
    """
    delete = f'delete it with: {show(self.delete_command)}'
    is_new, waits_in = False, None
    while self.look_up() != 'READY':
      state = self.state
      problem = f'the TPU VM {self._name} is {state}, not READY'
      if not state and (not may_delete or _REFUSED.search(self._error)):
        raise Failure(
            f'gcloud cannot look up the TPU VM {self._name}: {self._error}',
            'gcloud does not answer', is_final=True)
      elif state in _PUT_AWAY:
        raise Failure(
            f'{problem}; wait until it is, or {delete}', state, is_final=True)
      elif state == 'NOT_FOUND':
        self._create()
        is_new = True
        if not self._is_queued:
          continue  # gcloud has waited.
      elif state in _LOST:
        if is_new or not may_delete:
          raise Failure(f'{problem}; {delete}', state, is_final=not may_delete)
        self._say(f'deleting the TPU VM {self._name}, which is {state}')
        self.delete()
      elif state != waits_in:
        self._say(
            f'the TPU VM {self._name} is {state}; waiting' if state else
            f'gcloud does not answer; waiting: {self._error}')
        waits_in = state
      time.sleep(self._poll_seconds)
    return is_new

  def delete(self) -> int:
    """Returns the exit status."""
    return subprocess.run(self.delete_command).returncode

  def _create(self):
    if not self._accelerator_type:
      raise Failure(
          f'there is no TPU VM {self._name}; give --accelerator-type, such as '
          'v5litepod-8, to create it', 'not created', is_final=True)
    doing = f'creating the TPU VM {self._name}'
    self._say(doing)
    created = subprocess.run(
        self.create_command, stderr=subprocess.PIPE, text=True)
    print_error(created.stderr)
    if created.returncode:
      raise Failure(
          f'{doing} failed, for the reason above; if it is there, delete it '
          f'with: {show(self.delete_command)}', 'not created',
          is_final=created.returncode == 2 or bool(
              _REFUSED.search(created.stderr)))

  def _ask(self, command):
    """What gcloud says, NOT_FOUND if that is it, '' if it does not tell."""
    found = subprocess.run(command, capture_output=True, text=True)
    self._error = ' '.join(found.stderr.split())
    if found.returncode == 0:
      return found.stdout.strip()
    return 'NOT_FOUND' if 'NOT_FOUND' in found.stderr else ''

  def watch(
      self, commands: Sequence[Command],
      take_line: Callable[[str], None] | None = None) -> int | None:
    """Runs commands at the same time, while the TPU VMs are there.

    Args:
      commands: that need them.
      take_line: gets each line that they print; None leaves that alone.

    Returns:
      0, or the exit status of the first that failed, or None if they were
      ended, since a TPU VM is gone.
    """
    # In sessions of their own: Ctrl-C is for us.
    processes = [
        subprocess.Popen(
            command, start_new_session=True, text=True, errors='replace',
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if take_line else None)
        for command in commands]
    readers = [
        threading.Thread(target=_read, args=(process.stdout, take_line))
        for process in processes if take_line]
    try:
      for reader in readers:
        reader.start()
      while any(process.poll() is None for process in processes):
        if not _ended_within(self._poll_seconds, processes):
          self.look_up()
          if self.is_gone():
            return None
    finally:
      for process in processes:
        if process.poll() is None:
          os.killpg(process.pid, signal.SIGTERM)
          process.wait()
      for reader in readers:
        reader.join()
    return next(filter(None, (p.returncode for p in processes)), 0)


def print_error(text: str) -> None:
  """Passes on what gcloud has said."""
  os.write(2, text.encode())


def _ended_within(seconds, processes):
  deadline = time.monotonic() + seconds
  for process in processes:
    try:
      process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      return False
  return True


def _read(lines, take_line):
  for line in lines:
    take_line(line)
