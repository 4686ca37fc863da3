"""Commands and environments of the processes that tests start."""

from collections.abc import Mapping
import os
import socket
import sys
from typing import Any


def train(
    config: str, workdir: os.PathLike, changes: Mapping[str, Any]) -> list[str]:
  """A command that trains; `changes` as in {'train.num_steps': 3}."""
  return [
      sys.executable, '-m', 'atgrpo_jax.main', f'--config={config}',
      f'--workdir={workdir}',
      *(f'--config.{name}={value}' for name, value in changes.items())]


def with_cpu_devices(num: int) -> dict[str, str]:
  """Environment variables of a process with `num` CPU devices."""
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(num)}


def free_address() -> str:
  """An address at which the processes of a run can meet."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return f'localhost:{free.getsockname()[1]}'
