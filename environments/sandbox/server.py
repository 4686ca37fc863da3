"""The fork-server that runs programs. A script: started, never imported.

  python -s -P -S server.py DIRECTORY LISTENER_FD NUM_SLOTS PARENT_PID

Three kinds of process, so that each is simple and none outlives its job:

  zygote      Keeps `num_slots` supervisors waiting on the listening socket
              and does nothing else; no request ever enters its memory. The
              socket's backlog is the queue.
  supervisor  Takes one connection, reads one request, forks the program,
              watches it, sweeps up, answers and exits.
  program     A fork, so a warm interpreter: no start-up, no imports to pay.

Because a request is read after the supervisor's fork, no program finds an
earlier program's source in its memory. The server ends within a second of its
parent.

The talk on a connection: the server writes `STARTED` when a slot is free, the
client answers with one JSON object and closes its side, the server writes one
JSON object and closes. `client.py` is the other end.
"""

import atexit
import ctypes
import gc
import importlib
import json
import linecache
import math
import os
import resource
import selectors
import signal
import site
import socket
import sys
import time
import traceback
import types

# What programs import most, beside the modules above: free in every fork.
PRELOADED = (
    'bisect', 'collections', 'functools', 'heapq', 'itertools', 'operator',
    're', 'string', 'typing')
STARTED = b'\n'  # White space, so that what follows is still one JSON text.
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
  """Forks a process that serves one connection; returns its id."""
  pid = os.fork()
  if pid:
    return pid
  try:
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    serve_one(listener, work_directory)
  except ConnectionError:
    pass  # The caller has gone; there is nobody to tell.
  except BaseException:  # The client sees the silence and reports it.
    traceback.print_exc()
  finally:
    os._exit(0)


def serve_one(listener, work_directory):
  connection, _ = listener.accept()
  listener.close()
  connection.settimeout(PATIENCE)
  connection.sendall(STARTED)
  request = json.loads(b''.join(iter(lambda: connection.recv(1 << 16), b'')))
  os.mkdir(work_directory, 0o700)
  try:
    reply = supervise(work_directory, **request)
  finally:
    kill_descendants()
    remove_tree(work_directory)
  connection.sendall(json.dumps(reply).encode())


def supervise(
    work_directory, source, stdin, cpu_seconds, wall_seconds, memory_bytes,
    output_bytes):
  """Runs one program to its end and returns the reply."""
  stdin_fd = os.memfd_create('stdin')
  # A lone surrogate is the program's to stumble on, not ours.
  os.write(stdin_fd, stdin.encode('utf-8', 'surrogatepass'))
  os.lseek(stdin_fd, 0, os.SEEK_SET)
  stdout_fd, program_stdout = os.pipe()
  stderr_fd, program_stderr = os.pipe()
  ready_fd, program_ready = os.pipe()
  pid = os.fork()
  if not pid:
    exit_code = 1
    try:
      enter_jail(
          work_directory, cpu_seconds, memory_bytes,
          (stdin_fd, program_stdout, program_stderr), program_ready)
      exit_code = run_program(source)
    except BaseException:  # A fault while entering leaves `ready_fd` silent.
      traceback.print_exc()
    finally:
      leave(exit_code)
  for fd in (stdin_fd, program_stdout, program_stderr, program_ready):
    os.close(fd)
  if not os.read(ready_fd, 1):
    raise RuntimeError('sandbox: a program process died before its program')

  started = time.monotonic()
  outputs = {stdout_fd: bytearray(), stderr_fd: bytearray()}
  in_time = watch(pid, outputs, output_bytes, started + wall_seconds)
  os.killpg(pid, signal.SIGKILL)  # All at once: none can fork away.
  _, wait_status, usage = os.wait4(pid, 0)
  wall = time.monotonic() - started
  for fd, output in outputs.items():  # Never waits, whoever holds the pipe.
    read_available(fd, output, output_bytes)

  cpu = usage.ru_utime + usage.ru_stime
  exit_code = os.waitstatus_to_exitcode(wait_status)
  if any(len(output) > output_bytes for output in outputs.values()):
    status = 'resource_limit'
    reason = f'stopped: more than {output_bytes} bytes of output'
  elif not in_time:
    status = 'timeout'
    reason = f'stopped: wall-clock limit of {wall_seconds} s'
  elif cpu > cpu_seconds or exit_code == -signal.SIGXCPU:
    status, reason = 'timeout', f'stopped: CPU limit of {cpu_seconds} s'
  elif exit_code == -OUT_OF_MEMORY:
    status = 'resource_limit'
    reason = f'stopped: memory limit of {memory_bytes} bytes'
  elif exit_code == -signal.SIGXFSZ:
    status = 'resource_limit'
    reason = f'stopped: a file of more than {FILE_BYTES} bytes'
  elif exit_code < 0:
    status, reason = 'error', f'killed by {signal.Signals(-exit_code).name}'
  else:
    status, reason = ('error' if exit_code else 'ok'), ''

  stdout, stderr = (
      output[:output_bytes].decode('utf-8', 'replace')
      for output in outputs.values())
  if reason and stderr and not stderr.endswith('\n'):
    reason = f'\n{reason}'
  return {
      'status': status, 'exit_code': exit_code, 'stdout': stdout,
      'stderr': stderr + reason, 'cpu_seconds': cpu, 'wall_seconds': wall}


def watch(pid, outputs, output_bytes, deadline):
  """Collects outputs until the program ends, floods, or the deadline (False).

  The end is the end of the process, not of the pipe, which a grandchild can
  hold open for as long as it likes.
  """
  pid_fd = os.pidfd_open(pid)
  with selectors.DefaultSelector() as selector:
    selector.register(pid_fd, selectors.EVENT_READ)
    for fd in outputs:
      os.set_blocking(fd, False)
      selector.register(fd, selectors.EVENT_READ)
    while True:
      remaining = max(0.0, deadline - time.monotonic())
      ready = {key.fd for key, _ in selector.select(remaining)}
      for fd in ready - {pid_fd}:
        if read_available(fd, outputs[fd], output_bytes):
          selector.unregister(fd)
        if len(outputs[fd]) > output_bytes:
          return True
      if pid_fd in ready:
        return True
      if time.monotonic() >= deadline:
        return False


def read_available(fd, output, output_bytes):
  """Appends what the pipe holds, to one byte over the cap; True at its end."""
  while len(output) <= output_bytes:
    try:
      data = os.read(fd, output_bytes + 1 - len(output))
    except BlockingIOError:
      return False
    if not data:
      return True
    output += data
  return False


def enter_jail(work_directory, cpu_seconds, memory_bytes, std_fds, ready_fd):
  """Turns this fresh fork into a process fit to run the program."""
  os.setsid()
  set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
  set_process_option(PR_SET_CHILD_SUBREAPER, 0)
  set_process_option(PR_SET_NO_NEW_PRIVS, 1)
  os.chdir(work_directory)
  cpu_limit = math.ceil(cpu_seconds)
  set_limit(resource.RLIMIT_CPU, cpu_limit, cpu_limit + 1)
  set_limit(resource.RLIMIT_AS, memory_bytes)
  set_limit(resource.RLIMIT_FSIZE, FILE_BYTES)
  set_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
  set_limit(resource.RLIMIT_NPROC, count_tasks() + EXTRA_PROCESSES)
  # 1, not 0: the kernel starts a core-dump program even at 0.
  set_limit(resource.RLIMIT_CORE, 1)
  # Python ignores it; a limit that is hit should stop the program.
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  for target, fd in enumerate(std_fds):
    os.dup2(fd, target)
  os.write(ready_fd, b'1')
  os.closerange(3, 1 << 16)


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
