"""What several test files of paper/ share."""

import pytest

from tests.paper import finished_runs


@pytest.fixture
def results(tmp_path_factory):
  """A folder of finished runs; see `finished_runs.write_all`."""
  out = tmp_path_factory.mktemp('results')
  finished_runs.write_all(out)
  return out
