"""Several processes that train as one.

Every process runs the same program, holds the same groups and dispatches the
same computations in the same order; only the environments are divided among
them. jax skips a computation in a process without any of its devices, and its
results are arrays without data there; `fetch` brings their values to all
processes. The first process prints and writes files. All share the workdir.
"""

import collections
from collections.abc import Callable
import contextlib
import ctypes
import os
import pickle
import re
import sys
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from atgrpo_jax import errors

_SHUTDOWN_TIMEOUT = 3600  # Seconds that processes wait for each other at exit.
_GRACE_PERIOD = 3.0  # Seconds between reporting an error and exiting.
_PEER_ERRORS = re.compile('Gloo|NCCL|CoordinationService|[Hh]eartbeat')


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None,
    process_id: int | None = None) -> None:
  """Joins the other processes of the run.

  Without arguments, jax finds them in a TPU pod or a job of SLURM or Open MPI.
  jax aborts this process if another one does not join within five minutes, dies
  or falls silent. Raises UserError if the address cannot be used, or no cluster
  was found.
  """
  # jax would claim SIGTERM, and a run could not be stopped while it starts.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
        coordinator_address, num_processes, process_id,
        shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT)
  except (ValueError, jax.errors.JaxRuntimeError) as error:
    raise errors.UserError(
        f'--coordinator_address={coordinator_address} cannot be used '
        f'({errors.one_line(error)}); give HOST:PORT with a free port, '
        '--num_processes and --process_id, or start a TPU pod or a job of '
        'SLURM or Open MPI.') from error
  check_platform()  # While this process has a single thread.


def check_platform() -> None:
  """Raises UserError if the first of JAX_PLATFORMS is missing.

  Without a GPU, jax would use the next one. The first call loads libraries.
  """
  wanted = os.environ.get('JAX_PLATFORMS', '').partition(',')[0]
  expected = {'cuda': 'gpu', 'rocm': 'gpu', 'tpu': 'tpu'}.get(wanted)
  try:
    found = jax.default_backend()
  except (AssertionError, RuntimeError) as error:
    expected, found = wanted, errors.one_line(error)
  if expected not in (None, found):
    raise errors.UserError(
        f'JAX_PLATFORMS asks for {wanted!r}, but jax found {found!r}; check '
        'the driver and which devices this process may use, or unset it.')


def exit_on_error(
    report_fn: Callable[[BaseException], int], kind: Any,
    error: BaseException | None, traceback: Any) -> None:
  """Reports an error and exits, so that the other processes end.

  A callback of `ExitStack.push`. Otherwise a failed process would wait at exit
  for the others, while they wait for it in a collective, until jax's shutdown
  timeout. `report_fn` prints an error and returns the exit status.
  """
  del kind, traceback
  if error is None:
    return
  # jax raises it as a JaxRuntimeError or a ValueError.
  if (not isinstance(error, errors.REPORTED_ERRORS)
      and _PEER_ERRORS.search(str(error))):
    error = errors.InfrastructureError(
        'Another process of the run has ended; see what it printed, then run '
        f'the same command again ({errors.one_line(error)}).')
  status = report_fn(error)
  with contextlib.suppress(OSError):
    sys.stdout.flush()
    sys.stderr.flush()
  # Gives the others time to report the error, too, and to receive a signal
  # that was sent to all: jax aborts them when process 0 exits.
  time.sleep(_GRACE_PERIOD)
  os._exit(status)


def is_first() -> bool:
  """True in the process that prints and writes files."""
  return jax.process_index() == 0


def exchange(value: Any) -> list[Any]:
  """Gathers a picklable value of every process, in the order of their ids."""
  if jax.process_count() == 1:
    return [value]
  content = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.array(content.size))
  # jax compiles a program for each size, so there are few.
  padded = np.zeros(1 << int(sizes.max()).bit_length(), np.uint8)
  padded[:content.size] = content
  return [
      pickle.loads(row[:size].tobytes())
      for row, size in zip(multihost_utils.process_allgather(padded), sizes)]


def holders(tree: Any) -> list[int]:
  """The processes whose devices hold arrays of one mesh, in order."""
  devices = jax.tree.leaves(tree)[0].sharding.device_set
  return sorted({device.process_index for device in devices})


def fetch(tree: Any) -> Any:
  """The values of replicated arrays on the host, in every process.

  A process without devices of an array receives its value from the first
  process that has some. All processes call this with the same tree, whose other
  leaves must be equal in all processes.
  """
  leaves, structure = jax.tree.flatten(tree)
  holders_of = {
      i: holders(leaf) for i, leaf in enumerate(leaves)
      if isinstance(leaf, jax.Array)}
  if all(len(found) == jax.process_count() for found in holders_of.values()):
    return jax.device_get(tree)
  fetched = {
      i: np.asarray(leaves[i]) for i, found in holders_of.items()
      if found[0] == jax.process_index()}
  fetched = collections.ChainMap(*exchange(fetched))
  return structure.unflatten(
      fetched.get(i, leaf) for i, leaf in enumerate(leaves))


def barrier() -> None:
  """Waits until every process has called it."""
  exchange(None)


def release_memory() -> None:
  """Returns freed memory of this process to the system.

  With the settings of launch/_common.sh, glibc keeps what a rollout has freed,
  although the next update needs other sizes.
  """
  with contextlib.suppress(AttributeError):  # Another C library.
    ctypes.CDLL(None).malloc_trim(0)
