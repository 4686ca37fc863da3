"""Updates of a policy on the groups of a rollout of the echo game."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import update as update_lib
from tests import echo


@pytest.fixture(scope='module')
def experiment(echo_folder):
  return echo.experiment(echo_folder)


@pytest.fixture(scope='module')
def groups(experiment):
  """The 32 groups of a step."""
  return echo.groups(experiment, experiment.initial_states())


def _update(experiment, groups, reference=None, order='mixed', state=None):
  """Updates a state, by default the initial one."""
  state, updates = update_lib.update_policy(
      experiment.policies['shared'],
      state or experiment.initial_states()['shared'], groups,
      num_updates=experiment.config.train.updates_per_rollout, order=order,
      buckets=experiment.buckets, frozen_params=None, reference=reference)
  return state, updates.metrics('Step 1, shared')


def _with_first_candidate(group, **changes):
  first, *others = group.candidates
  return dataclasses.replace(group, candidates=(
      dataclasses.replace(first, **changes), *others))


def _zero_advantage(groups):
  return [
      dataclasses.replace(group, candidates=tuple(
          dataclasses.replace(candidate, advantage=0.0)
          for candidate in group.candidates)) for group in groups]


def _tokens(groups):
  return sum(len(c.completion) for group in groups for c in group.candidates)


def test_loss_is_the_mean_over_all_candidates(experiment, groups, caplog):
  with_signal = [g for g in groups if len(set(g.returns)) > 1]
  assert 0 < len(with_signal) < len(groups) == 32
  _, metrics = _update(experiment, groups)
  assert metrics['groups'] == 32
  assert metrics['groups_zero_advantage'] == 32 - len(with_signal)
  # Groups with zero advantage are skipped.
  assert metrics['tokens'] == _tokens(with_signal)
  _, alone = _update(experiment, with_signal)
  fraction = _tokens(with_signal) / _tokens(groups)
  assert fraction < 0.9
  for name in ('loss', 'grad_norm'):
    assert metrics[name] == pytest.approx(fraction * alone[name], rel=1e-4)
  assert metrics['entropy'] == pytest.approx(alone['entropy'], rel=1e-5)

  assert not caplog.messages
  state, metrics = _update(experiment, _zero_advantage(groups))
  assert state.num_updates == 0
  assert metrics == {'groups': 32, 'groups_zero_advantage': 32}
  assert 'Step 1, shared' in caplog.text


def test_kl_penalty_applies_to_groups_with_zero_advantage(
    experiment, groups, caplog, echo_folder):
  penalised = echo.experiment(
      echo_folder, **{'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.5})
  reference = penalised.policies['shared'].load_params('float32')
  _, plain = _update(experiment, groups)
  _, same = _update(penalised, groups, reference)
  # k3 and its gradient are 0 where policy and reference agree.
  for name in ('loss', 'grad_norm'):
    assert same[name] == pytest.approx(plain[name], abs=1e-5), name
  other = jax.tree.map(lambda x: 1.5 * x, reference)
  _, far = _update(penalised, groups, other)
  assert far['loss'] > same['loss'] + 0.01

  state, metrics = _update(penalised, _zero_advantage(groups), other)
  assert metrics['tokens'] == _tokens(groups)
  assert metrics['groups_zero_advantage'] == 32
  assert state.num_updates == 1 and metrics['grad_norm'] > 1e-4
  assert not caplog.messages

  # The surrogate is rounded away.
  penalised = echo.experiment(
      echo_folder, **{'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 1e30})
  _, metrics = _update(penalised, groups, reference)
  assert not metrics['grad_norm'] and 'gradient is zero' in caplog.text


def test_invalid_candidates_have_no_gradient(experiment, groups):
  index, group = next(
      (i, g) for i, g in enumerate(groups) if g.returns[0] < max(g.returns))
  params = []
  for completion in (group.candidates[0].completion, np.array([5, 6])):
    broken = _with_first_candidate(
        group, return_=np.nan, advantage=1.0, completion=completion,
        behavior_logprobs=np.zeros(len(completion), np.float32))
    state, _ = _update(
        experiment, [*groups[:index], broken, *groups[index + 1:]])
    params.append(state.params)
  jax.tree.map(np.testing.assert_array_equal, *params)


def test_several_updates_of_one_rollout(experiment, groups, echo_folder):
  twice = echo.experiment(echo_folder, **{'train.updates_per_rollout': 2})
  state, metrics = _update(experiment, groups)
  assert state.num_updates == 1
  assert metrics['approx_kl'] == 0

  state, metrics_twice = _update(twice, groups)
  assert state.num_updates == 2
  # The second update is compared with the policy before the first.
  assert metrics_twice['approx_kl'] > 0
  # Metrics are means over both updates, each of half of the groups.
  assert metrics_twice['tokens'] == metrics['tokens'] / 2


def test_updates_are_dealt_by_turn_or_by_node(echo_folder):
  experiment = echo.experiment(echo_folder, **{'environment.max_turns': 2})
  groups = echo.groups(experiment, experiment.initial_states())
  first, second = update_lib._deal(groups, 1, 'last_turn')
  assert {group.key.turn for group in first} == {1}
  assert {group.key.turn for group in second} == {0}
  state, metrics = _update(experiment, groups, order='last_turn')
  assert state.num_updates == 2
  assert metrics['approx_kl'] > 0  # The second is off policy.

  dealt = update_lib._deal(groups, 1, 'nodes')
  assert all(len({x.key.turn for x in groups_}) == 1 for groups_ in dealt)
  turns = collections.defaultdict(list)
  for group, *_ in dealt:
    turns[group.key.task_id].append(group.key.turn)
  assert list(turns) == list(dict.fromkeys(x.key.task_id for x in groups))
  assert {*map(tuple, turns.values())} == {(0,), (1, 0)}
  state, _ = _update(experiment, groups, order='nodes')
  assert state.num_updates == sum(
      any(np.any(group.advantages) for group in node) for node in dealt)


def test_diagnosis_compares_the_roles_of_a_policy(experiment, groups):
  policy = experiment.policies['shared']
  params = experiment.initial_states()['shared'].params
  reference = jax.tree.map(lambda x: 1.5 * x, policy.load_params('float32'))
  values = update_lib.diagnose(
      policy, params, groups, buckets=experiment.buckets, frozen_params=None,
      reference=reference)

  def sum_norm(groups):
    _, metrics = _update(experiment, groups)
    return metrics['grad_norm'] * _tokens(groups), metrics

  norms, expected = [], {}
  for role in experiment.environment.roles:
    role_groups = [group for group in groups if group.key.role == role]
    norm, metrics = sum_norm(role_groups)
    norms.append(norm)
    batch, = batching.make_batches(
        [group for group in role_groups if any(group.advantages)],
        experiment.buckets)
    mask = np.asarray(gradients.completion_mask(batch))
    log_ratio = np.asarray(gradients.score(
        reference, batch, config=policy.config, spec=policy.learner))[mask]
    log_ratio -= batch.behavior_logprobs[mask]
    expected |= {
        f'diagnosis/{role}/grad_norm': metrics['grad_norm'],
        f'diagnosis/{role}/entropy': metrics['entropy'],
        f'diagnosis/{role}/kl_to_start': np.mean(
            np.exp(log_ratio) - 1 - log_ratio)}
  # |a + b|^2 = |a|^2 + |b|^2 + 2 |a| |b| cosine.
  total, _ = sum_norm(groups)
  expected['diagnosis/cosine/first+second'] = (
      total**2 - np.sum(np.square(norms))) / (2 * np.prod(norms))
  assert values == pytest.approx(expected, rel=1e-3)


def test_nonfinite_parameters_stop_the_run(groups, echo_folder):
  experiment = echo.experiment(
      echo_folder, **{'optimizer.learning_rate': 3e38})
  with pytest.raises(errors.UserError, match='Step 1, shared: .* NaN'):
    _update(experiment, groups)


def nan(ratio, logprobs, advantages, spec):
  """A surrogate whose gradient is finite."""
  return ratio * advantages + np.nan


@pytest.mark.parametrize('surrogate, advantage', [
    ('clip', 1e30),  # The square of the gradient is infinite.
    (f'{__name__}:nan', 1.0)])
def test_repeated_nonfinite_updates_stop_the_run(
    groups, caplog, echo_folder, surrogate, advantage):
  experiment = echo.experiment(echo_folder, **{'loss.surrogate': surrogate})
  state = experiment.initial_states()['shared']

  def trained():
    return jax.device_get((state.params, state.opt_state.inner_state))

  before = trained()
  broken = [
      _with_first_candidate(group, advantage=advantage) for group in groups]
  for in_a_row in range(1, update_lib.MAX_NONFINITE):
    state, metrics = _update(experiment, broken, state=state)
    assert metrics['nonfinite_in_a_row'] == in_a_row
    assert caplog.messages[-1].startswith('Step 1, shared: ')
  jax.tree.map(np.testing.assert_array_equal, trained(), before)
  assert state.num_updates == 0
  if surrogate == 'clip':
    recovered, metrics = _update(
        experiment, groups, state=jax.tree.map(jnp.copy, state))
    assert metrics['nonfinite_in_a_row'] == 0
    assert recovered.num_updates == 1
  with pytest.raises(errors.UserError, match='shared: gradients were not'):
    _update(experiment, broken, state=state)
