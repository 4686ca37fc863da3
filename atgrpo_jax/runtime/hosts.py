"""Several processes that act as one.

Every process runs the same program, holds the same groups and dispatches the
same computations in the same order; environments alone are divided among them.
The first process speaks and writes files. All share the workdir.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np


def join(
    coordinator_address: str | None, num_processes: int | None,
    process_id: int | None) -> None:
  """Waits for the other processes; None where jax finds them by itself."""
  # It would take SIGTERM to itself, and a run could not be stopped while it
  # starts.
  jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
      coordinator_address=coordinator_address, num_processes=num_processes,
      process_id=process_id)


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


def barrier() -> None:
  """Returns when every process has come here."""
  exchange(None)
