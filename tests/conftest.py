"""Settings and fixtures of several test files."""

import importlib.metadata
import os
import pathlib
import signal

import pytest

from environments import sandbox as sandbox_lib
from tests import echo

# The folders of launch/_common.sh. tensorflow-datasets and jax read them when
# they are imported, which is before any fixture.
_CACHE = pathlib.Path(__file__).parents[1] / '.cache'
os.environ.setdefault('TFDS_DATA_DIR', str(_CACHE / 'datasets'))
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_CACHE / 'jax'))

# Tests compile much and compute little: compile fast, and cache every program.
# The processes that tests start inherit this.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
# XLA's older code generator takes half of the time; results are equal up to
# rounding. jaxlib 0.11.2 no longer has it, and aborts on unknown flags.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  os.environ['XLA_FLAGS'] = ' '.join((
      os.environ.get('XLA_FLAGS', ''), '--xla_cpu_use_fusion_emitters=false'))

# Some tests send SIGINT to processes that they start, which would ignore it if
# this process does, as in a script that starts the tests with `&`.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session')
def echo_folder(tmp_path_factory) -> pathlib.Path:
  """A model folder for `tests.echo`; never written to."""
  return echo.write_model(tmp_path_factory.mktemp('echo'))


@pytest.fixture(scope='session')
def params():
  """The parameters of `tests.rl.tiny`; never donated."""
  from tests.rl import tiny  # jax reads the settings above.
  return tiny.make_params()


@pytest.fixture(scope='session')
def sandbox():
  with sandbox_lib.SandboxServer(2) as server:
    yield server.sandbox


@pytest.fixture(scope='module', autouse=True)
def own_signals():
  """Restores the signal handlers that a training run has replaced."""
  numbers = signal.SIGINT, signal.SIGTERM
  handlers = [signal.getsignal(number) for number in numbers]
  yield
  for number, handler in zip(numbers, handlers):
    signal.signal(number, handler)


def pytest_collection_modifyitems(items):
  """Runs the files directly in tests/ first, because they take longest.

  An idle worker of pytest-xdist takes over the last tests of another one, so
  these should be short.
  """
  items.sort(key=lambda item: len(item.path.parts))
