"""A finished run for several modules of tests."""

import pytest

from tests.viewer import runs


@pytest.fixture(scope='session')
def finished(tmp_path_factory):
  """A workdir that no test changes."""
  return runs.make(tmp_path_factory.mktemp('runs') / 'finished')
