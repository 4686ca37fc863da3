"""A split as another process draws it."""

import os
import subprocess
import sys


def split_hash(module: str, *config: str, hash_seed: str) -> str:
  """That of the first 20 test tasks of a builder's module."""
  program = (
      'from environments import datasets\n'
      f'from {module} import make_splits\n'
      f'tasks = make_splits(*{config!r}, {{"test": 20}})["test"]\n'
      'print(datasets.split_hash(tasks))\n')
  return subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True,
      check=True, env=os.environ | {
          'PYTHONHASHSEED': hash_seed,
          'PYTHONPATH': os.pathsep.join(sys.path)}).stdout.strip()
