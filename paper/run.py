"""Runs the jobs of the paper's tables; see `launch/paper.sh --help`.

  python -m paper.run --only 'main/*' --dry_run

Workdirs are in `OUT/<scale>`. Finished jobs are skipped and stopped ones
resume. At the end `paper.tables` makes the tables.

With --keep, results in these records are not computed again (unless another job
starts from their checkpoints), and finished runs are added to the records.

With --launch, each job is started by a command such as one of launch/*.sh. If
the command returns before the job has its result, this program waits for it.
"""

import asyncio
from collections.abc import Mapping, Sequence
import fnmatch
import os
import pathlib
import shlex
import signal
import subprocess
import sys

from absl import app
from absl import flags

from atgrpo_jax import errors
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics
from paper import experiments
from paper import records as records_lib

_TRAIN = ('python -m atgrpo_jax.main --mode {mode} --config {config} '
          '--workdir {workdir} {overrides}')
# Records in this repository.
_RESULTS = pathlib.Path(__file__).parent / 'results'
# The policy of each role fits as well: docs/hardware.md.
_HARDWARE = '16 TPU v6e chips (4x4), or with 1.7b also v5e'
_LAUNCH_LOGS = pathlib.Path('runs/paper/logs')  # If workdirs are in a bucket.
_POLL_SECONDS = 30


def choose(
    jobs: Sequence[experiments.Job],
    patterns: Sequence[str]) -> list[experiments.Job]:
  """Jobs whose path matches a pattern; UserError if a pattern matches none."""
  paths = [job.path for job in jobs]
  for pattern in patterns or ['']:
    if not fnmatch.filter(paths, pattern):
      raise errors.UserError(
          f'--only={pattern!r} matches no job; a dry run prints all paths.')
  return [
      job for job in jobs
      if any(fnmatch.fnmatch(job.path, pattern) for pattern in patterns)]


def with_needs(
    chosen: Sequence[experiments.Job], jobs: Sequence[experiments.Job],
    out: pathlib.Path,
    records: records_lib.Records) -> list[experiments.Job]:
  """`chosen` and their unfinished needs, in the order of `jobs`.

  A job whose result is in `records` is left out, unless the checkpoints in its
  workdir are needed.
  """
  def is_kept(job):
    return job.path in records.curves or (
        job.path, pathlib.PurePath(job.result).stem) in records.evaluations

  by_key = {job.key: job for job in jobs}
  # A base model is made only for other jobs.
  wanted = {
      job.key for job in chosen if not is_kept(job) and job.mode != 'pretrain'}
  stack = [by_key[key] for key in wanted if not by_key[key].is_done(out)]
  while stack:
    job = stack.pop()
    for key in job.needs:
      other = by_key[key]
      is_unneeded = other.is_done(out) or (
          is_kept(other) and other.path != job.path)
      if key not in wanted and not is_unneeded:
        wanted.add(key)
        stack.append(other)
  return [job for job in jobs if job.key in wanted]


async def run_jobs(
    jobs: Sequence[experiments.Job], out: pathlib.Path, num_parallel: int,
    records: records_lib.Records, launch: str = '') -> int:
  """Runs unfinished jobs, `num_parallel` processes at a time.

  `launch` is a command with `{mode}`, `{config}`, `{workdir}` and `{overrides}`
  as words; '' starts trainers on this machine. The cores are divided among the
  processes. After a failure or a signal no job starts; a signal also terminates
  the running trainers, which save.

  Returns:
    The first exit status that is not 0; else 128 + the signal; or 0.
  """
  all_cores = sorted(os.sched_getaffinity(0))
  core_sets: asyncio.Queue[list[int]] = asyncio.Queue()
  for i in range(num_parallel):
    core_sets.put_nowait(all_cores[i::num_parallel])
  trainers: list[asyncio.subprocess.Process] = []
  signals: list[int] = []
  statuses: list[int] = []  # Exit statuses of failed jobs.

  def stop(number: int) -> None:
    signals.append(number)
    for trainer in trainers:
      if trainer.returncode is None:
        trainer.terminate()

  async def run(number: int, job: experiments.Job) -> None:
    await asyncio.gather(*(tasks[key] for key in job.needs if key in tasks))
    cores = await core_sets.get()
    if not signals and not statuses:
      command = _command(job, out, _max_tokens(job, out, records), launch)
      print(f'[{number}/{len(jobs)}] {shlex.join(command)}', flush=True)
      logs = _LAUNCH_LOGS if files.is_remote(out) else out / 'logs'
      log_path = logs / f'{job.path}.{job.mode}'
      trainer = await _start(command, log_path, cores)
      trainers.append(trainer)
      if signals:  # Received while the trainer started.
        trainer.terminate()
      if status := await trainer.wait():
        statuses.append(status)
        print(f'error: the job ended with status {status}; see {log_path}. The '
              'same command continues from here.', file=sys.stderr)
      elif not job.is_done(out):
        print(f'Waits for {out / job.path / job.result}. If the job has '
              f'failed, end this command and run it again; see {log_path}.',
              flush=True)
        while not (signals or job.is_done(out)):
          await asyncio.sleep(_POLL_SECONDS)
    core_sets.put_nowait(cores)

  loop = asyncio.get_running_loop()
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP.
      loop.add_signal_handler(number, stop, number)
  tasks: dict[experiments.Key, asyncio.Task] = {}
  for number, job in enumerate(jobs, 1):
    if not job.is_done(out):
      tasks[job.key] = asyncio.create_task(run(number, job))
  await asyncio.gather(*tasks.values())
  return next(iter(statuses), 128 + signals[0] if signals else 0)


async def _start(
    command: Sequence[str], log_path: pathlib.Path,
    cores: Sequence[int]) -> asyncio.subprocess.Process:
  """Starts a command on these cores; `python` is this interpreter."""
  # Two devices on one core would slow each other down.
  env = {'JAX_NUM_CPU_DEVICES': '1'} if len(cores) == 1 else {}
  log_path.parent.mkdir(parents=True, exist_ok=True)
  with log_path.open('a') as log:
    # In a new session Ctrl-C reaches the trainer only through `stop`.
    process = await asyncio.create_subprocess_exec(
        sys.executable if command[0] == 'python' else command[0], *command[1:],
        stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, env=os.environ | env)
  os.sched_setaffinity(process.pid, cores)
  return process


def _command(
    job: experiments.Job, out: pathlib.Path, max_tokens: int | str,
    launch: str = '') -> list[str]:
  """The command of a job; `max_tokens` applies if it has a budget."""
  if job.mode == 'pretrain':
    return ['python', '-m', job.config, '--out', str(out / job.path), *(
        f'--{key}={value}' for key, value in job.overrides.items())]
  overrides = dict(job.overrides)
  if job.budget_of:
    overrides |= {'train.num_steps': 0, 'train.completion_tokens': max_tokens}
  values = {
      '{mode}': [job.mode], '{config}': [job.config],
      '{workdir}': [str(out / job.path)], '{overrides}': [
          f'--config.{key}={value}'.replace('{out}', str(out))
          for key, value in overrides.items()]}
  return [
      word for part in shlex.split(launch or _TRAIN)
      for word in values.get(part, [part])]


def _max_tokens(
    job: experiments.Job, out: pathlib.Path,
    records: records_lib.Records) -> int:
  """Completion tokens that a job may generate; 0 if its steps are limited."""
  if not job.budget_of:
    return 0
  metric = records_lib.COSTS['generated tokens']
  if (job.budget_of, 'after') in records.evaluations:
    generated = records.steps.loc[[job.budget_of], metric].sum()
  else:
    generated = sum(step[metric] for step in metrics.read(out / job.budget_of))
  return int(job.budget_ratio * int(generated))


def print_jobs(
    jobs: Sequence[experiments.Job], out: pathlib.Path, scale: str,
    minutes: Mapping[str, float], launch: str = '') -> None:
  """Prints the commands; `minutes` of trainings follow as comments.

  A bucket is not read.
  """
  if scale not in experiments.LOCAL:
    print(f'Each of these {len(jobs)} jobs needs {_HARDWARE}; docs/hardware.md '
          'says how to start one.')
  num_known, total = 0, 0.0
  for job in jobs:
    ratio = '' if job.budget_ratio == 1 else f'{job.budget_ratio:.2g} x the '
    line = shlex.join(_command(
        job, out, f'<{ratio}tokens of {job.budget_of}>', launch))
    note = ''
    if job.is_done(None if files.is_remote(out) else out):
      note = '  # done'
    elif job.mode == 'train' and job.path in minutes:
      known = minutes[job.path]
      note = f'  # {known:.1f} min' if known < 60 else f'  # {known / 60:.1f} h'
      num_known, total = num_known + 1, total + known
    print(line + note)
  if num_known:
    print(f'# The training steps of {num_known} of these {len(jobs)} jobs took '
          f'{total / 60:.1f} hours in paper/results/{scale}.')


def main(argv: list[str]) -> int:
  given = flags.FLAGS
  try:
    errors.refuse_arguments(argv)
    out = files.as_path(given.out, '--out') / given.scale
    is_local = given.scale in experiments.LOCAL
    runs = not given.dry_run and (is_local or bool(given.launch))
    if given.launch and not {'{mode}', '{config}', '{workdir}', '{overrides}'
                             } <= set(shlex.split(given.launch)):
      raise errors.UserError(
          f'--launch={given.launch!r}: expected a command with the words '
          '{mode}, {config}, {workdir} and {overrides}.')
    if files.is_remote(out) and is_local:
      raise errors.UserError(
          f'--out={given.out} is in a bucket, but jobs of {given.scale} run on '
          'this machine, and their tables read local files; give a folder.')
    jobs = experiments.make_jobs(given.scale, given.seeds, given.sandbox)
    chosen = choose(jobs, given.only)
    if files.is_remote(out) and given.launch and not given.keep:
      raise errors.UserError(
          f'--out={given.out} is in a bucket, and the tables are made here; '
          'give their folder as --keep.')
    records = (
        records_lib.read(pathlib.Path(given.keep))
        if given.keep and pathlib.Path(given.keep).exists()
        else records_lib.Records())
    jobs = with_needs(
        chosen, jobs, out if runs or not files.is_remote(out) else None,
        records)
    if not runs:
      minutes = records_lib.read(
          _RESULTS / given.scale).minutes() if is_local else {}
      print_jobs(jobs, out, given.scale, minutes, given.launch)
      return 0
    num_cores = len(os.sched_getaffinity(0))
    if given.jobs > num_cores:
      raise errors.UserError(
          f'--jobs={given.jobs}: expected at most {num_cores}, the number of '
          'cores.')
    keep = ['--keep', given.keep] if given.keep else []
    return asyncio.run(run_jobs(
        jobs, out, given.jobs, records, given.launch)) or (
        subprocess.call(
            [sys.executable, '-m', 'paper.tables', '--out', str(out), *keep]))
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
  flags.DEFINE_string('out', 'runs/paper', 'Folder of all workdirs.')
  flags.DEFINE_enum(
      'scale', 'nano', [*experiments.LOCAL, 'coder-3b', '1.7b', '8b'],
      'Model size. Commands of coder-3b, 1.7b and 8b are printed, not run.')
  flags.DEFINE_integer('seeds', 5, 'Seeds per job.', lower_bound=1)
  flags.DEFINE_list('only', ['*'], 'Patterns of paths.')
  flags.DEFINE_integer('jobs', 1, 'Jobs at a time.', lower_bound=1)
  flags.DEFINE_string('keep', '', 'Folder of records.')
  flags.DEFINE_enum(
      'sandbox', 'auto', ['auto', 'bwrap', 'kernel', 'unsafe_rlimit'],
      'Sandbox level of all jobs.')
  flags.DEFINE_string('launch', '', 'Command that starts a job.')
  flags.DEFINE_bool('dry_run', False, 'Print the commands and run none.')
  app.run(main)
