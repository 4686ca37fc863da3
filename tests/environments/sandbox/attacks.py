"""Attacks of a hostile program: name -> a line of Python.

A refused line raises OSError. PRELUDE and the values of VICTIM, CANARY and the
like precede each line.
"""

import textwrap

PRELUDE = '''
import ctypes, errno, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# Name of a call, and its numbers on x86-64 and aarch64.
CALLS = """
fork 57 -, vfork 58 -, clone 56 220, ptrace 101 117, tkill 200 130,
process_vm_readv 310 270, memfd_create 319 279, bpf 321 280,
userfaultfd 323 282, io_uring_setup 425 425, pidfd_getfd 438 438,
clone3 435 435, open_by_handle_at 304 265, perf_event_open 298 241,
keyctl 250 219, kcmp 312 272, unshare 272 97, setns 308 268, mount 165 40,
pivot_root 155 41, seccomp 317 277, rt_sigqueueinfo 129 138,
rt_tgsigqueueinfo 297 240, shmget 29 194, msgget 68 186, semget 64 190,
mq_open 240 180, capset 126 91, init_module 175 105, kexec_load 246 104,
personality 135 92, ioprio_set 251 30, landlock_create_ruleset 444 444,
process_madvise 440 440, memfd_secret 447 447, mlock 149 228,
fanotify_init 300 262, inotify_init1 294 26, timer_create 222 107,
add_key 248 217, syslog 103 116, openat2 437 437, splice 275 76,
setuid 105 146, futex 202 98, prlimit64 302 261, openat 257 56,
close_range 436 436, membarrier 324 283"""
NUMBERS = {name: pair for name, *pair in map(str.split, CALLS.split(','))}

def raw(name, *arguments):
  number = NUMBERS[name][os.uname().machine == 'aarch64']
  if number == '-':
    raise OSError(errno.ENOSYS, name)
  result = libc.syscall(int(number), *(
      ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments))
  if result < 0:
    raise OSError(ctypes.get_errno(), name)
  return result

def ok(result):
  if result in (-1, None):
    raise OSError(ctypes.get_errno(), 'libc')
  return result
'''

FILES = {
    'read a file': 'print(open(CANARY).read())',
    'read the password file': 'print(open("/etc/passwd").read())',
    'read by a raw call': 'raw("openat", -100, CANARY.encode(), 0)',
    'read by openat2': 'raw("openat2", -100, CANARY.encode(), bytes(24), 24)',
    'read by handle': 'raw("open_by_handle_at", -100, bytes(16), 0)',
    'read through a link': 'print(open("/proc/self/root" + CANARY).read())',
    'read through the cwd': 'print(open("/proc/self/cwd/.." + CANARY).read())',
    'read through a path handle': (
        'fd = os.open(CANARY, os.O_PATH); '
        'print(open(f"/proc/self/fd/{fd}").read())'),
    'read a link': 'os.readlink("/proc/self/exe")',
    'read a link in a folder': (
        'os.readlink("exe", dir_fd=os.open("/proc/self", os.O_PATH))'),
    'list the root': 'os.listdir("/")',
    'list the temporary files': 'os.listdir(os.path.dirname(CANARY))',
    'read the sandbox itself': 'open(SOURCE).read()',
    'read installed packages': 'open(INSTALLED).read()',
    'write here': 'open("file", "w")',
    'write there': 'open("/tmp/forged-by-a-program", "w")',
    'write to shared memory': 'open("/dev/shm/forged", "w")',
    'write to a file': 'open(CANARY, "a").write("forged")',
    'change the standard library': 'open(os.__file__, "a").write("forged")',
    'truncate by opening': (
        'os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)'),
    'truncate': 'os.truncate(CANARY, 0)',
    'remove': 'os.unlink(CANARY)',
    'rename': 'os.rename(CANARY, CANARY + "2")',
    'make a folder': 'os.mkdir("folder")',
    'make a folder there': 'os.mkdir("/tmp/forged-folder")',
    'make a link': 'os.symlink("/", "link")',
    'make a hard link': 'os.link(os.__file__, "/tmp/forged-link")',
    'make a pipe': 'os.mkfifo("fifo")',
    'make a device': 'os.mknod("device", 0o60600, os.makedev(254, 0))',
    'make an unnamed file': 'os.open("/tmp", os.O_TMPFILE | os.O_RDWR)',
    'change rights': 'os.chmod(CANARY, 0o777)',
    'change rights of the library': 'os.chmod(os.__file__, 0o777)',
    'change the owner': 'os.chown(CANARY, 1, 1)',
    'change times': 'os.utime(os.__file__, (0, 0))',
    'change attributes': 'os.setxattr(os.__file__, "user.x", b"x")',
    'lock the standard library': (
        '__import__("fcntl").flock(open(os.__file__), 6)'),
    'watch files': 'raw("inotify_init1", 0)',
    'watch all files': 'raw("fanotify_init", 0, 0)',
    'mount': 'raw("mount", b"none", b"/tmp", b"tmpfs", 0, 0)',
    'change the root': 'os.chroot("/tmp")',
    'pivot the root': 'raw("pivot_root", b".", b".")',
    'memory file': 'raw("memfd_create", b"x", 0)',
    'secret memory': 'raw("memfd_secret", 0)',
    'shared anonymous memory': 'mmap.mmap(-1, 4096)',
    'shared memory of a device': (
        'mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)'),
    'shared memory': 'raw("shmget", 0, 1 << 20, 0o1600)',
    'semaphores': 'raw("semget", 0, 1, 0o1600)',
    'message queue': 'raw("msgget", 0, 0o1600)',
    'posix message queue': 'raw("mq_open", b"forged", 0o102, 0o600, 0)',
    'locked memory': 'raw("mlock", 0, 4096)',
    'a locked mapping': 'mmap.mmap(-1, 4096, flags=0x2022)',
    'huge pages': 'mmap.mmap(-1, 1 << 21, flags=0x40022)',
    'merged pages': 'mmap.mmap(-1, 4096, flags=0x22).madvise(12)',
    'page out the standard library': (
        'mmap.mmap(os.open(os.__file__, 0), 4096, prot=1).madvise(21)'),
    'a pipe of notifications': 'ok(libc.pipe2(bytes(8), 0x80))',
    'grow its input': 'os.write(0, b"x")',
    'larger pipes': '__import__("fcntl").fcntl(1, 1031, 1 << 20)',
    'splice': 'raw("splice", 0, 0, 1, 0, 1, 0)',
}

NETWORK = {
    'a tcp socket': 'socket.socket()',
    'a udp socket': 'socket.socket(type=socket.SOCK_DGRAM)',
    'an ipv6 socket': 'socket.socket(socket.AF_INET6)',
    'a raw socket': 'socket.socket(type=socket.SOCK_RAW)',
    'a packet socket': 'socket.socket(socket.AF_PACKET, socket.SOCK_RAW)',
    'a netlink socket': 'socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)',
    'a virtual machine socket': 'socket.socket(socket.AF_VSOCK)',
    'the server\'s socket': 'socket.socket(socket.AF_UNIX).connect(SERVER)',
    'an abstract socket': 'socket.socket(socket.AF_UNIX).bind(b"\\0forged")',
    'connect a pair': 'socket.socketpair()[0].connect(SERVER)',
    'a pair of datagrams': 'socket.socketpair(type=socket.SOCK_DGRAM)',
    'a message through a pair': (
        'socket.socketpair()[0].sendmsg([b"x"], [], 0, SERVER)'),
    'a datagram through a pair': (
        'socket.socketpair()[0].sendto(b"x", SERVER)'),
    'urgent data': 'socket.socketpair()[0].send(b"x", socket.MSG_OOB)',
    'io_uring': 'raw("io_uring_setup", 8, bytes(120))',
}

PROCESSES = {
    'fork': 'os.fork() or os._exit(0)',
    'raw fork': 'raw("fork") or os._exit(0)',
    'vfork': 'raw("vfork") or os._exit(0)',
    'clone': 'raw("clone", 17, 0, 0, 0, 0) or os._exit(0)',
    'clone into namespaces': (
        'raw("clone", 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)'),
    'clone that shares memory': (
        'raw("clone", 0x4000 | 0x100 | 17, 0, 0, 0, 0) or os._exit(0)'),
    'a thread with its own files': 'raw("clone", 0x10B00, 0, 0, 0, 0)',
    'a thread with its own folder': 'raw("clone", 0x10D00, 0, 0, 0, 0)',
    'files that a thread does not share': (
        'raw("close_range", 3, 0xffffffff, 2)'),
    'files closed by an exec': 'raw("close_range", 3, 0xffffffff, 4)',
    'interrupt every core': 'raw("membarrier", 2, 0)',
    'clone3': 'raw("clone3", struct.pack("=11Q", *[0] * 4, 17, *[0] * 6), 88)',
    'exec': 'os.execv("/bin/sh", ["sh", "-c", "echo ESCAPED"])',
    'exec python': 'os.execv(sys.executable, [sys.executable, "-c", "1"])',
    'exec from a descriptor': (
        'fd = os.open("/bin/sh", os.O_PATH); os.execve(fd, ["sh"], {})'),
    'spawn': 'os.posix_spawn("/bin/sh", ["sh", "-c", "echo ESCAPED"], {})',
    'system': 'ok(-1 if os.system("echo ESCAPED") else 0)',
    'subprocess': '__import__("subprocess").run(["echo", "ESCAPED"])',
    'multiprocessing': (
        '__import__("multiprocessing").get_context("fork").Process('
        'target=print).start()'),
    'signal its supervisor': 'os.kill(os.getppid(), 9)',
    'stop its supervisor': 'os.kill(os.getppid(), 19)',
    'signal the trainer': 'os.kill(VICTIM, 9)',
    'signal init': 'os.kill(1, 0)',
    'signal everybody': 'os.kill(-1, 9)',
    'signal its group': 'os.killpg(0, 9)',
    'signal a thread': 'raw("tkill", VICTIM, 9)',
    'queue a signal': 'raw("rt_sigqueueinfo", VICTIM, 9, bytes(128))',
    'queue one for a thread': (
        'raw("rt_tgsigqueueinfo", VICTIM, VICTIM, 9, bytes(128))'),
    'signal through a process descriptor': (
        'fd = os.pidfd_open(VICTIM); __import__("signal").'
        'pidfd_send_signal(fd, 9)'),
    'signal through a pipe\'s owner': '''
        import fcntl
        r, w = os.pipe()
        fcntl.fcntl(r, fcntl.F_SETOWN, VICTIM)''',
    'signal through an ioctl': '''
        import fcntl
        r, w = os.pipe()
        fcntl.ioctl(r, 0x8901, struct.pack("i", VICTIM))''',
    'signal by a timer': 'raw("timer_create", 0, 0, bytes(8))',
    'trace its supervisor': 'raw("ptrace", 16, os.getppid(), 0, 0)',
    'trace the trainer': 'raw("ptrace", 16, VICTIM, 0, 0)',
    'be traced': 'raw("ptrace", 0, 0, 0, 0)',
    'read memory': '''
        there = struct.pack("QQ", 0x400000, 8)
        here = ctypes.create_string_buffer(8)
        own = struct.pack("QQ", ctypes.addressof(here), 8)
        raw("process_vm_readv", os.getppid(), own, 1, there, 1, 0)''',
    'change priorities by a lock': 'raw("futex", bytes(64), 6, 0, 0, 0, 0)',
    'advise on memory': 'raw("process_madvise", 1, 0, 0, 0, 0)',
    'the supervisor\'s memory': 'open(f"/proc/{os.getppid()}/mem", "rb+")',
    'the supervisor\'s map': 'open(f"/proc/{os.getppid()}/maps")',
    'the supervisor\'s files': 'os.listdir(f"/proc/{os.getppid()}/fd")',
    'the trainer\'s environment': (
        'print(open(f"/proc/{VICTIM}/environ").read())'),
    'the trainer\'s command': 'open(f"/proc/{VICTIM}/cmdline")',
    'all processes': 'os.listdir("/proc")',
    'its own memory file': 'open("/proc/self/mem", "rb+")',
    'a file of another process': 'raw("pidfd_getfd", 0, 0, 0)',
    'compare processes': 'raw("kcmp", os.getppid(), os.getpid(), 0, 0, 0)',
    'limits of others': 'raw("prlimit64", os.getppid(), 7, bytes(16), 0)',
    'priority of others': 'os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)',
    'cores of others': 'os.sched_setaffinity(os.getppid(), {0})',
    'cores that others may use': 'os.sched_getaffinity(VICTIM)',
    'computing time of others': (
        '__import__("time").clock_gettime(~VICTIM << 3 | 2)'),
    'disk priority': 'raw("ioprio_set", 1, os.getppid(), 0)',
    'outlive its supervisor': 'ok(libc.prctl(1, 0, 0, 0, 0))',
}

PRIVILEGES = {
    'user namespace': 'raw("unshare", 0x10000000)',
    'mount namespace': 'raw("unshare", 0x20000)',
    'enter a namespace': 'raw("setns", 0, 0)',
    'become root': 'os.setuid(0)',
    'become somebody': 'os.setresuid(12345, 12345, 12345)',
    'change groups': 'os.setgroups([0])',
    'raw setuid': 'raw("setuid", 0)',
    'get capabilities': (
        'raw("capset", struct.pack("=Ii", 0x20080522, 0), b"\\xff" * 24)'),
    'raise a limit': (
        '__import__("resource").setrlimit(9, (-1, -1))'),
    'write files after all': (
        '__import__("resource").setrlimit(1, (1 << 20, 1 << 20))'),
    'a new filter': 'raw("seccomp", 1, 0, bytes(16))',
    'no filter': 'ok(libc.prctl(22, 0, 0, 0, 0))',
    'new rules': 'raw("landlock_create_ruleset", bytes(8), 8, 0)',
    'dumpable': 'ok(libc.prctl(4, 1, 0, 0, 0))',
    'bpf': 'raw("bpf", 0, bytes(64), 64)',
    'performance counters': 'raw("perf_event_open", bytes(120), 0, -1, -1, 0)',
    'page faults': 'raw("userfaultfd", 0)',
    'keys': 'raw("keyctl", 0, -4, 1)',
    'a new key': 'raw("add_key", b"user", b"x", b"x", 1, -4)',
    'a kernel module': 'raw("init_module", b"x", 1, b"")',
    'another kernel': 'raw("kexec_load", 0, 0, 0, 0)',
    'the kernel\'s log': 'raw("syslog", 2, bytes(100), 100)',
    'personality': 'raw("personality", 0x0400000)',
    'reboot': 'ok(libc.reboot(0))',
    'name of the machine': 'ok(libc.sethostname(b"forged", 6))',
    'the clock': '__import__("time").clock_settime(0, 1.0)',
    'type into the terminal': (
        '__import__("fcntl").ioctl(0, 0x5412, b"x")'),
}

ATTACKS = FILES | NETWORK | PROCESSES | PRIVILEGES


def program(line, names):
  """A program that prints 'begun', and then what became of the line."""
  given = ''.join(f'{name} = {value!r}\n' for name, value in names.items())
  body = textwrap.indent(textwrap.dedent(line).strip(), '  ')
  return (
      f'{PRELUDE}\n{given}\nprint("begun", flush=True)\ntry:\n{body}'
      '\nexcept OSError as error:\n  print("refused", error.errno)\n'
      'else:\n  print("ESCAPED")\n')
