"""The training loop, to be read from top to bottom.

A step plays each of E tasks and collects their groups, turns rewards into
advantages, and updates every policy on the groups of its roles.
On several processes, all of them run this loop; see `hosts`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import time
from typing import Any

from absl import logging
import jax
import numpy as np

from atgrpo_jax import checkpoints as checkpoints_lib
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import hosts
from atgrpo_jax import metrics as metrics_lib
from atgrpo_jax import model
from atgrpo_jax import sharding
from atgrpo_jax import signals
from atgrpo_jax import types
from atgrpo_jax.rl import advantages as advantages_lib
from atgrpo_jax.rl import diagnostics
from atgrpo_jax.rl import losses
from atgrpo_jax.rl import train_state
from atgrpo_jax.rl import train_step
from atgrpo_jax.rollout import at_grpo
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import interaction as interaction_lib
from environments import base

# A run whose gradients are not finite this many times in a row is stopped.
MAX_NONFINITE = 5


def train(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path) -> bool:
  """Trains as far as `config.train` says; False if a signal stopped it."""
  config = experiment.config
  compiles = metrics_lib.CompileCounter()

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
  limits = config.train.num_steps, config.train.completion_tokens
  if min(limits) < 0 or not any(limits):
    raise errors.UserError(
        f'train.num_steps={limits[0]} and train.completion_tokens={limits[1]} '
        'would never end; one of them must be above 0, and none below.')

  # ---- Workdir --------------------------------------------------------------
  resumed = experiment_lib.check_workdir(workdir, config)
  lock = experiment_lib.lock(workdir)
  experiment_lib.write_config(workdir, config)
  experiment_lib.print_config(config)

  # ---- State ----------------------------------------------------------------
  bases = {id(base): base for base in experiment.bases.values()}
  digests = {key: checkpoints_lib.digest(base) for key, base in bases.items()}
  base_digests = {
      name: digests[id(base)] for name, base in experiment.bases.items()}
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  restored = checkpoints.restore(experiment.state_template())
  if restored is None:
    states = experiment.initial_states()
    meta = {'step': 0, 'completion_tokens': 0, 'step_tokens': 0}
    print('starts afresh')
  else:
    states, meta = restored.state, restored.meta
    if meta['config_hash'] != experiment_lib.config_hash(config):
      raise errors.UserError(
          f'The checkpoint of step {restored.step} in {workdir} was saved '
          'with another config than config.json says; choose another '
          '--workdir.')
    for name, there in meta['bases'].items():
      if there != base_digests[name]:
        raise errors.UserError(
            f'The checkpoint of step {restored.step} in {workdir} belongs to '
            f'another frozen model of policy {name!r}: '
            f'{experiment.policies[name].base.folder} now holds other weights. '
            'Put the former ones back, or choose another --workdir.')
    print(f'resumes after step {meta["step"]}')
  # The model that training started from, or that an adapter is over, where a
  # KL penalty or the diagnosis needs it.
  references = {}
  if config.loss.kl_estimator != 'none' or config.train.diagnose_every:
    references = {
        name: (
            experiment.bases.get(name)
            or policy.load_params(policy.learner.dtype))
        for name, policy in experiment.policies.items() if name in states}
  writer = metrics_lib.MetricsWriter(
      workdir, offset=meta.get('metrics_offset', 0 if resumed else None))

  def save(step: int) -> None:
    # Keys and the data cursor are functions of the seed and the step.
    checkpoints.save(step, states, {
        'step': step, 'completion_tokens': completion_tokens,
        'step_tokens': step_tokens, 'seed': config.seed,
        'config_hash': experiment_lib.config_hash(config),
        'bases': base_digests, 'metrics_offset': writer.offset(),
        'validation': validation})

  def interaction(temperature: float) -> interaction_lib.Interaction:
    return experiment.interaction(
        experiment_lib.params_of(states), temperature=temperature,
        policy_map=experiment.policy_map)

  # ---- Evaluation before ----------------------------------------------------
  def test(name: str, step: int) -> dict[str, Any]:
    result = evaluate.describe(experiment) | evaluate.evaluate(
        interaction(config.evaluation.temperature), test_tasks, step=step)
    evaluate.write(workdir, name, result)
    return result

  def validate(step: int) -> dict[str, float]:
    result = evaluate.evaluate(
        interaction(config.rollout.temperature), validation_tasks, step=step)
    values = {'k1/success': result['success']}
    if result['success']:
      values['k1/turns_to_solve'] = result['mean_turns_to_solve']
    return values

  step, completion_tokens = meta['step'], meta['completion_tokens']
  if step == 0:
    before = test('before', 0)
    print(f'held-out success before: {100 * before["success"]:.1f} %')
    validation = validate(0)
  else:
    before = evaluate.read(workdir, 'before')
    evaluate.check_comparable(
        before, test_tasks, temperature=config.evaluation.temperature)
    validation = meta['validation']
  step_tokens = meta['step_tokens']  # Of the last step.

  # ---- Loop -----------------------------------------------------------------
  def share_done() -> float:
    max_steps, max_tokens = limits
    shares = [step / max_steps] if max_steps else []
    if max_tokens:
      # The step that comes nearest is the last; the next one is taken to be as
      # large as this one.
      is_nearest = completion_tokens + step_tokens / 2 >= max_tokens
      shares.append(1.0 if is_nearest else completion_tokens / max_tokens)
    return max(shares)

  progress = metrics_lib.Progress(
      config.train.num_steps, num_done=step, share_done=share_done())
  stop = signals.StopFlag()
  saved_step = step
  while share_done() < 1 and not any(hosts.exchange(stop.is_set())):
    start = time.perf_counter()
    team = interaction(config.rollout.temperature)
    rollout = at_grpo.collect(
        team, draw_tasks(tasks, step, experiment), step=step,
        spec=experiment.rollout)
    advantages = group_advantages(rollout.groups, experiment)
    values = rollout_metrics(
        rollout, advantages, _compared(rollout.groups, experiment),
        team.counters)
    if step % config.train.groups_every == 0:
      write_groups(workdir / 'groups', step, rollout.groups, advantages)
    step_tokens = team.counters.completion_tokens
    completion_tokens += step_tokens
    if (config.train.diagnose_every
        and step % config.train.diagnose_every == 0):
      for name in states:
        values |= diagnose_policy(
            experiment, name, states[name], rollout.groups, advantages,
            references[name])
    update_start = time.perf_counter()
    # All updates are dispatched before any is waited for: policies on
    # different pools are updated at the same time.
    updates = {}
    for name in states:
      states[name], updates[name] = update_policy(
          experiment, name, states[name], rollout.groups, advantages,
          references.get(name))
    for name, update in updates.items():
      values |= {
          f'{name}/{metric}': x
          for metric, x in update_metrics(name, update).items()}
      values[f'{name}/num_updates'] = int(states[name].num_updates)
    values['time/update'] = time.perf_counter() - update_start
    step += 1

    if step % config.evaluation.validate_every == 0:
      validation = validate(step)
    values |= validation
    seconds = time.perf_counter() - start
    values |= {
        'time/step': seconds, **compiles.metrics(),
        **metrics_lib.peak_memory()}
    writer.write(step, values)
    progress.update(
        step, share_done=share_done(), success=values['spine/success'],
        k1_success=validation['k1/success'], reward=values['reward/mean'],
        tokens_per_second=step_tokens / seconds)
    if step % config.train.checkpoint_every == 0:
      save(step)
      saved_step = step
  progress.close()

  # ---- End ------------------------------------------------------------------
  if step > saved_step:
    save(step)
  checkpoints.close()
  writer.close()
  if share_done() < 1:
    print(f'stopped by {stop.name} after step {step}; the same command '
          'resumes')
    lock.close()
    return False
  after = test('after', step)
  lock.close()
  if limits[1]:
    print(
        f'generated {completion_tokens} tokens in {step} steps, '
        f'{100 * completion_tokens / limits[1]:.1f} % of '
        'train.completion_tokens')
  evaluate.print_table({'before': before, 'after': after})
  print(f'held-out success: before {100 * before["success"]:.1f} %, after '
        f'{100 * after["success"]:.1f} % ({len(test_tasks)} tasks)')
  return True


def draw_tasks(
    tasks: Sequence[base.Task], step: int,
    experiment: experiment_lib.Experiment) -> list[base.Task]:
  """The tasks of a step: epoch after epoch, each shuffled by its number.

  A function of the step alone, so that a resumed run goes on where it was.
  The last, smaller part of an epoch is left out.
  """
  num_tasks = experiment.config.rollout.num_tasks
  epoch, index = divmod(step, len(tasks) // num_tasks)
  order = np.random.default_rng(
      [experiment.config.seed, epoch]).permutation(len(tasks))
  drawn = order[index * num_tasks:(index + 1) * num_tasks]
  return [tasks[i] for i in drawn]


def group_advantages(
    groups: Sequence[types.Group],
    experiment: experiment_lib.Experiment) -> list[np.ndarray]:
  """Advantages [G] of each group, compared as `advantage.group_key` says."""
  return advantages_lib.of_groups(
      groups, **experiment.config.advantage,
      of_episodes=experiment.rollout.target == 'episode_return')


def _compared(
    groups: Sequence[types.Group],
    experiment: experiment_lib.Experiment) -> np.ndarray:
  """For each group, the number of those it shares a baseline with."""
  return advantages_lib.group_ids(
      [group.key for group in groups], experiment.config.advantage.group_key)


def _numbers_with_signal(
    compared: np.ndarray, advantages: Sequence[np.ndarray]) -> set[int]:
  """Of what `_compared` returns: where anybody has an advantage."""
  return {
      number for number, advantage in zip(compared, advantages)
      if np.any(advantage)}


@dataclasses.dataclass(frozen=True)
class PolicyUpdate:
  """What the updates of one policy tell, still on its devices.

  Attributes:
    num_groups: of its roles.
    num_without_signal: of these, in which no candidate has an advantage.
    updates: (metrics, which gradients are finite) of each update.
  """

  num_groups: int
  num_without_signal: int
  updates: list[tuple[dict[str, jax.Array], Any]]


def update_policy(
    experiment: experiment_lib.Experiment, name: str,
    state: train_state.TrainState, groups: Sequence[types.Group],
    advantages: Sequence[np.ndarray], reference: model.Params | None,
) -> tuple[train_state.TrainState, PolicyUpdate]:
  """Dispatches one or a few updates on the groups of a policy.

  The loss is the mean over all candidates (Algorithm 1 of arXiv 2510.11062), by
  `loss.aggregation`. Groups without an advantage add nothing to the surrogate,
  so they are computed only where a penalty reads them.

  `reference` is the model of a KL penalty, which alone reads it.
  """
  policy = experiment.policies[name]
  own = [
      _train_group(group, advantage)
      for group, advantage in zip(groups, advantages) if group.policy == name]
  update = PolicyUpdate(
      len(own), sum(not np.any(group.advantages) for group in own), [])
  num_updates = experiment.config.train.updates_per_rollout
  base = experiment.bases.get(name)
  buckets = experiment.buckets.on(sharding.num_row_parts(policy.mesh))
  static = {'config': policy.config, 'spec': policy.learner}
  whole = dataclasses.replace(policy.learner, adapter_scale=None)
  throttled = functools.partial(
      sharding.throttle_cpu_dispatch, mesh=policy.mesh)
  with jax.set_mesh(policy.mesh):
    parts = []
    for groups_of_part in (own[i::num_updates] for i in range(num_updates)):
      scored = _scored(policy.learner.loss, groups_of_part)
      if not scored:
        continue
      batches = [
          sharding.put_rows(batch, policy.mesh) for batch in
          batching.make_batches(scored, buckets)]
      if num_updates > 1:
        batches = [
            dataclasses.replace(b, old_logprobs=throttled(train_step.score(
                state.params, b, base=base, **static))) for b in batches]
      if policy.learner.loss.kl_estimator != 'none':
        batches = [
            dataclasses.replace(b, reference_logprobs=throttled(
                train_step.score(
                    reference, b, config=policy.config, spec=whole)))
            for b in batches]
      parts.append((
          batches,
          _num_units(groups_of_part, policy.learner.loss.aggregation),
          _num_units(scored, 'token_mean')))

    for batches, num_units, num_tokens in parts:
      sums = train_step.zero_sums(state.params, **static)
      for batch in batches:
        sums = throttled(train_step.accumulate(
            state.params, sums, batch, base=base, **static))
      state, learned, finite = train_step.apply_update(
          state, sums, num_units, num_tokens, **static)
      update.updates.append((learned, finite))
  return state, update


def diagnose_policy(
    experiment: experiment_lib.Experiment, name: str,
    state: train_state.TrainState, groups: Sequence[types.Group],
    advantages: Sequence[np.ndarray],
    start: model.Params) -> dict[str, float]:
  """`rl.diagnostics` of the groups that the next update will score."""
  policy = experiment.policies[name]
  buckets = experiment.buckets.on(sharding.num_row_parts(policy.mesh))
  by_role = collections.defaultdict(list)
  for group, advantage in zip(groups, advantages):
    if group.policy == name:
      by_role[group.key.role].append(_train_group(group, advantage))
  scored = {
      role: found for role, own in by_role.items()
      if (found := _scored(policy.learner.loss, own))}
  if not scored:
    return {}
  score_start = functools.partial(
      train_step.score, start, config=policy.config,
      spec=dataclasses.replace(policy.learner, adapter_scale=None))
  with jax.set_mesh(policy.mesh):
    values = diagnostics.diagnose(
        state.params, {
            role: diagnostics.RoleBatches(
                [sharding.put_rows(batch, policy.mesh)
                 for batch in batching.make_batches(own, buckets)],
                _num_units(by_role[role], policy.learner.loss.aggregation),
                _num_units(own, 'token_mean'))
            for role, own in scored.items()},
        score_start, base=experiment.bases.get(name), mesh=policy.mesh,
        config=policy.config, spec=policy.learner)
  return {f'diagnosis/{metric}': x for metric, x in values.items()}


def _scored(
    loss: losses.LossSpec,
    own: Sequence[batching.TrainGroup]) -> list[batching.TrainGroup]:
  """The groups whose candidates the loss reads."""
  return [
      group for group in own if loss.has_penalty or np.any(group.advantages)]


def _num_units(
    own: Sequence[batching.TrainGroup], aggregation: str) -> np.float32:
  """`losses.num_units` of all candidates of these groups."""
  lengths = [len(ids) for group in own for ids in group.completions]
  return np.float32(losses.num_units(np.array(lengths), aggregation))


def update_metrics(name: str, update: PolicyUpdate) -> dict[str, float]:
  """Waits for the updates of a policy; raises if they went wrong.

  Of several updates of one rollout, the metrics are means.
  """
  metrics = {
      'groups': update.num_groups,
      'groups_without_signal': update.num_without_signal}
  if not update.updates:
    logging.warning('policy %s: no group carries a signal', name)
    return metrics
  learned = jax.device_get([learned for learned, _ in update.updates])
  for key in learned[0]:
    metrics[key] = float(np.mean([one[key] for one in learned]))
  for one, (_, finite) in zip(learned, update.updates):
    if one['nonfinite_in_a_row'] >= MAX_NONFINITE:
      bad = [
          jax.tree_util.keystr(path, simple=True, separator='/')
          for path, ok in jax.tree_util.tree_leaves_with_path(finite)
          if not ok]
      raise FloatingPointError(
          f'Policy {name!r}: the gradients of {MAX_NONFINITE} updates in a '
          f'row were not finite, last in {", ".join(bad[:10])} ({len(bad)} '
          f'of {len(jax.tree.leaves(finite))} leaves), loss '
          f'{one["loss"]}. The parameters are those before.')
  metrics['nonfinite_in_a_row'] = float(learned[-1]['nonfinite_in_a_row'])
  return metrics


def _train_group(
    group: types.Group, advantages: np.ndarray) -> batching.TrainGroup:
  """Without the tokens of candidates that failed for no fault of theirs."""
  def kept(rows):
    return [row if ok else row[:0] for row, ok in zip(rows, group.valid)]

  return batching.TrainGroup(
      group.prompt, kept(group.completions), kept(group.behavior_logprobs),
      advantages)


def rollout_metrics(
    rollout: at_grpo.Rollout, advantages: Sequence[np.ndarray],
    compared: np.ndarray,
    counters: interaction_lib.Counters) -> dict[str, float]:
  """What a rollout and the credit for it looked like, for the log.

  `<role>/without_signal` is a share of what is compared, each baseline once:
  of prompts in a tree, of tasks where `advantage.group_key` is `env`.
  """
  episodes = rollout.episodes
  valid = np.concatenate([group.valid for group in rollout.groups])
  rewards = np.concatenate([group.rewards for group in rollout.groups])
  values = {
      'spine/success': np.mean([e.success for e in episodes]),
      'spine/turns': np.mean([e.turns for e in episodes]),
      'spine/truncated': np.mean([e.truncated for e in episodes]),
      'reward/mean': np.mean(rewards[valid]),
      'reward/invalid': np.sum(~valid),
      'time/sample': counters.sample_seconds,
      'time/environment': counters.environment_seconds,
  }
  for name, count in counters.ledger().items():
    values[f'budget/{name}'] = count
  with_signal = _numbers_with_signal(compared, advantages)
  for role in dict.fromkeys(group.key.role for group in rollout.groups):
    groups, credit, numbers = zip(*(
        one for one in zip(rollout.groups, advantages, compared)
        if one[0].key.role == role))
    values |= _role_metrics(role, groups, credit)
    values[f'{role}/without_signal'] = 1 - (
        len(with_signal.intersection(numbers)) / len(set(numbers)))
  return values


def _role_metrics(
    role: str, groups: Sequence[types.Group],
    advantages: Sequence[np.ndarray]) -> dict[str, float]:
  """Rewards, credit, terms, outcomes and lengths of a role's candidates."""
  credit = np.concatenate(advantages)
  rewards = np.concatenate([group.rewards for group in groups])
  outcomes = [outcome for group in groups for outcome in group.outcomes]
  values = {
      f'{role}/reward': np.nanmean(rewards),
      f'{role}/first_reward': np.nanmean([g.rewards[0] for g in groups]),
      f'{role}/advantage_mean': np.mean(credit),
      f'{role}/advantage_std': np.std(credit),
      f'{role}/length': np.mean(
          [len(ids) for group in groups for ids in group.completions]),
  }
  for name in groups[0].reward_terms[0]:
    values[f'{role}/term/{name}'] = np.mean(
        [terms[name] for group in groups for terms in group.reward_terms])
  for outcome in dict.fromkeys(outcomes):  # A set has no fixed order.
    values[f'{role}/outcome/{outcome.value}'] = (
        outcomes.count(outcome) / len(outcomes))
  return values


def write_groups(
    folder: pathlib.Path, step: int, groups: Sequence[types.Group],
    advantages: Sequence[np.ndarray]) -> None:
  """Writes every group of a step, one JSON object per line."""
  if not hosts.is_first():
    return
  folder.mkdir(exist_ok=True)
  with (folder / f'{step:06d}.jsonl').open('w') as file:
    for group, advantage in zip(groups, advantages):
      file.write(json.dumps({
          'key': group.key._asdict(),
          'policy': group.policy,
          'prompt_ids': group.prompt.tolist(),
          'chosen': group.chosen,
          'candidates': [
              _candidate(group, advantage, i) for i in range(group.size)],
      }) + '\n')


def _candidate(
    group: types.Group, advantage: np.ndarray,
    index: int) -> Mapping[str, Any]:
  return {
      'text': group.texts[index],
      'ids': group.completions[index].tolist(),
      'logprobs': [round(float(x), 6) for x in group.behavior_logprobs[index]],
      'valid': bool(group.valid[index]),
      'reward': float(group.rewards[index]) if group.valid[index] else None,
      'terms': group.reward_terms[index],
      'outcome': group.outcomes[index].value,
      'advantage': float(advantage[index]),
  }
