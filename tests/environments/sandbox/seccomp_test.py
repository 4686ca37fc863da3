"""The filter allows and refuses the right calls, run by a small interpreter."""

import errno
import pathlib
import re
import struct

import pytest

from environments.sandbox import seccomp

MACHINES = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
REFUSE = ERRNO | errno.EPERM
PID = 4711
HEADERS = {
    'x86_64': '/usr/include/x86_64-linux-gnu/asm/unistd_64.h',
    'aarch64': '/usr/include/asm-generic/unistd.h'}


def decide(machine, number, *arguments, arch=None):
  """The kernel's decision on a call."""
  arguments = [a % (1 << 64) for a in arguments] + [0] * (6 - len(arguments))
  data = struct.pack(
      '=IIQ6Q', number, arch or MACHINES[machine], 0, *arguments)
  code = seccomp.assemble(machine)
  position = word = 0
  while True:
    kind, if_true, if_false, k = code[position]
    k = PID if k is seccomp._SELF_PID else k
    position += 1
    if kind == 0x20:
      word, = struct.unpack_from('=I', data, k)
    elif kind == 0x54:
      word &= k
    elif kind == 0x15:
      position += if_true if word == k else if_false
    else:
      assert kind == 0x06
      return k


@pytest.mark.parametrize('machine', MACHINES)
def test_only_listed_calls_of_the_machine_are_allowed(machine):
  numbers = seccomp.numbers_of(machine)
  listed = {number: name for name, number in numbers.items()}
  assert len(listed) == len(numbers) > 80
  for number in range(600):
    decision = decide(machine, number, *[-1] * 6)
    if listed.get(number) == 'clone3':
      assert decision == ERRNO | errno.ENOSYS
    elif number not in listed:
      assert decision == REFUSE, number
    elif listed[number] not in seccomp._CHECKS:
      assert decision == ALLOW, listed[number]
    # x32 has the numbers of x86-64 with another bit.
    assert decide(machine, number | 1 << 30) == REFUSE
  for arch in {0x40000003, 0x40000028, *MACHINES.values()} - {
      MACHINES[machine]}:
    assert decide(machine, numbers['read'], arch=arch) == KILL


_THREAD = 0x3D0F00  # The flags of glibc's pthread_create.
_BIG = 1 << 28  # Number of bytes
# Name of a call -> allowed arguments, refused arguments. `open` is as `openat`.
CASES = {
    'clone': (
        # The kernel drops the upper half.
        [(_THREAD,), (_THREAD | 0x400000,), (_THREAD | 1 << 40,)],
        [(17,), (_THREAD & ~0x10000,), (_THREAD | 0x10000000,),
         # Each thread with its own memory, folder, files or signals.
         *((_THREAD & ~(0x100 << i),) for i in range(4))]),
    'close_range': (
        [(3, 0xFFFFFFFF, 0), (3, 9, 1 << 32)],
        [(3, 0xFFFFFFFF, flags) for flags in (2, 4, 6, -1)]),
    'mmap': (
        [(0, _BIG, 3, flags, fd, 0) for flags, fd in (
            (0x22, -1), (0x32, -1), (0x20022, -1), (0x4022, -1), (1, 0),
            (2, 0), (0x812, 0))],
        # Shared or locked memory, and huge pages.
        [(0, _BIG, 3, flags, -1, 0) for flags in (
            0x21, 0x23, 0x2022, 0x2001, 0x40022, 0x40002, 0x28)]),
    'madvise': (
        [(0, _BIG, advice) for advice in (0, 4, 8, 14)],
        [(0, _BIG, advice) for advice in (9, 12, 20, 21, 25, 100, 101)]),
    'pipe2': (
        [(0, 0), (0, 0x80000), (0, 0x80800)], [(0, 0x80), (0, 0x4000)]),
    'kill': (
        [(PID, 9), (PID | 1 << 32, 9)],
        [(PID + 1, 9), (0, 9), (-1, 9), (-PID, 9)]),
    'tgkill': ([(PID, PID, 9)], [(PID + 1, PID, 9)]),
    'prlimit64': ([(0, 7), (PID, 7)], [(PID + 1, 7)]),
    'sched_getaffinity': ([(0, 8), (PID,)], [(1, 8)]),
    **dict.fromkeys(
        ('clock_gettime', 'clock_getres', 'clock_nanosleep'),
        ([(2,), (11,)], [(~1 << 3 | 2,), ((~PID << 3 | 2) & 0xFFFFFFFF,)])),
    'openat': (
        [(-100, 0, 0), (-100, 0, 0o2), (-100, 0, 0o1101)],
        [(-100, 0, 0o1000), (-100, 0, 0o3), (-100, 0, 0o2001000)]),
    'fcntl': ([(0, 4, 0o4000)], [
        (0, command, 1) for command in (6, 8, 10, 15, 1024, 1031)]),
    'ioctl': ([(0, 0x541B)], [(0, 0x5412), (0, 0x8901), (0, 0x5452)]),
    'futex': ([(0, 0x80), (0, 0x189)], [(0, 6), (0, 0x8D)]),
    'prctl': ([(15,)], [(1, 0), (22,)]),
    'socketpair': (
        [(1, 1, 0), (1, 0o2004001, 0)], [(1, 2, 0), (2, 1, 0), (1, 5, 0)]),
    'sendto': (
        [(0, 1, 1, 0, 0, 0), (0, 1, 1, 0x4040, 0, 0)],
        [(0, 1, 1, 0, 8, 0), (0, 1, 1, 0, 1 << 32, 0),
         *((0, 1, 1, flags, 0, 0) for flags in (1, 0x800, 0x4000000))]),
    'recvfrom': (
        [(0, 1, 1, flags, 0, 0) for flags in (0, 2, 0x20, 0x40, 0x100)],
        [(0, 1, 1, flags, 0, 0) for flags in (1, 0x2000, 0x40000000)]),
}


@pytest.mark.parametrize('machine', MACHINES)
@pytest.mark.parametrize('name', sorted(seccomp._CHECKS.keys() - {'open'}))
def test_arguments_are_checked(machine, name):
  number = seccomp.numbers_of(machine)[name]
  allowed, refused = CASES[name]
  assert {decide(machine, number, *arguments) for arguments in allowed} == {
      ALLOW}
  assert {decide(machine, number, *arguments) for arguments in refused} == {
      REFUSE}


@pytest.mark.parametrize('machine', MACHINES)
def test_numbers_match_the_headers_of_the_kernel(machine):
  path = pathlib.Path(HEADERS[machine])
  if not path.exists():
    pytest.skip(f'{path} is not installed')
  # The generic header has some names for both word sizes.
  found = {
      name: int(number) for name, number in re.findall(
          r'^#define __NR(?:3264)?_(\w+)\s+(\d+)$', path.read_text(), re.M)}
  found['newfstatat'] = found.get('newfstatat', found.get('fstatat'))
  for name, number in seccomp.numbers_of(machine).items():
    assert found[name] == number, name
