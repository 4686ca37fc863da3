"""losses.py: hand-worked numbers, and gradients that must be what they are.

The numbers are compared compiled and not compiled, with rank promotion an
error.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import losses
from tests import specs

# Two completions of two and three tokens. The range is [0.8, 1.3].
RATIOS = [[1.5, 0.9, 7.0], [0.5, 1.2, 1.4]]
MASK = np.array([[True, True, False], [True, True, True]])
ADVANTAGES = [2.0, -1.0]
SPEC = specs.loss(clip_low=0.2, clip_high=0.3)

ALL_SPECS = [
    specs.loss(
        ratio_level=ratio_level, aggregation=aggregation, dual_clip=3.0,
        kl_estimator=estimator, kl_coefficient=0.1, entropy_coefficient=0.01)
    for ratio_level in losses.RATIO_LEVELS
    for aggregation in losses.AGGREGATIONS
    for estimator in ('k3', 'k3_forward')]


@pytest.fixture(autouse=True)
def _no_rank_promotion():
  with jax.numpy_rank_promotion('raise'):
    yield


def _loss_and_grads(*args):
  """The sum, and its gradients by log-probabilities and entropies."""
  return jax.value_and_grad(
      lambda *args: losses.policy_loss(*args)[0], argnums=(0, 3))(*args)


LOSS = {
    'compiled': jax.jit(losses.policy_loss, static_argnums=7),
    'plain': losses.policy_loss}
LOSS_AND_GRADS = {
    'compiled': jax.jit(_loss_and_grads, static_argnums=7),
    'plain': _loss_and_grads}


@pytest.fixture(params=['compiled', 'plain'])
def mode(request):
  return request.param


@pytest.fixture
def policy_loss(mode):
  """`losses.policy_loss` for ratios instead of log-probabilities."""
  def run(
      ratios=RATIOS, advantages=ADVANTAGES, mask=MASK, spec=SPEC,
      mismatch=1.0, reference=None, entropy=0.0):
    logprobs = jnp.log(jnp.array(ratios)) - 2.0
    old = jnp.full_like(logprobs, -2.0)
    if reference is not None:
      reference = logprobs + jnp.log(jnp.array(reference))
    total, sums = LOSS[mode](
        logprobs, old, old - jnp.log(jnp.full_like(old, mismatch)),
        jnp.full_like(old, entropy), jnp.array(advantages), jnp.array(mask),
        reference, spec)
    return float(total), {k: float(v) for k, v in sums.items()}
  return run


@pytest.mark.parametrize('ratio, advantage, expected', [
    # Inside the range the loss is -ratio * advantage.
    (1.1, 2.0, -2.2), (0.9, 2.0, -1.8), (1.1, -2.0, 2.2), (0.9, -2.0, 1.8),
    # Beyond it, what would go on improving is cut at 1.3 or 0.8.
    (1.6, 2.0, -2.6), (0.5, -2.0, 1.6),
    # What got worse still counts in full.
    (0.5, 2.0, -1.0), (1.6, -2.0, 3.2),
])
def test_surrogate_of_one_token(policy_loss, ratio, advantage, expected):
  total, sums = policy_loss([[ratio]], [advantage], [[True]])
  assert total == pytest.approx(expected, rel=1e-6)
  assert sums['clipped'] == (abs(expected) in (2.6, 1.6))


@pytest.mark.parametrize('aggregation, total, num_units', [
    # Gains: min(3, 2.6) + 1.8 = 4.4 and min(-0.5, -0.8) - 1.2 - 1.4 = -3.4.
    ('token_mean', -(4.4 - 3.4), 5),
    ('sequence_mean', -(4.4 / 2 - 3.4 / 3), 2),
    ('constant', -(4.4 - 3.4), 2),
])
def test_aggregations(policy_loss, aggregation, total, num_units):
  spec = dataclasses.replace(SPEC, aggregation=aggregation)
  found = policy_loss(spec=spec)
  assert found[0] == pytest.approx(total, rel=1e-6)
  lengths = np.append(np.sum(MASK, axis=1), 0)  # The last says nothing.
  assert losses.num_units(lengths, aggregation) == num_units
  assert found[1] == pytest.approx({
      'clipped': 2, 'entropy': 0, 'mismatch': 0,
      # The ratios sum to 5.5 and multiply to 1.134.
      'approx_kl': 5.5 - 5 - math.log(1.134)}, rel=1e-5)


@pytest.mark.parametrize('aggregation', losses.AGGREGATIONS)
def test_a_row_without_tokens_does_not_count(policy_loss, aggregation):
  spec = dataclasses.replace(SPEC, aggregation=aggregation)
  found = policy_loss(
      [*RATIOS, [9.0, 9.0, 9.0]], [*ADVANTAGES, 5.0], [*MASK, [False] * 3],
      spec=spec, entropy=1.0)
  expected = policy_loss(spec=spec, entropy=1.0)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found,
      expected)


def test_dual_clip(policy_loss):
  spec = dataclasses.replace(SPEC, dual_clip=3.0)
  # Gains: max(-5, 3 * -1) = -3; max(-2, -3) = -2; 1.3 * 2 as before.
  total, sums = policy_loss(
      [[5.0], [2.0], [5.0]], [-1.0, -1.0, 2.0], np.ones((3, 1), bool), spec)
  assert total == pytest.approx(3 + 2 - 2.6, rel=1e-6)
  assert sums['clipped'] == 2
  total, _ = policy_loss([[5.0]], [-1.0], [[True]])
  assert total == pytest.approx(5, rel=1e-6)


def test_ratio_of_a_sequence(policy_loss):
  spec = dataclasses.replace(SPEC, ratio_level='sequence')
  # Geometric means: (1.5 * 0.9)^(1/2) = 1.1618950, in the range, times 2;
  # (0.5 * 1.2 * 1.4)^(1/3) = 0.9435388, in the range, times -1. The one
  # counts for two tokens, the other for three.
  total, sums = policy_loss(spec=spec)
  assert total == pytest.approx(
      -(2 * 2 * 1.1618950 - 3 * 0.9435388), rel=1e-6)
  assert sums['clipped'] == 0
  # (4 * 1)^(1/2) = 2: cut to 1.3, both tokens.
  total, sums = policy_loss(
      [[4.0, 1.0]], [2.0], np.ones((1, 2), bool), spec)
  assert total == pytest.approx(-2 * 2 * 1.3, rel=1e-6)
  assert sums['clipped'] == 2


@pytest.mark.parametrize('cap, mismatch, weight', [
    (2.0, 0.5, 0.5), (2.0, 1.5, 1.5), (2.0, 4.0, 2.0), (3.0, 4.0, 3.0),
    (0.0, 4.0, 1.0)])
def test_importance_weight(policy_loss, cap, mismatch, weight):
  spec = dataclasses.replace(SPEC, importance_cap=cap)
  total, sums = policy_loss(spec=spec, mismatch=mismatch)
  # The gain of test_aggregations is 1.
  assert total == pytest.approx(-weight, rel=1e-5)
  assert sums['mismatch'] == pytest.approx(
      5 * abs(math.log(mismatch)), rel=1e-5)
  # A weight is not a clip.
  assert sums['clipped'] == 2


@pytest.mark.parametrize('estimator', ['k3', 'k3_forward'])
def test_kl(policy_loss, estimator):
  # pi_ref / pi is 2, 1/2 and 2: 2 - 1 - log 2 twice, 1/2 - 1 + log 2 once; each
  # times its ratio.
  expected = (1.0 + 0.9) * (1 - math.log(2)) + 1.1 * (math.log(2) - 0.5)
  spec = dataclasses.replace(
      SPEC, kl_estimator=estimator, kl_coefficient=0.1)
  total, _ = policy_loss(
      [[1.0, 1.1], [0.9, 3.0]], [0.0, 0.0], [[True, True], [True, False]],
      spec, reference=[[2.0, 0.5], [2.0, 2.0]])
  assert total == pytest.approx(0.1 * expected, rel=1e-5)


def test_kl_of_the_reference_itself_is_nought(policy_loss):
  for estimator in ('k3', 'k3_forward'):
    spec = dataclasses.replace(
        SPEC, kl_estimator=estimator, kl_coefficient=1.0)
    with_kl, _ = policy_loss(spec=spec, reference=np.ones((2, 3)))
    assert with_kl == pytest.approx(policy_loss()[0], abs=1e-6)


def test_entropy_is_a_bonus(policy_loss):
  spec = dataclasses.replace(SPEC, entropy_coefficient=0.01)
  total, sums = policy_loss(advantages=[0.0, 0.0], spec=spec, entropy=2.5)
  # Five tokens.
  assert total == pytest.approx(-0.01 * 5 * 2.5, rel=1e-6)
  assert sums['entropy'] == pytest.approx(12.5)


def test_supervised_loss():
  logprobs = jnp.array([[-1.0, -2.0, -9.0], [-0.5, -0.25, -4.0]])
  # 1 + 2 + 0.5 + 0.25 + 4
  assert losses.supervised_loss(logprobs, jnp.array(MASK)) == 7.75


# Gradients and sums. Random arrays of six completions of up to five tokens.


def _arrays(junk=0.0):
  """Arguments of `policy_loss`; masked positions hold `junk`."""
  rng = np.random.default_rng(0)
  mask = np.arange(5) < np.array([5, 0, 3, 1, 4, 2])[:, None]

  def array(low, high):
    values = rng.uniform(low, high, (6, 5))
    return jnp.array(np.where(mask, values, junk), jnp.float32)

  logprobs = array(-3, -1)
  old, behavior, reference = (
      logprobs + array(-0.5, 0.5) for _ in range(3))
  advantages = jnp.array(rng.normal(size=6), jnp.float32)
  return (
      logprobs, old, behavior, array(0, 3), advantages, jnp.array(mask),
      reference)


@pytest.mark.parametrize('spec', ALL_SPECS)
def test_masked_tokens_change_nothing_and_have_no_gradient(mode, spec):
  plain = _arrays()
  mask = np.asarray(plain[5])
  expected = LOSS_AND_GRADS[mode](*plain, spec)
  # Each of these overflows or is undefined in some exp, product or difference.
  for junk in (1e3, -1e3, np.inf, np.nan):
    found = LOSS_AND_GRADS[mode](*_arrays(junk), spec)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
  for grad in expected[1]:
    np.testing.assert_array_equal(np.asarray(grad) != 0, mask)


@pytest.mark.parametrize('ratio_level', losses.RATIO_LEVELS)
@pytest.mark.parametrize('aggregation', losses.AGGREGATIONS)
def test_on_policy_gradient_is_that_of_reinforce(
    mode, ratio_level, aggregation):
  logprobs, _, _, entropy, advantages, mask, _ = _arrays()
  spec = specs.loss(ratio_level=ratio_level, aggregation=aggregation)
  args = (logprobs, logprobs, logprobs, entropy, advantages, mask, None)
  num_units = losses.num_units(np.sum(mask, axis=1), aggregation)

  def reinforce(logprobs):
    terms = jnp.where(mask, -advantages[:, None] * logprobs, 0.0)
    lengths = jnp.maximum(jnp.sum(mask, axis=1), 1)
    if aggregation == 'token_mean':
      return jnp.sum(terms) / jnp.sum(mask)
    if aggregation == 'sequence_mean':
      return jnp.sum(jnp.sum(terms, axis=1) / lengths) / 5
    return jnp.sum(terms) / 5

  _, (grad, _) = LOSS_AND_GRADS[mode](*args, spec)
  np.testing.assert_allclose(
      grad / num_units, jax.grad(reinforce)(logprobs), rtol=1e-5)


def test_a_clipped_token_has_no_gradient(mode):
  logprobs = jnp.log(jnp.array(RATIOS))
  zeros = jnp.zeros_like(logprobs)
  args = (
      logprobs, zeros, zeros, zeros, jnp.array(ADVANTAGES), jnp.array(MASK),
      None)
  # The derivative of -ratio * advantage is itself.
  _, (grad, _) = LOSS_AND_GRADS[mode](*args, SPEC)
  np.testing.assert_allclose(
      grad, [[0, -1.8, 0], [0, 1.2, 1.4]], rtol=1e-6)


@pytest.mark.parametrize('spec', ALL_SPECS)
@pytest.mark.parametrize('cuts', [[1, 3, 4], [1, 2, 3, 4, 5]])
def test_microbatches_add_up(spec, cuts):
  args = _arrays()
  whole = losses.policy_loss(*args, spec)
  parts = [
      losses.policy_loss(*(x[a:b] for x in args), spec)
      for a, b in zip([0, *cuts], [*cuts, 6])]
  added = jax.tree.map(lambda *xs: sum(xs), *parts)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), added, whole)


@pytest.mark.parametrize('spec', ALL_SPECS)
def test_a_longer_completion_axis_changes_nothing(spec):
  args = _arrays()
  longer = [
      x if x.ndim == 1 else jnp.pad(x, ((0, 0), (0, 3))) for x in args]
  for x, y in zip(
      jax.tree.leaves(losses.policy_loss(*longer, spec)),
      jax.tree.leaves(losses.policy_loss(*args, spec))):
    np.testing.assert_allclose(x, y, rtol=1e-6)


# What is refused.


@pytest.mark.parametrize('name, value', [
    ('ratio_level', 'group'), ('aggregation', 'mean'), ('kl_estimator', 'k1')])
def test_unknown_switches(name, value):
  with pytest.raises(ValueError, match=f"{name}='{value}' is not one of"):
    specs.loss(**{name: value})


@pytest.mark.parametrize('switches', [
    {'kl_estimator': 'k3'}, {'kl_coefficient': 0.1}])
def test_half_a_penalty(switches):
  with pytest.raises(ValueError, match='set both or neither'):
    specs.loss(**switches)


def test_a_penalty_and_its_reference_need_each_other():
  args = _arrays()
  with pytest.raises(ValueError, match="'none'.*given"):
    losses.policy_loss(*args, SPEC)
  with pytest.raises(ValueError, match="'k3'.*missing"):
    losses.policy_loss(*args[:-1], None, ALL_SPECS[0])


@pytest.mark.parametrize('index, change', [
    (0, lambda x: x[0]),  # One completion instead of many.
    (1, lambda x: x[:, :4]),
    (4, lambda x: x[:, None]),
    (4, lambda x: x[:5]),
    (5, lambda x: x.astype(jnp.float32)),
])
def test_wrong_shapes_and_types(index, change):
  args = list(_arrays()[:-1]) + [None]
  args[index] = change(args[index])
  with pytest.raises(AssertionError):
    losses.policy_loss(*args, SPEC)
