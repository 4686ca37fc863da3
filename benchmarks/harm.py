"""Kills and stops parts of runs, and compares the runs with undisturbed ones.

  JAX_NUM_CPU_DEVICES=2 python -m benchmarks.harm --kills 20 --stops 5

A part is the sandbox server, one of its supervisors or a worker process. Small
trainings and evaluations of Plan-Path take turns, until each harm has been done
once, at a random moment; a third of them hits evaluations. Every run must end
as if nothing had been: the same metrics, groups, parameters and evaluations,
bit for bit, but for times, memory and what `workers/` counts. Prints a line for
each run; ends with status 1 unless all are equal.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from atgrpo_jax import errors

_PARTS = ('server', 'supervisor', 'worker')
_UNLIKE = ('time/', 'memory/', 'workers/', 'compile')  # From run to run.


def command(mode: str, workdir: pathlib.Path, num_steps: int) -> list[str]:
  """Starts a small training, or an evaluation of it."""
  return [
      sys.executable, '-m', 'atgrpo_jax.main', f'--mode={mode}',
      f'--workdir={workdir}', *(f'--config{value}' for value in (
          '=configs/plan_path.py:size=nano', '.rollout.num_tasks=4',
          '.rollout.group_size=4', f'.train.num_steps={num_steps}',
          f'.train.checkpoint_every={num_steps}', '.train.groups_every=1',
          '.train.diagnose_every=0', '.evaluation.validate_every=4',
          '.evaluation.validation=validation[:16]',
          '.evaluation.test=test[:40]'))]


def harms(rng: random.Random, kills: int, stops: int) -> list[tuple[str, int]]:
  """(part, signal) in random order; each part has its share."""
  found = [
      (part, number)
      for number, count in ((signal.SIGKILL, kills), (signal.SIGSTOP, stops))
      for part, _ in zip(itertools.cycle(_PARTS), range(count))]
  rng.shuffle(found)
  return found


def parts(trainer: int) -> dict[str, list[int]]:
  """Part -> process ids, of a run that goes on."""
  found = collections.defaultdict(list)
  for pid, line in _children(trainer):
    if 'start_server.py' in line:
      if line.partition('\0')[0].endswith('bwrap'):
        (pid, _), = _children(pid)
      found['server'].append(pid)
      found['supervisor'] += [child for child, _ in _children(pid)]
    elif 'spawn_main' in line:
      found['worker'].append(pid)
  return found


def _children(parent: int) -> Iterator[tuple[int, str]]:
  """(id, command line) of each child."""
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      stat = (folder / 'stat').read_text().rpartition(')')[2].split()
      if int(stat[1]) == parent:
        yield int(folder.name), (folder / 'cmdline').read_text()
    except OSError:  # It has ended since.
      pass


def run(
    mode: str, workdir: pathlib.Path, num_steps: int,
    todo: list[tuple[str, int]], rng: random.Random,
    pause: float) -> collections.Counter:
  """Runs to the end, takes harms from `todo` meanwhile, and counts them."""
  done = collections.Counter()
  with (workdir.parent / f'{workdir.name}.{mode}').open('w') as log:
    process = subprocess.Popen(
        command(mode, workdir, num_steps), stdout=log, stderr=log)
    while process.poll() is None:
      time.sleep(rng.uniform(0.0, 2 * pause))
      found = parts(process.pid)
      if todo and all(map(found.get, _PARTS)):  # It is not just starting.
        part, number = todo[-1]
        try:
          os.kill(rng.choice(found[part]), number)
        except ProcessLookupError:  # It has ended since.
          continue
        todo.pop()
        done[f'{part} {signal.Signals(number).name}'] += 1
  if process.returncode:
    said = pathlib.Path(log.name).read_text()[-2000:]
    sys.exit(
        f'{said}\nerror: {log.name} ended with status {process.returncode}; '
        'above is the end of it.')
  return done


def results(
    workdir: pathlib.Path, newest_only: bool = False) -> dict[str, str]:
  """What must be equal, by a digest.

  Of all checkpoints, or of the newest: a run that was told to stop has saved
  others in between.
  """
  metrics = [
      {name: value for name, value in json.loads(line).items()
       if not name.startswith(_UNLIKE)}
      for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  leaves = {
      path.parent.parent.name: json.loads(path.read_text())['leaves']
      for path in sorted(workdir.glob('checkpoints/*/meta/metadata'))}
  if newest_only:
    newest = max(leaves, key=int)
    leaves = {newest: leaves[newest]}
  files = {
      folder: [
          (path.name, path.read_bytes().hex())
          for path in sorted((workdir / folder).iterdir())]
      for folder in ('groups', 'evals')}
  found = {'metrics': metrics, 'parameters': leaves} | files
  assert all(found.values())
  return {
      name: hashlib.sha256(json.dumps(value).encode()).hexdigest()
      for name, value in found.items()}


def main(argv: list[str]) -> int:
  errors.refuse_arguments(argv)
  given = flags.FLAGS
  rng = random.Random(given.seed)
  found = harms(rng, given.kills, given.stops)
  third = len(found) // 3
  todo = {'train': found[third:], 'evaluate': found[:third]}
  num_runs = num_different = 0
  with tempfile.TemporaryDirectory() as folder:
    plain = pathlib.Path(folder) / 'plain'
    for mode in ('train', 'evaluate'):
      run(mode, plain, given.steps, [], rng, given.pause)
    expected = results(plain)
    while any(todo.values()):
      for mode in [mode for mode, harms_left in todo.items() if harms_left]:
        num_runs += 1
        workdir = pathlib.Path(folder) / str(num_runs)
        if mode == 'evaluate':  # What was trained without harm.
          shutil.copytree(plain, workdir)
          (workdir / 'evals/evaluation.json').unlink()
        done = run(mode, workdir, given.steps, todo[mode], rng, given.pause)
        if mode == 'train':
          run('evaluate', workdir, given.steps, [], rng, given.pause)
        found = results(workdir)
        unlike = [name for name in found if found[name] != expected[name]]
        num_different += bool(unlike)
        harmed = ', '.join(f'{n} x {what}' for what, n in sorted(done.items()))
        print(f'{mode:9s} {harmed}: '
              f'{"differs in " + ", ".join(unlike) if unlike else "equal"}',
              flush=True)
  print(f'{num_different} of {num_runs} runs differ')
  return int(num_different > 0)


if __name__ == '__main__':
  flags.DEFINE_integer('kills', 20, 'Parts that are killed.', lower_bound=0)
  flags.DEFINE_integer('stops', 5, 'Parts that are stopped.', lower_bound=0)
  flags.DEFINE_integer('steps', 8, 'Of each training.', lower_bound=1)
  flags.DEFINE_float('pause', 2.0, 'Mean seconds between two.')
  flags.DEFINE_integer('seed', 0, 'Of what is harmed, and when.')
  app.run(main)
