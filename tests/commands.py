"""Commands and environments of the processes that tests start."""

from collections.abc import Callable, Mapping
import os
import socket
import subprocess
import sys
from typing import Any

from tests import checkout


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


def start_together(
    make_command: Callable[[str, int], list[str]], num_processes: int,
    num_devices: int, **env: str) -> list[subprocess.Popen]:
  """Starts the processes of a run, which divide the CPU devices.

  `make_command` takes the address at which they meet, and an index.
  """
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  return [
      subprocess.Popen(
          make_command(address, index), cwd=checkout.ROOT, text=True,
          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
          env=with_cpu_devices(num_devices // num_processes) | env)
      for index in range(num_processes)]
