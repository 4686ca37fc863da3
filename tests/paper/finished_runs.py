"""Records of finished runs with chosen results."""

from collections.abc import Sequence
import functools
import json
import pathlib

import pandas as pd

from atgrpo_jax import evaluate
from paper import records

NUM_TASKS = 50


def run(
    workdir: str, *, turns_to_solve: float = 1.5, split_hash: str = 'abc',
    num_steps: int = 3, budget: int = 0, sandbox: str = 'kernel',
    clusters: Sequence[int] = range(NUM_TASKS), **num_solved: int,
) -> records.Records:
  """A run with an evaluation `name=num_solved`; trained if one is `after`."""
  evaluations = {
      (workdir, name): {
          'num_tasks': NUM_TASKS, 'success': num / NUM_TASKS,
          'successes': '1' * num + '0' * (NUM_TASKS - num),
          'clusters': list(clusters), 'mean_turns': 2.5,
          'mean_turns_to_solve': turns_to_solve if num else None,
          'budget': {'completion_tokens': 1200, 'program_runs': 3},
          'split_hash': split_hash, 'sandbox': sandbox,
          'step': num_steps, 'token_budget': budget}
      for name, num in num_solved.items()}
  if 'after' not in num_solved:
    return records.Records(evaluations)
  steps = pd.DataFrame([{
      'workdir': workdir, 'step': float(step),
      'validation/success': step / num_steps,
      'validation/turns_to_solve': 1.5, 'rollout/success': 0.5,
      'time/step': 40.0, 'memory/host_peak_gib': 1.0 + step / 10,
      'budget/completion_tokens': 400_000.0, 'budget/prompt_tokens': 1_000.0,
      'budget/model_calls': 7.0, 'budget/program_runs': 0.0,
      'budget/environment_steps': 30.0,
      'shared/num_updates': float(step),
  } for step in range(1, num_steps + 1)])
  return records.Records(evaluations, steps.set_index('workdir'))


def merge(*runs: records.Records) -> records.Records:
  """All runs; a later one replaces an earlier one of the same workdir."""
  return functools.reduce(records.Records.updated, runs, records.Records())


def seeds(row: str, *num_solved: int, **given) -> records.Records:
  """A trained run of a row for each number of solved tasks."""
  return merge(*(
      run(f'{row}/seed-{seed}', after=num, turns_to_solve=1.0 + seed, **given)
      for seed, num in enumerate(num_solved)))


def some() -> records.Records:
  """Two systems with two seeds, and single runs of other tables."""
  return merge(
      run('main/plan_path/at_grpo/seed-0', before=5, after=48,
          turns_to_solve=1.0),
      run('main/plan_path/at_grpo/seed-1', before=5, after=46,
          turns_to_solve=2.0),
      seeds('main/plan_path/mas_grpo', 10, 14),
      seeds('main/plan_path/at_grpo_per_role', 49),
      run('roles/plan_path/swapped/seed-0', evaluation=3),
      seeds('reward/plan_path/outcome', 0),
      seeds('agents/plan_path/16', 40), seeds('agents/plan_path/3', 40))


def write(out: pathlib.Path, runs: records.Records) -> None:
  """Writes the workdirs of runs, with the files that `records` reads."""
  for (path, name), evaluation in runs.evaluations.items():
    workdir = out / path
    workdir.mkdir(parents=True, exist_ok=True)
    evaluation = dict(evaluation)
    (workdir / 'config.json').write_text(json.dumps({'config': {'train': {
        'completion_tokens': evaluation.pop('token_budget')}}}))
    evaluate.write(workdir, name, evaluation)
  for path, steps in runs.steps.groupby(level='workdir'):
    (out / path / 'metrics.jsonl').write_text(''.join(
        json.dumps(step.dropna().to_dict() | {'time/update': 1.0}) + '\n'
        for _, step in steps.iterrows()))
