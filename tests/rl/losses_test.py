"""Losses and their gradients by hand; kl_test.py checks the KL penalties."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import losses
from tests import specs

# Two completions of two and three tokens, clipped to [0.8, 1.3].
RATIOS = [[1.5, 0.9, 7.0], [0.5, 1.2, 1.4]]
MASK = np.array([[True, True, False], [True, True, True]])
ADVANTAGES = [2.0, -1.0]
SPEC = specs.loss(clip_low=0.2, clip_high=0.3)

# All values of all switches.
SPECS = [
    specs.loss(
        surrogate=surrogate, aggregation=aggregation, kl_estimator='k3',
        kl_coefficient=0.1)
    for surrogate, aggregation in (
        ('clip', 'token_mean'), ('unclipped', 'constant'),
        ('clip', 'sequence_mean'))]


@pytest.fixture(autouse=True)
def _no_rank_promotion():
  with jax.numpy_rank_promotion('raise'):
    yield


def policy_loss(
    ratios=RATIOS, advantages=ADVANTAGES, mask=MASK, *, mismatch=1.0,
    reference=None, entropy=0.0, **switches):
  """`losses.policy_loss` given ratios."""
  logprobs = jnp.log(jnp.array(ratios)) - 2.0
  old = jnp.full_like(logprobs, -2.0)
  if reference is not None:
    reference = logprobs + jnp.log(jnp.array(reference))
  total, sums = losses.policy_loss(
      logprobs, old, old - jnp.log(jnp.full_like(old, mismatch)),
      jnp.full_like(old, entropy), jnp.array(advantages), jnp.array(mask),
      reference, dataclasses.replace(SPEC, **switches))
  return float(total), {k: float(v) for k, v in sums.items()}


@jax.jit(static_argnums=7)
def loss_and_grad(*args):
  """The loss and its gradient for the log-probabilities."""
  return jax.value_and_grad(
      lambda *args: losses.policy_loss(*args)[0])(*args)


@pytest.mark.parametrize('ratio, advantage, expected', [
    # Within the range: -ratio * advantage.
    (1.1, 2.0, -2.2), (0.9, 2.0, -1.8), (1.1, -2.0, 2.2), (0.9, -2.0, 1.8),
    # Beyond it, improvements are clipped at 1.3 or 0.8.
    (1.6, 2.0, -2.6), (0.5, -2.0, 1.6),
    # Deteriorations are not clipped.
    (0.5, 2.0, -1.0), (1.6, -2.0, 3.2),
])
def test_surrogate_of_one_token(ratio, advantage, expected):
  total, sums = policy_loss([[ratio]], [advantage], [[True]])
  assert total == pytest.approx(expected, rel=1e-6)
  assert sums['clipped'] == (abs(expected) in (2.6, 1.6))


@pytest.mark.parametrize('aggregation, total, num_units', [
    # Gains: min(3, 2.6) + 1.8 = 4.4 and min(-0.5, -0.8) - 1.2 - 1.4 = -3.4.
    ('token_mean', -(4.4 - 3.4), 5),
    ('sequence_mean', -(4.4 / 2 - 3.4 / 3), 2),
    ('constant', -(4.4 - 3.4), 2),
])
def test_aggregations(aggregation, total, num_units):
  # The ratios sum to 5.5 and multiply to 1.134.
  sums = {'clipped': 2, 'entropy': 5, 'mismatch': 0,
          'approx_kl': 5.5 - 5 - math.log(1.134)}
  # A fully masked row changes nothing.
  for found in (
      policy_loss(aggregation=aggregation, entropy=1.0),
      policy_loss(
          [*RATIOS, [9.0] * 3], [*ADVANTAGES, 5.0], [*MASK, [False] * 3],
          aggregation=aggregation, entropy=1.0)):
    assert found[0] == pytest.approx(total, rel=1e-6)
    assert found[1] == pytest.approx(sums, rel=1e-5)
  assert losses.num_units(np.array([2, 3, 0]), aggregation) == num_units


@pytest.mark.parametrize('cap, mismatch, weight', [
    (2.0, 0.5, 0.5), (2.0, 1.5, 1.5), (2.0, 4.0, 2.0), (3.0, 4.0, 3.0),
    (0.0, 4.0, 1.0)])
def test_importance_weight(cap, mismatch, weight):
  total, sums = policy_loss(importance_cap=cap, mismatch=mismatch)
  # The gain of test_aggregations is 1.
  assert total == pytest.approx(-weight, rel=1e-5)
  assert sums['mismatch'] == pytest.approx(
      5 * abs(math.log(mismatch)), rel=1e-5)
  # The cap is not reported as clipping.
  assert sums['clipped'] == 2


def _arrays(junk=0.0):
  """Random arguments of `policy_loss`; masked positions hold `junk`."""
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


@pytest.mark.parametrize('spec', SPECS)
def test_padding_has_no_effect_and_no_gradient(spec):
  plain = _arrays()
  expected = loss_and_grad(*plain, spec)
  # Each value overflows or is undefined in some exp, product or difference.
  for junk in (1e3, -1e3, np.inf, np.nan):
    found = loss_and_grad(*_arrays(junk), spec)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
  np.testing.assert_array_equal(np.asarray(expected[1]) != 0, plain[5])


@pytest.mark.parametrize('surrogate', losses.SURROGATES)
@pytest.mark.parametrize('aggregation', losses.AGGREGATIONS)
def test_on_policy_gradient_equals_reinforce(surrogate, aggregation):
  logprobs, _, _, entropy, advantages, mask, _ = _arrays()
  spec = specs.loss(surrogate=surrogate, aggregation=aggregation)

  def reinforce(logprobs):
    terms = jnp.where(mask, -advantages[:, None] * logprobs, 0.0)
    lengths = jnp.maximum(jnp.sum(mask, axis=1), 1)
    if aggregation == 'token_mean':
      return jnp.sum(terms) / jnp.sum(mask)
    if aggregation == 'sequence_mean':
      return jnp.sum(jnp.sum(terms, axis=1) / lengths) / 5
    return jnp.sum(terms) / 5

  _, grad = loss_and_grad(
      logprobs, logprobs, logprobs, entropy, advantages, mask, None, spec)
  num_units = losses.num_units(np.sum(mask, axis=1), aggregation)
  np.testing.assert_allclose(
      grad / num_units, jax.grad(reinforce)(logprobs), rtol=1e-5)


def test_ratios_are_not_clipped_by_unclipped():
  # 1.5 and 0.5 are not clipped.
  total, sums = policy_loss(surrogate=losses.unclipped)
  assert total == pytest.approx(-2 * (1.5 + 0.9) + 0.5 + 1.2 + 1.4, rel=1e-6)
  assert sums['clipped'] == 0
