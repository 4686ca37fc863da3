"""A sandbox for all tests of environments."""

import pytest

from environments import sandbox as sandbox_lib


@pytest.fixture(scope='session')
def sandbox():
  with sandbox_lib.SandboxServer(2) as server:
    yield sandbox_lib.Sandbox(server.address)
