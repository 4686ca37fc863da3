"""A stand-in for gcloud: its TPU VMs are folders and processes of this machine.

As a program it takes the commands that launch/ gives, and answers as gcloud 528
does: with its states, exit statuses and sentences. A worker's commands run with
a home folder of its own. Tests and benchmarks use `Cloud` to take TPU VMs away
and to have commands fail; they put this file on the PATH as `gcloud`.

What differs: nothing takes minutes, and a connection that breaks is not tried
ten times; one to a TPU VM that is gone is waited for, as if it were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

_NO_CONNECTION = 255
_HOSTS_OF = 8  # Cores or chips of a worker.
_WAITS = 'ACCEPTED', 'WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE'


class GcloudError(Exception):
  """What gcloud prints behind ERROR: (gcloud...), and its exit status."""

  def __init__(self, text: str, status: int = 1):
    super().__init__(text)
    self.status = status


class Cloud:
  """Its TPU VMs, queued resources and faults, in a folder."""

  def __init__(self, folder: pathlib.Path):
    """`folder` is the home folder of who calls gcloud."""
    self._folder = folder / 'cloud'
    self._waits = self._folder / 'waits.json'

  def home(self, node: str, worker: int = 0) -> pathlib.Path:
    """The home folder of a worker."""
    return self._folder / 'nodes' / node / f'worker-{worker}'

  def homes(self, node: str) -> list[pathlib.Path]:
    return sorted((self._folder / 'nodes' / node).glob('worker-*'))

  def create(self, node: str, num_workers: int = 1) -> None:
    for i in range(num_workers):
      self.home(node, i).mkdir(parents=True)
    self.set_state(node, 'READY')

  def delete(self, node: str) -> None:
    self._kill(node)
    shutil.rmtree(self._folder / 'nodes' / node)

  def state(self, node: str) -> str:
    path = self._folder / 'nodes' / node / 'state'
    if not path.exists():
      raise GcloudError(
          f"NOT_FOUND: Resource 'projects/p/locations/z/nodes/{node}' was not "
          'found.')
    return path.read_text()

  def set_state(self, node: str, state: str) -> None:
    (self._folder / 'nodes' / node / 'state').write_text(state)

  def queue(self, name: str) -> dict:
    path = self._queue_path(name)
    if not path.exists():
      raise GcloudError(
          "NOT_FOUND: Resource 'projects/p/locations/z/queuedResources/"
          f"{name}' was not found.")
    return json.loads(path.read_text())

  def request(self, name: str, nodes: Sequence[str], num_workers: int) -> None:
    """Queues a request for TPU VMs."""
    self._write_queue(name, {
        'states': (
            json.loads(self._waits.read_text()) if self._waits.exists()
            else _WAITS), 'nodes': nodes, 'num_workers': num_workers})

  def set_waits(self, *states: str) -> None:
    """What becomes of the requests that follow."""
    self._folder.mkdir()
    self._waits.write_text(json.dumps(states))

  def exists(self, name: str, *, is_queue: bool) -> bool:
    if is_queue:
      return self._queue_path(name).exists()
    return bool(self.homes(name))

  def look_at_queue(self, name: str) -> str:
    """The state of a queued resource, which changes with each look."""
    queue = self.queue(name)
    state, *following = queue['states']
    if following:
      self._write_queue(name, queue | {'states': following})
    if state == 'ACTIVE':
      for node in queue['nodes']:
        if not self.homes(node):
          self.create(node, queue['num_workers'])
    if state == 'SUSPENDED':
      self._delete_nodes(queue)
    return state

  def delete_queue(self, name: str, *, force: bool) -> None:
    queue = self.queue(name)
    if any(map(self.homes, queue['nodes'])) and not force:
      raise GcloudError(
          f'FAILED_PRECONDITION: Queued resource {name} has nodes.')
    self._delete_nodes(queue)
    self._queue_path(name).unlink()

  def preempt(self, node: str, notice: float = 0.0) -> float:
    """Takes a TPU VM away; the seconds until its processes had ended.

    With a notice, each of its processes gets SIGTERM and SIGHUP so many seconds
    before, as when systemd shuts down. A queued resource loses all its slices.
    """
    start = time.monotonic()
    if notice:
      for pid in self._processes(node):
        for number in (signal.SIGTERM, signal.SIGHUP):
          _kill(pid, number)
      deadline = time.monotonic() + notice
      while any(self._processes(node)) and time.monotonic() < deadline:
        time.sleep(0.02)
    seconds = time.monotonic() - start
    for path in (self._folder / 'queue').glob('*.json'):
      queue = json.loads(path.read_text())
      if node in queue['nodes']:
        for one in queue['nodes']:
          self._kill(one)
          self.set_state(one, 'DELETING')
        self._write_queue(
            path.stem, queue | {'states': ['SUSPENDING', 'SUSPENDED']})
        return seconds
    self._kill(node)
    self.set_state(node, 'PREEMPTED')
    return seconds

  def add_fault(
      self, words: str, text: str = '', status: int = 1,
      after: float | None = None) -> None:
    """What becomes of the next command that has these words in it.

    It prints `text` and fails; or, with `after`, it runs, and its connection
    breaks so many seconds later.
    """
    folder = self._folder / 'faults'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'{time.monotonic_ns()}.json').write_text(json.dumps(
        {'words': words, 'text': text, 'status': status, 'after': after}))

  def take_fault(self, command: str) -> dict | None:
    """The fault of this command, which no other one gets."""
    for path in sorted((self._folder / 'faults').glob('*.json')):
      fault = json.loads(path.read_text())
      if fault['words'] in command:
        try:
          path.rename(path.with_suffix('.taken'))
        except FileNotFoundError:
          continue
        return fault
    return None

  def _queue_path(self, name):
    return self._folder / 'queue' / f'{name}.json'

  def _write_queue(self, name, queue):
    path = self._queue_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix('.new').write_text(json.dumps(queue))
    path.with_suffix('.new').rename(path)

  def _delete_nodes(self, queue):
    for node in queue['nodes']:
      if self.homes(node):
        self.delete(node)

  def _processes(self, node) -> Iterator[int]:
    """What runs on the workers."""
    marks = [f'\0HOME={home}\0'.encode() for home in self.homes(node)]
    for path in pathlib.Path('/proc').glob('[0-9]*/environ'):
      try:
        environ = b'\0' + path.read_bytes()
      except OSError:  # It has ended since, or is another user's.
        continue
      if any(mark in environ for mark in marks):
        yield int(path.parent.name)

  def _kill(self, node):
    while pids := list(self._processes(node)):
      for pid in pids:
        _kill(pid, signal.SIGKILL)
      time.sleep(0.01)


def _kill(pid, number):
  try:
    os.kill(pid, number)
  except ProcessLookupError:
    pass


def _ssh(cloud, node, flags, fault):
  homes = _reach(cloud, node, flags)
  # A connection passes on no variables; these are what makes it this machine.
  env = {
      name: value for name, value in os.environ.items()
      if not name.startswith('HF_')}
  if (path := pathlib.Path(env['HOME'], 'remote-bin')).exists():
    env['PATH'] = f'{path}{os.pathsep}{env["PATH"]}'
    del env['PYTHON']  # Their own.
  processes = [
      subprocess.Popen(
          ['bash', '-c', flags['command']], cwd=home,
          env=env | {'HOME': str(home)}, start_new_session=True,
          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
          stderr=subprocess.PIPE) for home in homes]
  threads = []
  for process in processes:
    for source, target in ((process.stdout, sys.stdout),
                           (process.stderr, sys.stderr)):
      threads.append(threading.Thread(
          target=_relay, args=(source, target.buffer), daemon=True))
      threads[-1].start()
  if fault and fault['after'] is not None:
    time.sleep(fault['after'])
    raise GcloudError(
        f'[/usr/bin/ssh] exited with return code [{_NO_CONNECTION}].',
        _NO_CONNECTION)
  # Killed there, it cannot tell its status.
  statuses = [
      status if (status := process.wait()) >= 0 else _NO_CONNECTION
      for process in processes]
  for thread in threads:
    thread.join(1.0)  # What it has left in the background may keep it open.
  if _NO_CONNECTION in statuses:
    while not cloud.homes(node) or cloud.state(node) != 'READY':
      time.sleep(0.1)  # It is tried again, in vain.
  sys.exit(next(filter(None, statuses), 0))


def _relay(source, target):
  while data := os.read(source.fileno(), 1 << 16):
    try:
      target.write(data)
      target.flush()
    except OSError:  # Nobody reads any more.
      return


def _reach(cloud, node, flags):
  """The homes of the workers that are asked for."""
  state = cloud.state(node)
  if state in ('PREEMPTED', 'TERMINATED'):
    raise GcloudError(
        f'This TPU has terminal state "{state}", so it cannot be used anymore.')
  if state in ('STOPPED', 'STOPPING', 'DELETING', 'HIDDEN'):
    raise GcloudError(
        f'This TPU has state "{state}", so it cannot be currently connected '
        'to.')
  homes = cloud.homes(node)
  return homes if flags['worker'] == 'all' else [homes[int(flags['worker'])]]


def _scp(cloud, words, flags):
  *sources, target = words
  if ':' in target:
    node, _, name = target.partition(':')
    for home in _reach(cloud, node, flags):
      shutil.copy(sources[0], home / name)
    return
  node = sources[0].partition(':')[0]
  homes = _reach(cloud, node, flags)
  if len(homes) > 1:
    raise GcloudError(
        'Invalid value for [--worker]: cannot target multiple workers while '
        'copying files to client.')
  for source in sources:
    path = homes[0] / source.partition(':')[2]
    if path.is_dir():
      shutil.copytree(
          path, os.path.join(target, path.name), dirs_exist_ok=True)
    elif path.exists():
      shutil.copy(path, target)
    else:
      print(f'scp: {path}: No such file or directory', file=sys.stderr)
      raise GcloudError('[/usr/bin/scp] exited with return code [1].')


def _run(cloud, group, verb, words, flags):
  assert flags['zone'], 'gcloud would ask for the zone.'
  fault = cloud.take_fault(' '.join(sys.argv))
  if fault and fault['after'] is None:
    raise GcloudError(fault['text'], fault['status'])
  name = words[0]
  is_queue = group == 'queued-resources'
  if verb == 'describe' and is_queue:
    assert flags['format'] == 'value(state.state)'
    print(cloud.look_at_queue(name))
  elif verb == 'describe':
    assert flags['format'] == 'value(state,networkEndpoints.len())'
    print(cloud.state(name), len(cloud.homes(name)), sep='\t')
  elif verb == 'create':
    if cloud.exists(name, is_queue=is_queue):
      raise GcloudError('ALREADY_EXISTS: Requested entity already exists')
    cores = int(flags['accelerator-type'].rpartition('-')[2])
    num_workers = max(1, cores // _HOSTS_OF)
    if not is_queue:
      assert flags['version']
      cloud.create(name, num_workers)
      return
    assert flags['runtime-version']
    assert ('node-id' in flags) != ('node-count' in flags)
    nodes = [flags.get('node-id')]
    if 'node-count' in flags:
      assert int(flags['node-count']) > 1
      nodes = [
          f'{flags["node-prefix"]}-{i}'
          for i in range(int(flags['node-count']))]
    cloud.request(name, nodes, num_workers)
  elif verb == 'delete' and is_queue:
    cloud.delete_queue(name, force='force' in flags)
  elif verb == 'delete':
    cloud.state(name)
    cloud.delete(name)
  elif verb == 'ssh':
    _ssh(cloud, name, flags, fault)
  elif verb == 'scp':
    _scp(cloud, words, flags)
  else:
    raise GcloudError(f"Invalid choice: '{verb}'.", 2)


def main() -> None:
  home = pathlib.Path(os.environ['HOME'])
  with (home / 'notes').open('a') as file:
    file.write(json.dumps(['gcloud', *sys.argv[1:]]) + '\n')
  assert sys.argv[1:3] == ['compute', 'tpus']
  group, verb, *args = sys.argv[3:]
  words = [arg for arg in args if not arg.startswith('--')]
  flags = dict(
      arg[2:].partition('=')[::2] for arg in args if arg.startswith('--'))
  try:
    _run(Cloud(home), group, verb, words, flags)
  except GcloudError as error:
    print(f'ERROR: (gcloud.compute.tpus.{group}.{verb}) {error}',
          file=sys.stderr)
    sys.exit(error.status)


if __name__ == '__main__':
  main()
