"""The training loop, to be read from top to bottom.

A step plays each of E tasks, turns the returns in their trees into advantages,
and updates every policy on the groups of its roles. On several processes, all
of them run this loop; see `distributed.hosts`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import training_step
from atgrpo_jax.algorithms import collect
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import disk
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import signals
from atgrpo_jax.io import step_clock
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rollout import records
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.viewer import report


def train(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    stop: signals.StopFlag | None = None) -> bool:
  """Trains as far as `config.train` says; False if `stop` was set."""
  with contextlib.ExitStack() as stack:
    # Without a `stop`, one that nothing sets.
    return _train(experiment, workdir, stop or signals.StopFlag(), stack)


def _train(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    stop: signals.StopFlag, stack: contextlib.ExitStack) -> bool:
  config = experiment.config

  # ---- Data -----------------------------------------------------------------
  tasks = experiment.tasks(config.dataset.train)
  validation_tasks = experiment.tasks(config.evaluation.validation)
  test_tasks = experiment.tasks(config.evaluation.test)
  if config.rollout.num_tasks > len(tasks):
    raise errors.UserError(
        f'rollout.num_tasks={config.rollout.num_tasks}, but the split '
        f'{config.dataset.train!r} has {len(tasks)} tasks.')
  if all(policy.trained == 'none' for policy in experiment.policies.values()):
    raise errors.UserError(
        "model.trained is 'none' for all policies, so there is nothing to "
        'train; train one of them, or use --mode=evaluate.')
  collect.check(experiment.environment, experiment.rollout)

  # ---- Workdir --------------------------------------------------------------
  resumed = workdir_lib.check_config(workdir, config.to_dict())
  workdir_lib.check_checkpoints(workdir, config.train.checkpoint_every)
  lock = stack.enter_context(
      contextlib.closing(workdir_lib.Lock(workdir)))
  workdir_lib.print_config(config.to_dict())

  # ---- State ----------------------------------------------------------------
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  states, meta = experiment.restore(checkpoints, workdir)
  if meta['step']:
    before = evaluate.read(workdir, 'before')
    evaluate.check_comparable(
        before, test_tasks, temperature=config.evaluation.temperature)
  workdir_lib.write_config(workdir, config.to_dict())
  print(f'resumes after step {meta["step"]}' if meta['step'] else
        'starts afresh')
  references = training_step.references(experiment)
  disk.check_space(workdir, experiment.state_template())
  workdir_lib.make_checkpoints(workdir)
  writer = metrics_lib.MetricsWriter(
      workdir, offset=meta.get('metrics_offset', 0 if resumed else None),
      writers=config.train.writers, config=config.to_dict())

  best_success = meta['best_success']  # Of the validations that were saved.

  def is_best() -> bool:
    """Of the checkpoints that an undisturbed run has, with a validation."""
    nonlocal best_success
    found = (
        (step % config.train.checkpoint_every == 0 or share_done(step) >= 1)
        and validation['validation/step'] == step
        and validation['validation/success'] > best_success)
    if found:
      best_success = validation['validation/success']
    return found

  def save() -> None:
    is_new_best = is_best()
    disk.check_space(workdir, states)
    # Keys and the data cursor are functions of the seed and the step.
    checkpoints.save(step, states, {
        'step': step, 'completion_tokens': completion_tokens,
        'step_tokens': step_tokens, 'seed': config.seed,
        'metrics_offset': writer.offset(), 'validation': validation,
        'best_success': best_success, 'unfinished': unfinished,
        **experiment.identity()}, is_best=is_new_best)

  def make_runner(temperature: float) -> runner_lib.EpisodeRunner:
    return experiment.runner(
        experiment_lib.params_of(states), step=step, temperature=temperature,
        policy_map=experiment.policy_map, is_stopped=stop.is_set)

  # ---- Evaluation before ----------------------------------------------------
  def test(name: str) -> dict[str, Any]:
    result = evaluate.describe(experiment) | evaluate.evaluate(
        make_runner(config.evaluation.temperature), test_tasks,
        evaluate.transcripts_path(workdir, name))
    evaluate.write(workdir, name, result)
    return result

  def validate() -> dict[str, float]:
    result = evaluate.evaluate(
        make_runner(config.rollout.temperature), validation_tasks)
    values = {
        'validation/step': step,
        'validation/success': result['success'],
        'validation/return': result['mean_return']}
    if result['success']:
      values['validation/turns_to_solve'] = result['mean_turns_to_solve']
    return values

  step, completion_tokens = meta['step'], meta['completion_tokens']
  if step == 0:
    before = test('before')
    print(f'held-out success before: {100 * before["success"]:.1f} %')
    validation = validate()
  else:
    validation = meta['validation']
  step_tokens = meta['step_tokens']  # Of the last step.
  unfinished = meta.get('unfinished', '')  # What `end_step` has not ended.

  # ---- Loop -----------------------------------------------------------------
  def share_done(num_steps: int) -> float:
    max_steps = config.train.num_steps
    max_tokens = config.train.completion_tokens
    shares = [num_steps / max_steps] if max_steps else []
    if max_tokens:
      # The step that comes nearest is the last; the next one is taken to be as
      # large as this one.
      is_nearest = completion_tokens + step_tokens / 2 >= max_tokens
      shares.append(1.0 if is_nearest else completion_tokens / max_tokens)
    return max(shares)

  def end_step(values: dict[str, float]) -> None:
    """Validates where that is due, and writes the metrics of the step.

    If the validation is stopped, this is done when the run goes on.
    """
    nonlocal validation, unfinished
    unfinished = json.dumps(
        {name: float(value) for name, value in values.items()})
    if step % config.evaluation.validate_every == 0:
      with clock.part('validation'):
        validation = validate()
    unfinished = ''
    values |= validation | compiles.lap() | clock.lap()
    values |= records.worker_metrics(experiment.executor)
    values |= metrics_lib.peak_memory()
    workdir_lib.check_there(workdir)
    lock.check()
    with clock.part('log'):
      writer.write(step, values)
      progress.update(step, share_done=share_done(step), values=values)

  progress = metrics_lib.Progress(
      config.train.num_steps, num_done=step, share_done=share_done(step))
  saved_step = step
  compiles, clock = metrics_lib.CompileCounter(), step_clock.StepClock()
  stop.hold()
  if unfinished:
    with contextlib.suppress(signals.Stopped):
      end_step(json.loads(unfinished))
      if is_best():
        checkpoints.note_best(step)
  while share_done(step) < 1 and not any(hosts.exchange(stop.is_set())):
    with step_clock.profile(
        workdir / 'profile', step, config.train.profile_steps):
      try:
        trees, counters = training_step.rollout(
            experiment, states,
            training_step.draw_tasks(tasks, step, experiment), step=step,
            clock=clock, is_stopped=stop.is_set)
      except signals.Stopped:  # The same step will be played again.
        break
      step_tokens = counters.completion_tokens
      completion_tokens += step_tokens
      with clock.part('records'):
        values = records.rollout_metrics(trees, counters)
        if step % config.train.groups_every == 0 or share_done(step + 1) >= 1:
          records.write_trees(
              records.groups_path(workdir, step), trees,
              experiment.environment, with_tokens=True)
      values |= training_step.update(
          experiment, states, trees, step=step, references=references,
          clock=clock)
    step += 1
    try:
      end_step(values)
    except signals.Stopped:
      break
    if step % config.train.checkpoint_every == 0:
      with clock.part('checkpoint'):
        save()
      saved_step = step
  progress.close()

  # ---- End ------------------------------------------------------------------
  # Whether the last step is the best one is said with it, or never.
  if step > saved_step and not (unfinished and share_done(step) >= 1):
    save()
    saved_step = step
  checkpoints.close()
  writer.close()
  if any(hosts.exchange(stop.is_set())):
    name = max(hosts.exchange(stop.name))  # Perhaps another process's.
    print(f'stopped by {name} after step {saved_step}; the same command '
          'resumes')
    return False
  stop.release()
  after = test('after')
  lock.close()  # A report says whether the run goes on.
  if config.train.completion_tokens:
    share = completion_tokens / config.train.completion_tokens
    print(f'generated {completion_tokens} tokens in {step} steps, '
          f'{100 * share:.1f} % of train.completion_tokens')
  evaluate.print_comparison(before, after)
  if hosts.is_first():
    _report(workdir)
  return True


def _report(workdir: pathlib.Path) -> None:
  """Writes the report of a run, which is done even if that cannot be."""
  try:
    print(f'report: {report.write(workdir)}')
  except errors.UserError as error:
    print(f'there is no report: {error}')
