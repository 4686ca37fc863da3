"""A job of the paper's tables: one process of `atgrpo_jax.main`.

Its workdir is `OUT/<table>/<task>/<row>/seed-<n>`. `paper/experiments.py` lists
all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import fnmatch
import pathlib
from typing import Any

from atgrpo_jax import errors
from paper import records as records_lib

Key = tuple[str, str]  # (mode, path)


@dataclasses.dataclass(frozen=True)
class Job:
  """One process.

  Attributes:
    path: workdir, relative to OUT.
    config: value of --config.
    overrides: config key -> value; `{out}` stands for OUT.
    mode: value of --mode.
    result: file in the workdir that marks the job as done.
    budget_of: path of the training whose generated tokens limit this one; ''
      if the number of steps does.
    budget_ratio: fraction of these tokens that this job may generate.
    needs: keys of the jobs that it starts from or is compared with.
  """

  path: str
  config: str
  overrides: Mapping[str, Any]
  mode: str = 'train'
  result: str = 'evals/after.json'
  budget_of: str = ''
  budget_ratio: float = 1.0
  needs: tuple[Key, ...] = ()

  @property
  def key(self) -> Key:
    """(mode, path), unique among jobs."""
    return self.mode, self.path

  def is_done(self, out: pathlib.Path) -> bool:
    return (out / self.path / self.result).exists()

  def is_kept(self, records: records_lib.Records) -> bool:
    """Whether `records` contain its result, which must be an evaluation."""
    folder, name = self.result.rsplit('/', 1)
    name = name.removesuffix('.json')
    return folder == 'evals' and (self.path, name) in records.evaluations

  def arguments(self, out: pathlib.Path, max_tokens: int | str) -> list[str]:
    """Flags of `atgrpo_jax.main`; `max_tokens` applies if it has a budget."""
    overrides = dict(self.overrides)
    if self.budget_of:
      overrides |= {
          'train.num_steps': 0, 'train.completion_tokens': max_tokens}
    return [
        '--mode', self.mode, '--config', self.config,
        '--workdir', str(out / self.path), *(
            f'--config.{key}={value}'.replace('{out}', str(out))
            for key, value in overrides.items())]


def choose(jobs: Sequence[Job], patterns: Sequence[str]) -> list[Job]:
  """Jobs whose path matches a pattern; UserError if a pattern matches none."""
  paths = [job.path for job in jobs]
  for pattern in patterns or ['']:
    if not fnmatch.filter(paths, pattern):
      raise errors.UserError(
          f'--only={pattern!r} matches no job; --dry_run prints all paths.')
  return [
      job for job in jobs
      if any(fnmatch.fnmatch(job.path, pattern) for pattern in patterns)]


def with_needs(
    chosen: Sequence[Job], jobs: Sequence[Job], out: pathlib.Path,
    records: records_lib.Records) -> list[Job]:
  """The jobs to run for `chosen`: these and their unfinished needs, in order.

  A job whose result is in `records` is left out, unless the checkpoints in its
  workdir are needed.
  """
  by_key = {job.key: job for job in jobs}
  wanted = {job.key for job in chosen if not job.is_kept(records)}
  stack = [by_key[key] for key in wanted if not by_key[key].is_done(out)]
  while stack:
    job = stack.pop()
    for key in job.needs:
      other = by_key[key]
      is_kept = other.is_kept(records) and other.path != job.path
      if key not in wanted and not other.is_done(out) and not is_kept:
        wanted.add(key)
        stack.append(other)
  return [job for job in jobs if job.key in wanted]
