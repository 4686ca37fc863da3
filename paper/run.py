"""Runs the jobs of the paper's tables; see `launch/paper.sh --help`.

  python -m paper.run --only 'main/*' --dry_run

Workdirs are in `OUT/<scale>`. Finished jobs are skipped and stopped ones
resume. At the end `paper.tables` makes the tables.

With --keep, results in these records are not computed again (unless another job
starts from their checkpoints), and finished runs are added to the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
import os
import pathlib
import queue
import shlex
import signal
import subprocess
import sys
import threading

from absl import app
from absl import flags

from atgrpo_jax import errors
from atgrpo_jax.io import metrics
from paper import experiments
from paper import jobs as jobs_lib
from paper import records as records_lib

# The policy of each role fits as well: docs/hardware.md.
_HARDWARE = '16 TPU v6e chips (4x4), or with 1.7b also v5e'


def run_jobs(
    jobs: Sequence[jobs_lib.Job], out: pathlib.Path, num_parallel: int,
    records: records_lib.Records) -> int:
  """Runs unfinished jobs in a pool of `num_parallel` processes.

  The cores are divided among the processes. After a failure or a signal no job
  starts; a signal also terminates the running trainers, which save.

  Returns:
    The first exit status that is not 0; else 128 + the signal; or 0.
  """
  all_cores = sorted(os.sched_getaffinity(0))
  core_sets: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
  for i in range(num_parallel):
    core_sets.put(all_cores[i::num_parallel])
  trainers: list[subprocess.Popen] = []
  signals: list[int] = []
  failed = threading.Event()

  def handle(number, frame):
    del frame
    signals.append(number)
    for trainer in trainers:
      trainer.terminate()

  def run(number: int, job: jobs_lib.Job, needs: list[futures.Future]) -> int:
    futures.wait(needs)
    if failed.is_set() or signals:
      return 0
    line = [
        '-m', 'atgrpo_jax.main',
        *job.arguments(out, _max_tokens(job, out, records))]
    print(f'[{number}/{len(jobs)}] python {shlex.join(line)}', flush=True)
    log_path = out / 'logs' / f'{job.path}.{job.mode}'
    cores = core_sets.get()
    trainer = _start(line, log_path, cores)
    trainers.append(trainer)
    if signals:  # Received while the trainer started.
      trainer.terminate()
    status = trainer.wait()
    core_sets.put(cores)
    if status:
      failed.set()
      print(f'error: the job ended with status {status}; see {log_path}. The '
            'same command continues from here.', file=sys.stderr)
    return status

  # A job waits in the pool for its needs, so jobs without needs come first.
  depths: dict[jobs_lib.Key, int] = {}
  for job in jobs:
    depths[job.key] = 1 + max(
        (depths.get(key, -1) for key in job.needs), default=-1)
  started: dict[jobs_lib.Key, futures.Future] = {}
  handled = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it.
    handled.append(signal.SIGHUP)
  before = {number: signal.signal(number, handle) for number in handled}
  try:
    with futures.ThreadPoolExecutor(num_parallel) as pool:
      for number, job in sorted(
          enumerate(jobs, 1), key=lambda item: depths[item[1].key]):
        if not job.is_done(out):
          needs = [started[key] for key in job.needs if key in started]
          started[job.key] = pool.submit(run, number, job, needs)
      statuses = [future.result() for future in started.values()]
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  return next(filter(None, statuses), 128 + signals[0] if signals else 0)


def _start(
    line: Sequence[str], log_path: pathlib.Path,
    cores: Sequence[int]) -> subprocess.Popen:
  """Starts Python on these cores."""
  # Two devices on one core would slow each other down.
  env = {'JAX_NUM_CPU_DEVICES': '1'} if len(cores) == 1 else {}
  log_path.parent.mkdir(parents=True, exist_ok=True)
  with log_path.open('a') as log:
    # In a new session Ctrl-C reaches the trainer only through `handle`.
    process = subprocess.Popen(
        [sys.executable, *line], stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, env=os.environ | env)
  os.sched_setaffinity(process.pid, cores)
  return process


def _max_tokens(
    job: jobs_lib.Job, out: pathlib.Path,
    records: records_lib.Records) -> int:
  """Completion tokens that a job may generate; 0 if its steps are limited."""
  if not job.budget_of:
    return 0
  metric = records_lib.LEDGER['generated tokens']
  if (job.budget_of, 'after') in records.evaluations:
    generated = records.steps.loc[[job.budget_of], metric].sum()
  else:
    generated = sum(step[metric] for step in metrics.read(out / job.budget_of))
  return int(job.budget_ratio * int(generated))


def print_jobs(
    jobs: Sequence[jobs_lib.Job], out: pathlib.Path, scale: str) -> None:
  """Prints the commands instead of running them."""
  if scale != 'nano':
    print(f'Each of these {len(jobs)} jobs needs {_HARDWARE}; docs/hardware.md '
          'says how to start one.')
  for job in jobs:
    ratio = '' if job.budget_ratio == 1 else f'{job.budget_ratio:.2g} x the '
    line = shlex.join([
        'python', '-m', 'atgrpo_jax.main',
        *job.arguments(out, f'<{ratio}tokens of {job.budget_of}>')])
    print(line + ('  # done' if job.is_done(out) else ''))


def main(argv: list[str]) -> int:
  given = flags.FLAGS
  out = pathlib.Path(given.out) / given.scale
  try:
    errors.refuse_arguments(argv)
    jobs = experiments.make_jobs(given.scale, given.seeds, given.sandbox)
    chosen = jobs_lib.choose(jobs, given.only)
    if given.keep and given.scale != 'nano':
      raise errors.UserError(
          f'--keep={given.keep} with --scale={given.scale}: only jobs of nano '
          'are run and kept. Omit --keep.')
    records = (
        records_lib.read(pathlib.Path(given.keep)) if given.keep
        else records_lib.Records())
    jobs = jobs_lib.with_needs(chosen, jobs, out, records)
    if given.dry_run or given.scale != 'nano':
      print_jobs(jobs, out, given.scale)
      return 0
    num_cores = len(os.sched_getaffinity(0))
    if given.jobs > num_cores:
      raise errors.UserError(
          f'--jobs={given.jobs}: expected at most {num_cores}, the number of '
          'cores.')
    keep = ['--keep', given.keep] if given.keep else []
    return run_jobs(jobs, out, given.jobs, records) or subprocess.call(
        [sys.executable, '-m', 'paper.tables', '--out', str(out), *keep])
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
  flags.DEFINE_string('out', 'runs/paper', 'Folder of all workdirs.')
  flags.DEFINE_enum(
      'scale', 'nano', ['nano', '1.7b', '8b'],
      'Model size. Commands of 1.7b and 8b are printed, not run.')
  flags.DEFINE_integer('seeds', 3, 'Seeds per job.', lower_bound=1)
  flags.DEFINE_list(
      'only', ['*'], 'Patterns of paths, such as "main/sokoban/*" or '
      '"roles/*". Jobs that these need run as well.')
  flags.DEFINE_integer(
      'jobs', 1, 'Jobs at a time; they divide the cores.', lower_bound=1)
  flags.DEFINE_string(
      'keep', '', 'Folder of records. Their results are not computed again, '
      'and finished runs are added.')
  flags.DEFINE_enum(
      'sandbox', 'auto', ['auto', 'bwrap', 'kernel', 'unsafe_rlimit'],
      'Sandbox level of all jobs. Rows of different levels are not compared.')
  flags.DEFINE_bool('dry_run', False, 'Print the commands and run none.')
  app.run(main)
