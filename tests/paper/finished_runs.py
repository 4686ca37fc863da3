"""Workdirs as finished cells leave them, with results that a test chooses."""

from collections.abc import Mapping, Sequence
import itertools
import json
import pathlib

import numpy as np

from atgrpo_jax import evaluate

NUM_TASKS = 50


def solved(num: int) -> np.ndarray:
  """[NUM_TASKS] bool, the first `num` of them True."""
  return np.arange(NUM_TASKS) < num


def write(
    row: pathlib.Path, seed: int, num_solved: int, *, name: str = 'after',
    split_hash: str = 'abc', steps: int = 3,
    updates: Mapping[str, int] | None = None, budget: int = 0,
    clusters: Sequence[int] = range(NUM_TASKS)) -> None:
  """One seed of a row: an evaluation, and the training if it is the last.

  Each step generates 400 000 tokens in 40 seconds.
  """
  workdir = row / f'seed-{seed}'
  successes = solved(num_solved)
  evaluate.write(workdir, name, {
      'num_tasks': NUM_TASKS,
      'successes': ''.join('01'[int(x)] for x in successes),
      'clusters': list(clusters),
      'success': float(np.mean(successes)), 'mean_turns': 2.5,
      'mean_turns_to_solve': 1.0 + seed if num_solved else None,
      'budget': {'completion_tokens': 1200}, 'split_hash': split_hash})
  if name == 'after':
    (workdir / 'config.json').write_text(json.dumps(
        {'config': {'train': {'completion_tokens': budget}}}))
    write_steps(workdir, [{
        'step': step, 'validation/success': step / steps,
        'validation/turns_to_solve': 1.5,
        'rollout/success': 0.5, 'time/step': 40.0,
        'memory/host_peak_gib': 1.0 + step / 10,
        'budget/completion_tokens': 400_000.0,
        'budget/prompt_tokens': 1_000.0, 'budget/model_calls': 7.0,
        'budget/program_runs': 0.0, 'budget/environment_steps': 30.0,
        **{f'{policy}/num_updates': step * num / steps
           for policy, num in (updates or {'shared': steps}).items()},
    } for step in range(1, steps + 1)])


def write_steps(
    workdir: pathlib.Path, steps: Sequence[Mapping[str, float]]) -> None:
  """The metrics of a run."""
  (workdir / 'metrics.jsonl').write_text(
      ''.join(json.dumps(step) + '\n' for step in steps))


def write_all(out: pathlib.Path) -> None:
  """Two systems on two seeds, and a row or two of other tables."""
  main = out / 'main/plan_path'
  for seed, (good, poor) in enumerate([(48, 10), (46, 14)]):
    write(main / 'at_grpo', seed, good)
    write(main / 'at_grpo', seed, 5, name='before')
    write(main / 'mas_grpo', seed, poor)
  write(main / 'at_grpo_per_role', 0, 49)
  write(out / 'roles/plan_path/swapped', 0, 3, name='evaluation')
  write(out / 'reward/plan_path/outcome', 0, 0)
  for size in ('2', '16'):
    write(out / 'group_size/plan_path' / size, 0, 40)
  write(out / 'unchanged/plan_path/at_grpo', 0, 42)
  for tool, planner in itertools.product(('tool-0', 'planner-0'), repeat=2):
    evaluate.write(
        out / f'cross_play/plan_path/{tool}/{planner}', 'evaluation',
        {'success': 0.25 + 0.5 * (tool == 'tool-0'), 'successes': '',
         'clusters': [], 'num_tasks': 0})
