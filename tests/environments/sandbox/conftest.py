"""One server for each level, shared by all files."""

import contextlib
import functools
import os

import pytest

from environments import sandbox
from tests.environments.sandbox import servers


@pytest.fixture(scope='session')
def server_at():
  """A function from a level to its server, which has two slots.

  The caller has a secret and an inheritable file that must not reach programs.
  """
  with contextlib.ExitStack() as stack:
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv('HF_TOKEN', servers.CANARY)
    os.set_inheritable(stack.enter_context(open(__file__)).fileno(), True)
    yield functools.cache(
        lambda level: stack.enter_context(sandbox.SandboxServer(2, level)))


@pytest.fixture(scope='session', params=servers.LEVELS)
def server(request, server_at):
  return server_at(request.param)


@pytest.fixture(scope='session')
def unsafe(server_at):
  """At the level where programs can reach the processes that watch them."""
  return server_at('unsafe_rlimit')
