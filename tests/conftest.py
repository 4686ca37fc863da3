"""What several test files share."""

import os
import pathlib
import signal

import pytest

from tests import echo

# Where launch/_common.sh keeps them; tensorflow-datasets and jax read this when
# they are imported, which is before any fixture.
_CACHE = pathlib.Path(__file__).parents[1] / '.cache'
os.environ.setdefault('TFDS_DATA_DIR', str(_CACHE / 'datasets'))
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_CACHE / 'jax'))

# Tests compile much and compute little: a quick compiler, and no program twice.
# The processes that tests start inherit it.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
# XLA's older code generator: half of the time, and the same results up to
# rounding.
os.environ['XLA_FLAGS'] = ' '.join((
    os.environ.get('XLA_FLAGS', ''), '--xla_cpu_use_fusion_emitters=false'))

# Some tests send Ctrl-C to processes they start. Those would ignore it where
# this one does, as whatever a script has started with `&`.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session')
def echo_folder(tmp_path_factory) -> pathlib.Path:
  """A model folder for `tests.echo`; never written to."""
  return echo.write_model(tmp_path_factory.mktemp('echo'))


@pytest.fixture(scope='module', autouse=True)
def own_signals():
  """Takes back the signals that a training run has claimed."""
  numbers = signal.SIGINT, signal.SIGTERM
  handlers = [signal.getsignal(number) for number in numbers]
  yield
  for number, handler in zip(numbers, handlers):
    signal.signal(number, handler)
