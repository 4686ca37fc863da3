"""Several processes that act as one.

Every process runs the same program, holds the same groups and dispatches the
same computations in the same order; environments alone are divided among them.
The first process speaks and writes files. All share the workdir.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax._src import clusters
from jax.experimental import multihost_utils
import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.distributed import peers as peers_lib

_PATIENCE_SECONDS = 300  # Until the first machine of a TPU pod has a name.


def detect() -> dict[str, str | int]:
  """Where this process stands in a TPU pod or a job of SLURM or Open MPI.

  The arguments of `peers.Peers`. Raises UserError if it is in none of them.
  """
  address, num_processes, process_id, _ = (
      clusters.ClusterEnv.auto_detect_unset_distributed_params(
          coordinator_address=None, num_processes=None, process_id=None,
          local_device_ids=None, cluster_detection_method=None,
          initialization_timeout=_PATIENCE_SECONDS))
  if address is None:
    raise errors.UserError(
        '--distributed: this is no TPU pod, and no job of SLURM or Open MPI; '
        'give --coordinator_address, --num_processes and --process_id.')
  return {
      'coordinator_address': address, 'num_processes': num_processes,
      'process_id': process_id}


def join(peers: peers_lib.Peers) -> None:
  """Makes the processes one for jax."""
  # It would take SIGTERM to itself, and a run could not be stopped while it
  # starts.
  jax.config.update('jax_enable_preemption_service', False)
  address = peers.jax_address()
  jax.distributed.initialize(
      coordinator_address=address, coordinator_bind_address=address,
      num_processes=peers.num_processes, process_id=peers.process_id)
  jax.devices()  # Loads libraries, for which no other thread may run.
  peers.expect_beats()


def is_first() -> bool:
  """Whether this process speaks and writes files."""
  return jax.process_index() == 0


def exchange(value: Any) -> list[Any]:
  """The picklable values that the processes pass in, in their order."""
  if jax.process_count() == 1:
    return [value]
  content = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.array(content.size))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[:content.size] = content
  return [
      pickle.loads(row[:size].tobytes())
      for row, size in zip(multihost_utils.process_allgather(padded), sizes)]


def any_process(flag: bool) -> bool:
  """Whether it holds in one of the processes, which all ask at once."""
  if jax.process_count() == 1:
    return flag
  return bool(multihost_utils.process_allgather(np.array(flag)).any())


def barrier() -> None:
  """Returns when every process has come here."""
  exchange(None)
