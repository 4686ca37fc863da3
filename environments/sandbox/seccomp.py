"""The filter of system calls that a program may make.

`_CALLS` lists the allowed calls with their numbers on x86-64 and aarch64, and
`_CHECKS` restricts the arguments of some. Every other call fails with EPERM. A
call of another instruction set, such as a 32-bit one, ends the program.

The filter is classic BPF, see seccomp(2): instructions of eight bytes that load
a word of the call, compare it, or return a decision.
"""

from collections.abc import Iterable
import ctypes
import errno
import os
import struct

from environments.sandbox import processes

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

# Name, number on x86-64, number on aarch64; - for none.
_CALLS = '''
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68,
preadv 295 69, pwritev 296 70, lseek 8 62, close 3 57, close_range 436 436,
dup 32 23, dup2 33 -, dup3 292 24, open 2 -, openat 257 56, fcntl 72 25,
ioctl 16 29, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, getcwd 79 17,
getdents64 217 61, umask 95 166, pipe 22 -, pipe2 293 59, poll 7 -,
ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19,
socketpair 53 199, sendto 44 206, recvfrom 45 207, mmap 9 222, munmap 11 215,
mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214, futex 202 98,
set_robust_list 273 99, rseq 334 293, set_tid_address 218 96, clone 56 220,
clone3 435 435, exit 60 93, exit_group 231 94, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -,
restart_syscall 219 128, kill 62 129, tgkill 234 131, setitimer 38 103,
getitimer 36 102, alarm 37 -, nanosleep 35 101, clock_nanosleep 230 115,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -,
times 100 153, getrusage 98 165, getcpu 309 168, sched_yield 24 124,
sched_getaffinity 204 123, getpid 39 172, gettid 186 178, getppid 110 173,
getpgrp 111 -, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, prlimit64 302 261,
getrlimit 97 163, setrlimit 160 164, prctl 157 167, uname 63 160,
sysinfo 99 179, getrandom 318 278
'''
# Machine (`os.uname`) -> column of numbers above, and AUDIT_ARCH_*.
_MACHINES = {'x86_64': (0, 0xC000003E), 'aarch64': (1, 0xC00000B7)}

_ALL = 0xFFFFFFFF
_NEGATIVE = 0x80000000
_SELF_PID = object()  # Placeholder for the id of the program's process.
# Flags of `clone` that pthread_create sets: shared memory, folder, files and
# signals, in the same process. The others are flags that it may set.
_THREAD_FLAGS, _OTHER_FLAGS = 0x10F00, 0x7C0000
_O_TRUNC = 0o1000
_TRUNC = (_O_TRUNC | 3, (0, 1, 2, _O_TRUNC | 1, _O_TRUNC | 2))
# Name -> checks, all of which must hold: a word of the arguments (2 * i is the
# lower half of argument i), a mask, and the allowed values.
_CHECKS = {
    # Only a thread that counts as one and shares its table of files.
    'clone': [(0, _ALL & ~_OTHER_FLAGS, (_THREAD_FLAGS,))],
    # CLOSE_RANGE_UNSHARE would give each thread its own limit of open files.
    'close_range': [(4, _ALL, (0,))],
    # MAP_SHARED, MAP_PRIVATE or MAP_SHARED_VALIDATE of a file, or MAP_PRIVATE
    # with MAP_ANONYMOUS; without MAP_LOCKED and MAP_HUGETLB. Shared anonymous
    # memory is kept while one page is mapped, and only mapped pages count
    # towards the limit.
    'mmap': [(6, 0x4202F, (1, 2, 3, 0x22))],
    # No advice on memory that other processes use, such as MADV_PAGEOUT.
    'madvise': [(4, _ALL, (
        0, 1, 2, 3, 4, 8,  # Expected use; MADV_DONTNEED and MADV_FREE
        14, 15, 16, 17,  # Huge pages and core dumps
        102, 103))],  # Guard pages of stacks
    'pipe2': [(2, _ALL & ~0x80800, (0,))],  # O_CLOEXEC and O_NONBLOCK
    # Only to itself.
    'kill': [(0, _ALL, (_SELF_PID,))],
    'tgkill': [(0, _ALL, (_SELF_PID,))],
    'prlimit64': [(0, _ALL, (0, _SELF_PID))],
    'sched_getaffinity': [(0, _ALL, (0, _SELF_PID))],
    # Not the clocks derived from the id of a process.
    'clock_gettime': [(0, _NEGATIVE, (0,))],
    'clock_getres': [(0, _NEGATIVE, (0,))],
    'clock_nanosleep': [(0, _NEGATIVE, (0,))],
    # O_TRUNC with read access truncates; Landlock refuses it from Linux 6.2.
    'open': [(2, *_TRUNC)],
    'openat': [(4, *_TRUNC)],
    # Neither F_SETOWN, F_SETSIG and the like, which send signals to others, nor
    # locks on shared files, nor larger pipes.
    'fcntl': [(2, _ALL, (
        0, 1, 2, 3, 4,  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL
        1030, 1034))],  # F_DUPFD_CLOEXEC, F_GET_SEALS
    'ioctl': [(2, _ALL, (
        0x5401, 0x5413, 0x541B,  # TCGETS, TIOCGWINSZ, FIONREAD
        0x5421, 0x5450, 0x5451))],  # FIONBIO, FIONCLEX, FIOCLEX
    # Waiting and waking, not the operations that change priorities.
    'futex': [(2, 0x7F, (0, 1, 3, 4, 5, 9, 10))],
    'prctl': [(0, _ALL, (15,))],  # PR_SET_NAME, of a thread
    # Only pairs of stream sockets, which asyncio needs. The address of `sendto`
    # must be NULL. Neither MSG_OOB, a source of faults in the kernel, nor other
    # rare flags.
    'socketpair': [(0, _ALL, (1,)), (2, 0xF, (1,))],
    'sendto': [
        (6, _ALL & ~0x4040, (0,)),  # MSG_DONTWAIT and MSG_NOSIGNAL
        (8, _ALL, (0,)), (9, _ALL, (0,))],
    # MSG_PEEK, MSG_TRUNC, MSG_DONTWAIT and MSG_WAITALL
    'recvfrom': [(6, _ALL & ~0x162, (0,))],
}
# Fails with ENOSYS: glibc then calls `clone`, whose flags can be checked.
_ABSENT = 'clone3'

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # Offsets in `struct seccomp_data`.
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_INSTRUCTION = struct.Struct('=HBBI')


class Filter:
  """The filter for this machine, made once and installed by many forks.

  Raises OSError for machines that are not in _MACHINES.
  """

  def __init__(self):
    machine = os.uname().machine
    if machine not in _MACHINES:
      raise OSError(
          errno.ENOSYS, f'the system calls of {machine!r} are unknown; the '
          f'sandbox supports {" and ".join(_MACHINES)}')
    code = assemble(machine)
    self._pid_offsets = [
        8 * i + 4 for i, (*_, k) in enumerate(code) if k is _SELF_PID]
    self._code = ctypes.create_string_buffer(b''.join(
        _INSTRUCTION.pack(*head, 0 if k is _SELF_PID else k)
        for *head, k in code))
    # struct sock_fprog: number and address of the instructions.
    self._program = ctypes.create_string_buffer(struct.pack(
        'HxxxxxxQ', len(code), ctypes.addressof(self._code)))

  def install(self) -> None:
    """Binds this process for good; it must have PR_SET_NO_NEW_PRIVS."""
    for offset in self._pid_offsets:
      struct.pack_into('=I', self._code, offset, os.getpid())
    processes.check(processes.libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, self._program, 0, 0), 'seccomp')


def numbers_of(machine: str) -> dict[str, int]:
  """Name of an allowed call -> its number."""
  column, _ = _MACHINES[machine]
  calls = map(str.split, _CALLS.split(','))
  return {
      name: int(numbers[column]) for name, *numbers in calls
      if numbers[column] != '-'}


def assemble(machine: str) -> list[tuple]:
  """The instructions: code, jumps if true and if false, and operand."""
  _, arch = _MACHINES[machine]
  numbers = numbers_of(machine)
  code = [
      (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL),
      (_LOAD, 0, 0, _NUMBER)]
  blocks = {
      name: _block(checks) for name, checks in _CHECKS.items()
      if name in numbers}
  blocks[_ABSENT] = [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
  for name, block in blocks.items():
    code += [(_EQUAL, 0, len(block), numbers.pop(name)), *block]
  plain = sorted(numbers.values())
  # From each to the last instruction, past the others and the refusal.
  code += [
      (_EQUAL, len(plain) - i, 0, number) for i, number in enumerate(plain)]
  return [
      *code, (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _block(checks: Iterable[tuple[int, int, tuple]]) -> list[tuple]:
  """Checks the arguments of one call; always ends in a return."""
  block = []
  for word, mask, values in checks:
    block.append((_LOAD, 0, 0, _ARGUMENTS + 4 * word))
    if mask != _ALL:
      block.append((_AND, 0, 0, mask))
    block += [
        (_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    block.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
  return [*block, (_RETURN, 0, 0, _ALLOW)]
