"""The fork-server: starts programs, watches them and reports how they ended.

There are four kinds of processes:

  server      Keeps `num_slots` supervisors waiting on the listening socket,
              whose backlog is the queue. It replaces supervisors that ended and
              kills stopped ones. It ends within a second of its parent.
  packages    A fork of the server that has loaded numpy and sympy, with its own
              supervisors and socket. It starts with the first program that
              asks for it; the server ends if it does.
  supervisor  Takes one connection after another. For each it forks a program,
              watches it, sweeps up, and reports how it ended.
  program     A fork, so a warm interpreter without start-up or imports. It
              reads its request and runs it.

A program reads its own request and writes to files in memory, which the kernel
copies to the connection. A supervisor never holds either. Programs are forks of
the supervisor, so this keeps one program from finding another's source, input
or output in inherited memory.
"""

import _thread
from collections.abc import Callable, Sequence
import contextlib
import gc
import importlib
import os
import select
import signal
import site
import socket
import sys
import time
import traceback

from environments.sandbox import isolation as isolation_lib
from environments.sandbox import processes
from environments.sandbox import program
from environments.sandbox import protocol

# Modules that programs import most, besides those of the server.
_PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
# Stack of the threads that programs start, whatever the caller's limit is.
_THREAD_STACK_BYTES = 8 << 20
_exit = os._exit  # A program may replace it, and may fail to end itself.
_WAKEUPS = {signal.SIGCHLD, signal.SIGTERM}
_SERVER_TICK = 1.0  # Seconds between checks of the parent and of `packages`.
_FORK_SECONDS = 10.0  # A server that cannot fork for so long ends.
_PROGRAM_TICK = 0.01  # Seconds between two looks at a program.
_CLIENT_SECONDS = 60  # Timeout of the client's side of a connection.
_START_SECONDS = 2 * _CLIENT_SECONDS  # The program waits for the client too.
# Why the sandbox stopped a program.
_TIMEOUTS = {
    'cpu': 'CPU limit of {cpu_seconds} s',
    'wall_clock': 'wall-clock limit of {wall_seconds} s'}
_STOPS = _TIMEOUTS | {
    'memory': 'memory limit of {memory_bytes} bytes',
    'output': 'more than {output_bytes} bytes of output',
    'threads': f'more than {isolation_lib.MAX_THREADS} threads'}


def main(**settings) -> None:
  """Runs `_main` in a thread with a large stack.

  Programs are forks of this thread. So they run on its stack, whatever limit of
  stacks the caller of the server has.
  """
  signal.pthread_sigmask(signal.SIG_BLOCK, _WAKEUPS)
  is_running = _thread.allocate_lock()

  def run() -> None:
    try:
      _main(**settings)
    except BaseException:
      traceback.print_exc()
    finally:
      is_running.release()

  is_running.acquire()
  _thread.stack_size(isolation_lib.STACK_BYTES)
  _thread.start_new_thread(run, ())
  _thread.stack_size(_THREAD_STACK_BYTES)
  is_running.acquire()


def _main(
    socket_fds: Sequence[int], num_slots: int, level: str, directory: str,
    package_folders: Sequence[str]) -> None:
  """Serves until SIGTERM, or until the parent is gone.

  Args:
    socket_fds: listening sockets in the order of `protocol.SOCKETS`.
    num_slots: programs that run at a time, and as many with packages.
    level: value of a `protocol.Level`.
    directory: holds the sockets and the empty folder where programs run;
      removed at the end.
    package_folders: where numpy and sympy are installed.

  Standard input is a pipe whose other end the parent keeps open.
  """
  if level == protocol.Level.BWRAP.value:
    # The parent ends bubblewrap's process, and that must end this one.
    processes.set_option(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
  listener, packages = (socket.socket(fileno=fd) for fd in socket_fds)
  for name in _PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  _end_loading()
  isolation_args = (
      protocol.Level(level), os.path.join(directory, protocol.WORK_DIRECTORY))

  def serve_packages() -> None:
    _load_packages(package_folders)
    _serve(packages, num_slots, isolation_lib.Isolation(*isolation_args))

  _serve(
      listener, num_slots, isolation_lib.Isolation(*isolation_args), packages,
      serve_packages)
  os.spawnlp(
      os.P_WAIT, 'rm', 'rm', '-rf', '--',
      *(os.path.join(directory, name) for name in os.listdir(directory)))
  with contextlib.suppress(OSError):  # bubblewrap has mounted it.
    os.rmdir(directory)


def _serve(
    listener: socket.socket, num_slots: int, isolation: isolation_lib.Isolation,
    packages: socket.socket | None = None,
    serve_packages: Callable[[], None] | None = None) -> None:
  """Keeps the supervisors and the fork with the packages alive.

  If the fork with the packages ends, or no process can start for _FORK_SECONDS,
  programs would wait in the queue. The server ends instead, so that their
  clients report INFRASTRUCTURE.
  """
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  supervisors, packages_pid = set(), None
  last_success = time.monotonic()
  while not _is_readable(0):  # Readable once the parent's end is closed.
    try:
      while len(supervisors) < num_slots:
        supervisors.add(_fork(_supervise_all, listener, isolation))
      if packages and packages_pid is None and _is_readable(packages):
        packages_pid = _fork(serve_packages)
      last_success = time.monotonic()
    except OSError as error:  # Out of processes or memory: try again.
      if time.monotonic() - last_success > _FORK_SECONDS:
        sys.exit(f'sandbox: no fork for {_FORK_SECONDS} s: {error}')
    wakeup = signal.sigtimedwait(_WAKEUPS, _SERVER_TICK)
    if wakeup and wakeup.si_signo == signal.SIGTERM:
      break
    ended = processes.reap()
    supervisors -= ended
    if packages_pid in ended:
      sys.exit('sandbox: the process with the packages has ended')
  processes.kill_descendants()


def _fork(function: Callable[..., None], *arguments) -> int:
  """Runs a function in a new process that dies with this one."""
  parent = os.getpid()
  pid = os.fork()
  if pid:
    return pid
  try:
    processes.die_with(parent)
    function(*arguments)
  except BaseException:
    traceback.print_exc()
  finally:
    _exit(1)


def _is_readable(stream: socket.socket | int) -> bool:
  return bool(select.select([stream], [], [], 0)[0])


def _load_packages(folders: Sequence[str]) -> None:
  """Loads the packages that are installed."""
  sys.path += folders
  os.environ.update(processes.ONE_THREAD)  # Threads would not survive a fork.
  for name in (*protocol.PACKAGES, 'numpy.random'):
    with contextlib.suppress(ImportError):
      importlib.import_module(name)
  del sys.path[-len(folders):]
  _end_loading()


def _end_loading() -> None:
  """Prepares the interpreter for forking."""
  os.environ.clear()
  gc.collect()
  gc.freeze()  # Otherwise a child's first collection copies every page.
  gc.disable()


def _supervise_all(
    listener: socket.socket, isolation: isolation_lib.Isolation) -> None:
  """Runs the programs of one connection after another."""
  processes.set_option(processes.PR_SET_CHILD_SUBREAPER, 1)
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ends without a traceback.
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  while True:
    connection, _ = listener.accept()
    with connection:
      connection.settimeout(_CLIENT_SECONDS)
      try:
        _supervise(connection, isolation)
      except ConnectionError:
        pass  # The client has gone.
      except BaseException as error:
        # Silence would blame the program. The server replaces this process.
        report = protocol.ExitReport(
            protocol.Status.INFRASTRUCTURE,
            f'{type(error).__name__}: {error}', (0, 0, 0))
        with contextlib.suppress(OSError):
          connection.sendall(protocol.pack(report) + b'\n')
        raise


def _supervise(
    connection: socket.socket, isolation: isolation_lib.Isolation) -> None:
  """Runs one program to its end; sends its report and output."""
  with contextlib.ExitStack() as stack:
    stack.callback(processes.kill_descendants)
    outputs = [
        stack.enter_context(open(os.memfd_create(name), 'rb'))
        for name in ('stdout', 'stderr', 'value')]
    reader, writer = os.pipe()
    ready = stack.enter_context(open(reader, 'rb', 0))
    pid = _fork(
        program.main, connection, isolation,
        [file.fileno() for file in outputs], writer)
    os.close(writer)
    if not select.select([ready], [], [], _START_SECONDS)[0]:
      raise TimeoutError(f'no program started within {_START_SECONDS} s')
    packed_limits = ready.read(4096)
    if not packed_limits:
      if os.waitpid(pid, 0)[1]:
        raise RuntimeError('a process died before its program started')
      return  # The client has gone.
    limits = protocol.unpack_limits(packed_limits)
    max_bytes = isolation.max_resident_bytes(limits)
    stop = _watch(pid, limits, max_bytes)
    os.killpg(pid, signal.SIGKILL)  # The whole group: none can fork away.
    _, wait_status, usage = os.wait4(pid, 0)
    processes.kill_descendants()  # They could still write.

    exit_code = os.waitstatus_to_exitcode(wait_status)
    sizes = [os.fstat(file.fileno()).st_size for file in outputs]
    # What happened in less than a tick comes first.
    if max(sizes) > limits.output_bytes or exit_code == -signal.SIGXFSZ:
      stop = 'output'
    elif (usage.ru_maxrss << 10 > max_bytes
          or exit_code == -program.OUT_OF_MEMORY):
      stop = 'memory'
    elif not stop and usage.ru_utime + usage.ru_stime > limits.cpu_seconds:
      stop = 'cpu'
    sizes = [min(size, limits.output_bytes) for size in sizes]
    report = protocol.ExitReport(*_describe(stop, limits, exit_code), sizes)
    connection.sendall(protocol.pack(report) + b'\n')
    for file, size in zip(outputs, sizes):
      if size:
        connection.sendfile(file, 0, size)


def _watch(pid: int, limits: protocol.Limits, max_bytes: int) -> str:
  """Waits until the program ends, or passes the limit that is returned.

  The kernel limits CPU time less precisely, address space instead of memory,
  and not the threads of every program. A program ends with its main thread.
  """
  deadline = time.monotonic() + limits.wall_seconds
  with open(os.pidfd_open(pid), 'rb', 0) as process:
    while not select.select([process], [], [], _PROGRAM_TICK)[0]:
      if time.monotonic() >= deadline:
        return 'wall_clock'
      usage = processes.usage(pid)
      if usage is None:
        return ''
      num_threads, cpu_seconds, num_bytes = usage
      if num_threads > isolation_lib.MAX_THREADS:
        return 'threads'
      if num_bytes > max_bytes:
        return 'memory'
      if cpu_seconds > limits.cpu_seconds:
        return 'cpu'
  return ''


def _describe(
    stop: str, limits: protocol.Limits,
    exit_code: int) -> tuple[protocol.Status, str]:
  """The status, and why the sandbox or a signal stopped the program."""
  status = protocol.Status
  if stop:
    reason = _STOPS[stop].format_map(limits._asdict())
    return (
        status.TIMEOUT if stop in _TIMEOUTS else status.RESOURCE_LIMIT,
        f'stopped: {reason}')
  if exit_code < 0:
    # Most real-time signals have no name.
    names = {signal.value: signal.name for signal in signal.Signals}
    name = names.get(-exit_code, f'signal {-exit_code}')
    return status.ERROR, f'killed by {name}'
  return status.ERROR if exit_code else status.OK, ''
