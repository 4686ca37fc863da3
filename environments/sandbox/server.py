"""The fork-server that runs programs. A script: started, never imported.

  python -s -P -S server.py DIRECTORY LISTENER_FD NUM_SLOTS PARENT_PID

Three kinds of process, so that each is simple:

  zygote      Keeps `num_slots` supervisors waiting on the listening socket
              and does nothing else. The socket's backlog is the queue.
  supervisor  Takes one connection after another. For each it forks a program,
              watches it, sweeps up, and says how it ended.
  program     A fork, so a warm interpreter: no start-up, no imports to pay. It
              reads its own request, then runs it.

A supervisor never holds a request, nor what a program prints, which the kernel
moves from the program's pipe to the connection. So no program finds another's
source, input or output in its memory. The server ends within a second of its
parent.

The talk on a connection: the server writes `STARTED` when a slot is free, the
client answers with one JSON object and closes its side, the server writes
frames and closes. A frame is a `HEADER`, its kind and its length, and that many
bytes: of kind `STDOUT` or `STDERR` what the program printed, and at the end of
kind `RESULT` one JSON object. `client.py` is the other end.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import linecache
import math
import os
import resource
import select
import signal
import site
import socket
import struct
import sys
import termios
import time
import traceback
import types

# What programs import most, beside the modules above: free in every fork.
PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'operator', 're', 'string',
    'typing')
STARTED = b'\n'
HEADER = struct.Struct('>cI')
STDOUT, STDERR, RESULT = b'o', b'e', b'r'
PATIENCE = 60  # Seconds that a supervisor waits for its client.
TICK = 1.0  # Seconds between two looks whether the parent lives.
OPEN_FILES = 64
FILE_BYTES = 16 << 20
TRACEBACK_CHARS = 4000
# Room above what the whole machine runs now: the kernel counts all processes
# and threads of the user, the trainer's too, so a fixed number cannot serve.
EXTRA_PROCESSES = 64
# How a program that ran out of memory tells its supervisor.
OUT_OF_MEMORY = signal.SIGUSR1

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def main():
  directory = sys.argv[1]
  listener = socket.socket(fileno=int(sys.argv[2]))
  num_slots, parent = int(sys.argv[3]), int(sys.argv[4])
  os.environ.clear()
  for name in PRELOADED:
    importlib.import_module(name)
  site.setquit()  # `exit()` and `quit()`, which -S leaves out.
  set_process_option(PR_SET_CHILD_SUBREAPER, 1)
  wakeups = {signal.SIGCHLD, signal.SIGTERM}
  signal.pthread_sigmask(signal.SIG_BLOCK, wakeups)
  compile('0', '<warm up>', 'exec')  # Its first call builds lasting tables.
  gc.collect()
  gc.freeze()  # Else a child's first collection copies every page.
  gc.disable()

  supervisors = set()
  num_started = 0
  while os.getppid() == parent:
    try:
      while len(supervisors) < num_slots:
        num_started += 1
        work_directory = os.path.join(directory, str(num_started))
        supervisors.add(start_supervisor(listener, work_directory))
    except OSError as error:  # Out of processes or memory: try again later.
      print(f'sandbox: cannot fork: {error}', file=sys.stderr)
    wakeup = signal.sigtimedwait(wakeups, TICK)
    if wakeup and wakeup.si_signo == signal.SIGTERM:
      break
    supervisors -= reap()
  kill_descendants()
  remove_tree(directory)


def reap():
  """Ids of the children that have ended."""
  ended = set()
  try:
    while pid := os.waitpid(-1, os.WNOHANG)[0]:
      ended.add(pid)
  except ChildProcessError:
    pass
  return ended


def start_supervisor(listener, work_directory):
  """Forks a process that serves connections; returns its id."""
  pid = os.fork()
  if pid:
    return pid
  try:
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in itertools.count():
      serve_one(listener, f'{work_directory}-{number}')
  except (ConnectionError, BlockingIOError):
    pass  # The caller has gone, or does not read; there is nobody to tell.
  except BaseException:  # The client sees the silence and reports it.
    traceback.print_exc()
  finally:
    os._exit(0)


def serve_one(listener, work_directory):
  with listener.accept()[0] as connection:
    # Not `settimeout`, which makes a socket that `splice` would not wait for.
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
      connection.setsockopt(
          socket.SOL_SOCKET, option, struct.pack('ll', PATIENCE, 0))
    connection.sendall(STARTED)
    os.mkdir(work_directory, 0o700)
    try:
      result = supervise(listener, connection, work_directory)
    finally:
      kill_descendants()
      remove_tree(work_directory)
    if result is not None:
      result = json.dumps(result).encode()
      connection.sendall(HEADER.pack(RESULT, len(result)) + result)


def supervise(listener, connection, work_directory):
  """Runs one program to its end; its result, or None if nothing was asked."""
  stdout_fd, program_stdout = os.pipe()
  stderr_fd, program_stderr = os.pipe()
  ready_fd, program_ready = os.pipe()
  pid = os.fork()
  if not pid:
    exit_code = 1
    try:
      listener.close()
      text = b''.join(iter(lambda: connection.recv(1 << 16), b''))
      if not text:  # The caller has gone.
        os._exit(0)
      source = enter_jail(
          work_directory, (program_stdout, program_stderr), program_ready,
          **json.loads(text))
      exit_code = run_program(source)
    except BaseException:  # A fault while entering leaves `ready_fd` silent.
      traceback.print_exc()
    finally:
      leave(exit_code)
  for fd in (program_stdout, program_stderr, program_ready):
    os.close(fd)
  with (open(stdout_fd, 'rb', 0) as stdout, open(stderr_fd, 'rb', 0) as stderr,
        open(ready_fd, 'rb', 0) as ready):
    limits = ready.read()
    if not limits:
      if os.waitpid(pid, 0)[1]:
        raise RuntimeError(
            'sandbox: a program process died before its program')
      return None
    limits = json.loads(limits)
    outputs = [
        Output(STDOUT, stdout, limits['output_bytes']),
        Output(STDERR, stderr, limits['output_bytes'])]
    started = time.monotonic()
    in_time = watch(
        pid, connection, outputs, started + limits['wall_seconds'])
    os.killpg(pid, signal.SIGKILL)  # All at once: none can fork away.
    _, wait_status, usage = os.wait4(pid, 0)
    wall = time.monotonic() - started
    for output in outputs:  # Never waits, whoever holds the pipe.
      output.move(connection)

  cpu = usage.ru_utime + usage.ru_stime
  exit_code = os.waitstatus_to_exitcode(wait_status)
  if any(output.flooded for output in outputs):
    status = 'resource_limit'
    reason = f'stopped: more than {limits["output_bytes"]} bytes of output'
  elif not in_time:
    status = 'timeout'
    reason = f'stopped: wall-clock limit of {limits["wall_seconds"]} s'
  elif cpu > limits['cpu_seconds'] or exit_code == -signal.SIGXCPU:
    status = 'timeout'
    reason = f'stopped: CPU limit of {limits["cpu_seconds"]} s'
  elif exit_code == -OUT_OF_MEMORY:
    status = 'resource_limit'
    reason = f'stopped: memory limit of {limits["memory_bytes"]} bytes'
  elif exit_code == -signal.SIGXFSZ:
    status = 'resource_limit'
    reason = f'stopped: a file of more than {FILE_BYTES} bytes'
  elif exit_code < 0:
    status, reason = 'error', f'killed by {signal.Signals(-exit_code).name}'
  else:
    status, reason = ('error' if exit_code else 'ok'), ''
  return {
      'status': status, 'exit_code': exit_code, 'reason': reason,
      'cpu_seconds': cpu, 'wall_seconds': wall}


class Output:
  """A stream of a program, on its way to the client."""

  def __init__(self, kind, pipe, most):
    self.kind = kind
    self.pipe = pipe
    self.left = most  # Bytes that may still come.
    self.flooded = False  # More came.

  def move(self, connection):
    """Sends what the pipe holds now, up to the limit; how much it held."""
    held = struct.unpack('i', fcntl.ioctl(
        self.pipe, termios.FIONREAD, bytes(4)))[0]
    self.flooded |= held > self.left
    length = min(held, self.left)
    self.left -= length
    if length:
      connection.sendall(HEADER.pack(self.kind, length))
    while length:
      sent = 0
      try:
        sent = os.splice(
            self.pipe.fileno(), connection.fileno(), length,
            flags=os.SPLICE_F_NONBLOCK)
      except BlockingIOError:
        pass
      if not sent:
        # The program has read its own pipe: what is missing counts as zeros.
        connection.sendall(bytes(length))
        break
      length -= sent
    return held


def watch(pid, connection, outputs, deadline):
  """Sends outputs until the program ends, floods, or the deadline (False).

  The end is the end of the process, not of the pipe, which a grandchild can
  hold open for as long as it likes.
  """
  poll = select.poll()
  with open(os.pidfd_open(pid), 'rb', 0) as process:
    poll.register(process, select.POLLIN)
    for output in outputs:
      poll.register(output.pipe, select.POLLIN)
    while True:
      remaining = max(0.0, deadline - time.monotonic())
      ready = dict(poll.poll(math.ceil(1000 * remaining)))
      for output in outputs:
        event = ready.get(output.pipe.fileno())
        if event is not None:
          held = output.move(connection)
          # Empty is not yet closed: the program can read its own pipe.
          if not held and event & select.POLLHUP:
            poll.unregister(output.pipe)
          if output.flooded:
            return True
      if process.fileno() in ready:
        return True
      if time.monotonic() >= deadline:
        return False


def enter_jail(
    work_directory, output_fds, ready_fd, source, stdin, **limits):
  """Turns this fresh fork into a process fit to run the program `source`."""
  stdin_fd = os.memfd_create('stdin')
  # A lone surrogate is the program's to stumble on, not ours.
  os.write(stdin_fd, stdin.encode('utf-8', 'surrogatepass'))
  os.lseek(stdin_fd, 0, os.SEEK_SET)
  os.setsid()
  set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
  set_process_option(PR_SET_CHILD_SUBREAPER, 0)
  set_process_option(PR_SET_NO_NEW_PRIVS, 1)
  os.chdir(work_directory)
  cpu_limit = math.ceil(limits['cpu_seconds'])
  set_limit(resource.RLIMIT_CPU, cpu_limit, cpu_limit + 1)
  set_limit(resource.RLIMIT_AS, limits['memory_bytes'])
  set_limit(resource.RLIMIT_FSIZE, FILE_BYTES)
  set_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
  set_limit(resource.RLIMIT_NPROC, count_tasks() + EXTRA_PROCESSES)
  # 1, not 0: the kernel starts a core-dump program even at 0.
  set_limit(resource.RLIMIT_CORE, 1)
  # Python ignores it; a limit that is hit should stop the program.
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  for target, fd in enumerate((stdin_fd, *output_fds)):
    os.dup2(fd, target)
  os.write(ready_fd, json.dumps(limits).encode())
  os.closerange(3, 1 << 16)
  return source


def run_program(source):
  """Runs `source` as a script would run; returns -N to end by signal N."""
  sys.argv[:] = ['<program>']
  sys.stdin = sys.__stdin__ = open(0, encoding='utf-8', closefd=False)
  sys.stdout = sys.__stdout__ = open(
      1, 'w', encoding='utf-8', closefd=False)
  sys.stderr = sys.__stderr__ = open(
      2, 'w', encoding='utf-8', errors='backslashreplace', buffering=1,
      closefd=False)
  sys.excepthook = print_exception
  lines = [line + '\n' for line in source.split('\n')]
  linecache.cache['<program>'] = (len(source), None, lines, '<program>')
  module = types.ModuleType('__main__')
  sys.modules['__main__'] = module
  gc.enable()
  exit_code = 0
  try:
    code = compile(source, '<program>', 'exec', dont_inherit=True)
    exec(code, module.__dict__)
  except SystemExit as error:
    exit_code = exit_code_of(error)
  except MemoryError as error:
    traceback.clear_frames(error.__traceback__)  # Room for the message.
    module.__dict__.clear()
    report(error)
    exit_code = -OUT_OF_MEMORY
  except BaseException as error:
    report(error)
    exit_code = 1
  if 'threading' in sys.modules:  # Wait for threads, as any interpreter does.
    sys.modules['threading']._shutdown()
  atexit._run_exitfuncs()
  return exit_code


def leave(exit_code):
  """Ends the process without the interpreter's slow tearing down."""
  for name in ('stdout', '__stdout__', 'stderr'):
    try:
      vars(sys)[name].flush()
    except Exception:  # Closed, replaced or deleted: a program may do that.
      pass
  if exit_code < 0:
    os.kill(os.getpid(), -exit_code)
  os._exit(abs(exit_code))


def report(error):
  """Tells of an uncaught exception, without our own frame."""
  frames = error.__traceback__.tb_next
  sys.excepthook(type(error), error.with_traceback(frames), frames)


def print_exception(*exception):
  """Prints a traceback with source lines.

  Cut in its middle, so that a long line or message is not taken for a flood of
  output.
  """
  text = ''.join(traceback.format_exception(*exception))
  if len(text) > TRACEBACK_CHARS:
    half = TRACEBACK_CHARS // 2
    text = f'{text[:half]} [...] {text[-half:]}'
  print(text, end='', file=sys.stderr)


def exit_code_of(error):
  if error.code is None:
    return 0
  if isinstance(error.code, int):
    return error.code & 0xFF
  print(error.code, file=sys.stderr)
  return 1


def set_process_option(option, value):
  if _libc.prctl(option, int(value), 0, 0, 0):
    error = ctypes.get_errno()
    raise OSError(error, f'prctl({option}): {os.strerror(error)}')


def set_limit(kind, soft, hard=None):
  """Lowers a limit for good; one that is lower already stays."""
  _, most = resource.getrlimit(kind)
  hard = soft if hard is None else hard
  if most != resource.RLIM_INFINITY:
    soft, hard = min(soft, most), min(hard, most)
  resource.setrlimit(kind, (soft, hard))


def count_tasks():
  """Number of processes and threads on the machine."""
  fd = os.open('/proc/loadavg', os.O_RDONLY)  # `open` costs a program 10 %.
  text = os.read(fd, 100)
  os.close(fd)
  return int(text.split()[3].partition(b'/')[2])


def kill_descendants():
  """Kills and reaps every descendant.

  A dead child's children become ours (PR_SET_CHILD_SUBREAPER), so also those
  that left the process group are found, one generation in each round.
  """
  while True:
    try:
      if os.waitpid(-1, os.WNOHANG)[0]:
        continue
    except ChildProcessError:
      return
    for pid in children():
      os.kill(pid, signal.SIGKILL)
    os.waitpid(-1, 0)


def children():
  """Ids of this process's children."""
  found = []
  for name in os.listdir('/proc'):
    if name.isdigit():
      try:
        with open(f'/proc/{name}/stat', 'rb') as file:
          stat = file.read()
      except OSError:  # It has ended since.
        continue
      if int(stat.rpartition(b')')[2].split()[1]) == os.getpid():
        found.append(int(name))
  return found


def remove_tree(directory):
  """Removes a directory that a program may have filled with traps."""
  try:
    os.rmdir(directory)
  except OSError:
    # The tools stand any depth of nesting, and folders without rights.
    for command in (('chmod', '-R', 'u+rwX'), ('rm', '-rf')):
      os.spawnlp(os.P_WAIT, command[0], *command, '--', directory)


if __name__ == '__main__':
  main()
