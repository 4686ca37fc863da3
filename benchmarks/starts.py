"""Starts ten configs again and again, and counts those that do not end well.

  JAX_NUM_CPU_DEVICES=2 JAX_COMPILATION_CACHE_DIR=DIR \
      JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
      python -m benchmarks.starts --times 10

One start proves nothing where threads race. Each start trains two steps of half
the usual tasks on every game, with one policy, one for each role and one
adapter for each role, and measures the gradients of the roles in each step; the
tenth config is the default of Plan-Path. A start that takes longer than
`--seconds` hangs. With the cache in DIR only the first start of a config
compiles.
"""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from atgrpo_jax import errors

_GAMES = ('plan_path', 'sokoban', 'sudoku')
_POLICIES = ('shared', 'per_role', 'lora_per_role')


def configs() -> dict[str, list[str]]:
  """Name -> flags of the trainer."""
  short = [
      '--config.train.num_steps=2', '--config.rollout.num_tasks=8',
      '--config.evaluation.test=test[:2]',
      '--config.evaluation.validation=validation[:2]']
  found = {
      f'{game}, {policies}, diagnosis': [
          f'--config=configs/{game}.py:size=nano',
          f'--config.policies={policies}', '--config.train.diagnose_every=1',
          *short]
      for game, policies in itertools.product(_GAMES, _POLICIES)}
  return {'plan_path': ['--config=configs/plan_path.py:size=nano', *short]
         } | found


def start(arguments: list[str], seed: int, seconds: float) -> str:
  """'' if a run ended well, else how it ended and what it said last."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    try:
      process = subprocess.run(
          [sys.executable, '-m', 'atgrpo_jax.main', *arguments,
           f'--config.seed={seed}', f'--workdir={workdir}'],
          text=True, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
      return f'no end after {seconds:.0f} s'
    if process.returncode:
      said = [
          line for line in process.stderr.splitlines() if 'rendezvous' in line
      ] or process.stderr.splitlines()[-1:]
      return f'status {process.returncode}: {said[0][:200] if said else ""}'
    return ''


def main(argv: list[str]) -> int:
  errors.refuse_arguments(argv)
  failures, begin = 0, time.monotonic()
  for seed in range(flags.FLAGS.times):
    for name, arguments in configs().items():
      failure = start(arguments, seed, flags.FLAGS.seconds)
      failures += bool(failure)
      print(f'seed {seed}  {name:40s} {failure or "ok"}', flush=True)
  count = flags.FLAGS.times * len(configs())
  print(f'{failures} of {count} starts did not end well, in '
        f'{(time.monotonic() - begin) / 60:.0f} minutes')
  return int(failures > 0)


if __name__ == '__main__':
  flags.DEFINE_integer(
      'times', 10, 'Starts of each config.', lower_bound=1)
  flags.DEFINE_float(
      'seconds', 600.0, 'Longest time of one start.', lower_bound=1.0)
  app.run(main)
