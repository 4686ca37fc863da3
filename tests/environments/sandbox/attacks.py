"""Attacks of a hostile program: name -> a line of Python.

A refused line raises OSError. PRELUDE and the values of VICTIM, CANARY and the
like precede each line. hostile_test.py also makes every call that is not
listed in `seccomp`.
"""

import os
import textwrap

from environments.sandbox import seccomp

PRELUDE = '''
import ctypes, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def ok(result):
  if result == -1:
    raise OSError(ctypes.get_errno(), 'libc')
  return result

def raw(name, *arguments):
  return ok(libc.syscall(NUMBERS[name], *(
      ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments)))
'''

FILES = {
    'read a file': 'print(open(CANARY).read())',
    'read by a raw call': 'raw("openat", -100, CANARY.encode(), 0)',
    'read through a link': 'print(open("/proc/self/root" + CANARY).read())',
    'read through a path handle': (
        'fd = os.open(CANARY, os.O_PATH); '
        'print(open(f"/proc/self/fd/{fd}").read())'),
    'read a link': 'os.readlink("/proc/self/exe")',
    'list the root': 'os.listdir("/")',
    'read the sandbox itself': 'open(SOURCE).read()',
    'read installed packages': 'open(INSTALLED).read()',
    'write here': 'open("file", "w")',
    'write there': 'open("/tmp/forged-by-a-program", "w")',
    'write to shared memory': 'open("/dev/shm/forged", "w")',
    'write to a file': 'open(CANARY, "a").write("forged")',
    'change the standard library': 'open(os.__file__, "a").write("forged")',
    'truncate by opening': (
        'os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)'),
    'remove': 'os.unlink(CANARY)',
    'make a folder': 'os.mkdir("/tmp/forged-folder")',
    'make a link': 'os.symlink("/", "link")',
    'make an unnamed file': 'os.open("/tmp", os.O_TMPFILE | os.O_RDWR)',
    'change rights': 'os.chmod(CANARY, 0o777)',
    'lock the standard library': (
        '__import__("fcntl").flock(open(os.__file__), 6)'),
    'watch files': 'ok(libc.inotify_init1(0))',
    'memory file': 'os.memfd_create("x")',
    'shared anonymous memory': 'mmap.mmap(-1, 4096)',
    'shared memory of a device': (
        'mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)'),
    'shared memory': 'ok(libc.shmget(0, 1 << 20, 0o1600))',
    'message queue': 'ok(libc.msgget(0, 0o1600))',
    'a locked mapping': 'mmap.mmap(-1, 4096, flags=0x2022)',
    'huge pages': 'mmap.mmap(-1, 1 << 21, flags=0x40022)',
    'merged pages': 'mmap.mmap(-1, 4096, flags=0x22).madvise(12)',
    'page out the standard library': (
        'mmap.mmap(os.open(os.__file__, 0), 4096, prot=1).madvise(21)'),
    'a pipe of notifications': 'ok(libc.pipe2(bytes(8), 0x80))',
    'grow its input': 'os.write(0, b"x")',
    'larger pipes': '__import__("fcntl").fcntl(1, 1031, 1 << 20)',
}

NETWORK = {
    'a tcp socket': 'socket.socket()',
    'the server\'s socket': 'socket.socket(socket.AF_UNIX).connect(SERVER)',
    'a pair of datagrams': 'socket.socketpair(type=socket.SOCK_DGRAM)',
    'a datagram through a pair': (
        'socket.socketpair()[0].sendto(b"x", SERVER)'),
    'urgent data': 'socket.socketpair()[0].send(b"x", socket.MSG_OOB)',
}

PROCESSES = {
    'fork': 'os.fork() or os._exit(0)',
    'clone': 'raw("clone", 17, 0, 0, 0, 0) or os._exit(0)',
    'a thread with its own files': 'raw("clone", 0x10B00, 0, 0, 0, 0)',
    'files that a thread does not share': (
        'raw("close_range", 3, 0xffffffff, 2)'),
    'clone3': 'raw("clone3", struct.pack("=11Q", *[0] * 4, 17, *[0] * 6), 88)',
    'exec': 'os.execv("/bin/sh", ["sh", "-c", "echo ESCAPED"])',
    'subprocess': '__import__("subprocess").run(["echo", "ESCAPED"])',
    'signal its supervisor': 'os.kill(os.getppid(), 9)',
    'signal the trainer': 'os.kill(VICTIM, 9)',
    'signal everybody': 'os.kill(-1, 9)',
    'signal its group': 'os.killpg(0, 9)',
    'signal through a pipe\'s owner': '''
        import fcntl
        r, w = os.pipe()
        fcntl.fcntl(r, fcntl.F_SETOWN, VICTIM)''',
    'signal through an ioctl': '''
        import fcntl
        r, w = os.pipe()
        fcntl.ioctl(r, 0x8901, struct.pack("i", VICTIM))''',
    'trace the trainer': 'ok(libc.ptrace(16, VICTIM, 0, 0))',
    'change priorities by a lock': 'raw("futex", bytes(64), 6, 0, 0, 0, 0)',
    'the supervisor\'s memory': 'open(f"/proc/{os.getppid()}/mem", "rb+")',
    'the trainer\'s environment': (
        'print(open(f"/proc/{VICTIM}/environ").read())'),
    'all processes': 'os.listdir("/proc")',
    'its own memory file': 'open("/proc/self/mem", "rb+")',
    'limits of others': 'raw("prlimit64", os.getppid(), 7, bytes(16), 0)',
    'priority of others': 'os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)',
    'cores that others may use': 'os.sched_getaffinity(VICTIM)',
    'computing time of others': (
        '__import__("time").clock_gettime(~VICTIM << 3 | 2)'),
    'outlive its supervisor': 'ok(libc.prctl(1, 0, 0, 0, 0))',
}

PRIVILEGES = {
    'a user namespace': 'ok(libc.unshare(0x10000000))',
    'become root': 'os.setuid(0)',
    'raise a limit': 'ok(libc.setrlimit(9, b"\\xff" * 16))',
    'no filter': 'ok(libc.prctl(22, 0, 0, 0, 0))',
    'type into the terminal': '__import__("fcntl").ioctl(0, 0x5412, b"x")',
}

ATTACKS = FILES | NETWORK | PROCESSES | PRIVILEGES


def program(line, names):
  """A program that prints 'begun', and then what became of the line."""
  names = {**names, 'NUMBERS': seccomp.numbers_of(os.uname().machine)}
  given = ''.join(f'{name} = {value!r}\n' for name, value in names.items())
  body = textwrap.indent(textwrap.dedent(line).strip(), '  ')
  return (
      f'{PRELUDE}\n{given}\nprint("begun", flush=True)\ntry:\n{body}'
      '\nexcept OSError as error:\n  print("refused", error.errno)\n'
      'else:\n  print("ESCAPED")\n')
