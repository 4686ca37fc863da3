"""The filter allows and refuses the right calls, run by a small interpreter."""

import errno
import pathlib
import re
import struct

import pytest

from environments.sandbox import seccomp

MACHINES = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
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


def numbers(machine):
  column = 1 + list(MACHINES).index(machine)
  words = [call.split() for call in seccomp._CALLS.split(',')]
  return {w[0]: int(w[column]) for w in words if w[column] != '-'}


@pytest.mark.parametrize('machine', MACHINES)
def test_other_calls_are_refused(machine):
  listed = set(numbers(machine).values())
  assert len(listed) == len(numbers(machine)) > 80
  for number in range(600):
    if number not in listed:
      assert decide(machine, number) == ERRNO | errno.EPERM, number
  # x32 has the numbers of x86-64 with another bit.
  for number in listed:
    assert decide(machine, number | 1 << 30) == ERRNO | errno.EPERM


@pytest.mark.parametrize('machine', MACHINES)
def test_calls_without_checks_are_allowed(machine):
  for name, number in numbers(machine).items():
    if name == 'clone3':
      assert decide(machine, number) == ERRNO | errno.ENOSYS
    elif name not in seccomp._CHECKS:
      assert decide(machine, number, *[-1] * 6) == ALLOW, name


@pytest.mark.parametrize('machine', MACHINES)
def test_other_instruction_sets_end_the_program(machine):
  for arch in (0x40000003, 0x40000028, *set(MACHINES.values()) - {
      MACHINES[machine]}):
    assert decide(machine, numbers(machine)['read'], arch=arch) == KILL


_THREAD = 0x3D0F00  # The flags of glibc's pthread_create.
CASES = [
    ('clone', (_THREAD,), True), ('clone', (_THREAD | 0x400000,), True),
    ('clone', (17,), False), ('clone', (0x4111,), False),
    ('clone', (_THREAD & ~0x10000,), False),
    ('clone', (_THREAD | 0x10000000,), False),
    ('clone', (_THREAD | 0x20000,), False),
    ('clone', (_THREAD | 1 << 40,), True),  # The kernel drops the upper half.
    ('kill', (PID, 9), True), ('kill', (PID | 1 << 32, 9), True),
    ('kill', (PID + 1, 9), False), ('kill', (0, 9), False),
    ('kill', (-1, 9), False), ('kill', (-PID, 9), False),
    ('tgkill', (PID, PID, 9), True), ('tgkill', (PID + 1, PID, 9), False),
    ('prlimit64', (0, 7), True), ('prlimit64', (PID, 7), True),
    ('prlimit64', (PID + 1, 7), False),
    ('sched_getaffinity', (0, 8), True), ('sched_getaffinity', (PID,), True),
    ('sched_getaffinity', (1, 8), False),
    *((name, arguments, is_allowed)
      for name in ('clock_gettime', 'clock_getres', 'clock_nanosleep')
      for arguments, is_allowed in (
          ((2,), True), ((11,), True), ((~1 << 3 | 2,), False),
          (((~PID << 3 | 2) & 0xFFFFFFFF,), False))),
    ('openat', (-100, 0, 0), True), ('openat', (-100, 0, 0o2), True),
    ('openat', (-100, 0, 0o1101), True), ('openat', (-100, 0, 0o1000), False),
    ('openat', (-100, 0, 0o3), False), ('openat', (-100, 0, 0o2001000), False),
    ('fcntl', (0, 4, 0o4000), True), ('fcntl', (0, 8, 1), False),
    ('fcntl', (0, 10, 9), False), ('fcntl', (0, 15, 1), False),
    ('fcntl', (0, 6, 1), False), ('fcntl', (0, 1031, 1), False),
    ('fcntl', (0, 1024, 1), False),
    ('ioctl', (0, 0x541B), True), ('ioctl', (0, 0x5412), False),
    ('ioctl', (0, 0x8901), False), ('ioctl', (0, 0x5452), False),
    ('futex', (0, 0x80), True), ('futex', (0, 0x189), True),
    ('futex', (0, 6), False), ('futex', (0, 0x8D), False),
    ('prctl', (15,), True), ('prctl', (1, 0), False), ('prctl', (22,), False),
    ('socketpair', (1, 1, 0), True), ('socketpair', (1, 0o2004001, 0), True),
    ('socketpair', (1, 2, 0), False), ('socketpair', (2, 1, 0), False),
    ('socketpair', (1, 5, 0), False),
    ('sendto', (0, 1, 1, 0, 0, 0), True),
    ('sendto', (0, 1, 1, 0, 8, 0), False),
    ('sendto', (0, 1, 1, 0, 1 << 32, 0), False),
]


@pytest.mark.parametrize('machine', MACHINES)
@pytest.mark.parametrize('name, arguments, is_allowed', CASES)
def test_arguments_are_checked(machine, name, arguments, is_allowed):
  found = decide(machine, numbers(machine)[name], *arguments)
  assert found == (ALLOW if is_allowed else ERRNO | errno.EPERM)


def test_every_check_has_cases_of_both_outcomes():
  for name in seccomp._CHECKS.keys() - {'open'}:  # Checked like openat.
    assert {case[2] for case in CASES if case[0] == name} == {True, False}


@pytest.mark.parametrize('machine', MACHINES)
def test_numbers_match_the_headers_of_the_kernel(machine):
  path = pathlib.Path(HEADERS[machine])
  if not path.exists():
    pytest.skip(f'{path} is not installed')
  found = {}
  for line in path.read_text().splitlines():
    # The generic header has some names for both word sizes.
    match = re.match(r'#define __NR3?2?6?4?_(\w+)\s+(\d+)$', line.strip())
    match = match or re.match(
        r'#define __NR3264_(\w+)\s+(\d+)$', line.strip())
    if match:
      found[match[1]] = int(match[2])
  found['newfstatat'] = found.get('newfstatat', found.get('fstatat'))
  for name, number in numbers(machine).items():
    assert found[name] == number, name
