"""train_step.py: one update, and all the ways to compute it that must agree."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import model
from atgrpo_jax.learner import train_state
from atgrpo_jax.learner import train_step
from atgrpo_jax.rl import logprobs as logprobs_lib
from atgrpo_jax.rl import losses
from atgrpo_jax.sampling import categorical
from atgrpo_jax.sampling import programs
from tests import specs
from tests.rl import tiny
from tests.rollout import scripted

SPEC = specs.learner(
    optimizer=specs.optimizer(learning_rate=1e-2, weight_decay=0.01),
    loss=specs.loss(
        clip_high=0.3, kl_estimator='k3', kl_coefficient=0.1,
        entropy_coefficient=0.01))
ON_POLICY = dataclasses.replace(SPEC, loss=specs.loss())
NUM_TOKENS = np.float32(35)  # Of the tiny batch.


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


def _score(params, batch, spec=SPEC):
  return train_step.score(params, batch, config=tiny.CONFIG, spec=spec)


@pytest.fixture(scope='module')
def batch(params):
  """The tiny batch as the second of several updates sees it."""
  batch = tiny.make_batch()
  def about(x, seed):
    shift = tiny.ids(*x.shape, seed=seed) / tiny.CONFIG.vocab_size - 0.5
    return x + shift.astype(np.float32)
  old = about(_score(params, batch), 3)
  return dataclasses.replace(
      batch, old_logprobs=old, behavior_logprobs=about(old, 4),
      reference_logprobs=about(old, 5))


def _accumulate(params, batches, spec=SPEC):
  sums = train_step.zero_sums(
      params, config=tiny.CONFIG, spec=spec)
  for batch in batches:
    sums = train_step.accumulate(
        params, sums, batch, config=tiny.CONFIG, spec=spec)
  return sums


def _update(state, sums):
  return train_step.apply_update(
      state, sums, NUM_TOKENS, NUM_TOKENS, config=tiny.CONFIG, spec=SPEC)


def _traced(spec):
  """`accumulate` from zero, for those who count in its jaxpr."""
  return lambda params, batch: _accumulate(params, [batch], spec)


def _state(params):
  """A state whose buffers may be donated."""
  return train_state.create(jax.tree.map(jnp.copy, params), SPEC.optimizer)


def _assert_close(found, expected, tolerance):
  """Sums agree, relative to the gradient's norm and the number of tokens."""
  def compare(scale):
    def compare_leaf(path, x, y):
      np.testing.assert_allclose(
          x, y, rtol=0, atol=tolerance * scale,
          err_msg=jax.tree_util.keystr(path))
    return compare_leaf
  jax.tree.map_with_path(
      compare(optax.tree.norm(expected.grads)), found.grads, expected.grads)
  jax.tree.map_with_path(
      compare(NUM_TOKENS), (found.loss, found.metrics),
      (expected.loss, expected.metrics))


def _assert_same_bits(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


# One update.

GOLDEN = {
    'loss': -0.6137684,
    'tokens': 35,
    'clipped': 10 / 35,
    'entropy': 2.869555,
    'mismatch': 0.2919643,
    'grad_norm': 3.525018,
    'update_norm': 0.7735675,
    'param_norm': 25.12764,
}


def test_golden_step(params, batch):
  state, metrics, _ = _update(
      _state(params), _accumulate(params, [batch]))
  assert int(state.num_updates) == 1
  found = {name: float(metrics[name]) for name in GOLDEN}
  assert found == pytest.approx(GOLDEN, rel=1e-4), (
      'The numbers of one update moved. Copy the new ones here only if the '
      'change was meant to alter them: another loss, optimiser, '
      'parametrisation, initialisation or tiny batch. A refactoring, another '
      'layout, batching or precision of intermediate results is not: then '
      'something broke.')


def test_supervised_loss_is_that_of_the_scores_and_falls(params):
  batch = tiny.make_batch()
  spec = dataclasses.replace(SPEC, loss=None)
  mask = np.asarray(train_step.completion_mask(batch))
  state, losses_found = _state(params), []
  for _ in range(3):
    sums = _accumulate(state.params, [batch], spec)
    assert mask.sum() == NUM_TOKENS
    expected = -np.mean(np.asarray(_score(state.params, batch))[mask])
    state, metrics, _ = _update(state, sums)
    np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-5)
    losses_found.append(expected)
  assert losses_found[0] > losses_found[1] > losses_found[2]


# The same numbers in another way.


def test_microbatches_make_one_batch(params, batch):
  parts = [
      jax.tree.map(lambda x: x[row:row + 1], batch) for row in (1, 0, 2)]
  _assert_close(
      _accumulate(params, parts), _accumulate(params, [batch]), 1e-6)


def test_order_changes_nothing(params, batch):
  groups, candidates = np.array([2, 0, 1]), np.array([1, 3, 0, 2])
  shuffled = jax.tree.map(lambda x: x[groups], batch)
  shuffled = jax.tree.map(
      lambda x: x[:, candidates] if x.shape[1:2] == (4,) else x, shuffled)
  _assert_close(
      _accumulate(params, [shuffled]), _accumulate(params, [batch]), 1e-6)


def _plain_sums(params, batch):
  """`accumulate` as a textbook has it: one row per completion, no sharing."""
  def rows(x):
    return x.reshape(-1, *x.shape[2:])

  def loss_fn(params):
    logits = tiny.plain_logits(params, batch)
    total, metrics = losses.policy_loss(
        logprobs_lib.token_logprobs(logits, rows(batch.completions), 1.0),
        rows(batch.old_logprobs), rows(batch.behavior_logprobs),
        logprobs_lib.entropy(logits, 1.0), rows(batch.advantages),
        rows(train_step.completion_mask(batch)),
        rows(batch.reference_logprobs), SPEC.loss)
    return total, metrics

  (total, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
  # One shard.
  return jax.tree.map(
      lambda x: x[None], train_step.Sums(grads, total, metrics))


def test_a_group_equals_its_prompt_repeated(params, batch):
  # First: they are two computations. Repeated, the prompt is read twelve times,
  # and the last completion token for nothing.
  assert tiny.count_rows(
      _traced(SPEC), (params, batch), tiny.EMBEDDING) == 3 * 7 + 12 * 5
  plain = functools.partial(_plain_sums, batch=batch)
  assert tiny.count_rows(plain, [params], tiny.EMBEDDING) == 12 * (7 + 5)
  _assert_close(_accumulate(params, [batch]), jax.jit(plain)(params), 1e-5)


def test_what_is_masked_changes_nothing(params, batch):
  mask = np.asarray(train_step.completion_mask(batch))
  prompt_mask = np.arange(7) < np.asarray(batch.prompt_lengths)[:, None]
  junk = dataclasses.replace(
      batch, prompts=np.where(prompt_mask, batch.prompts, 31),
      completions=np.where(mask, batch.completions, 31),
      old_logprobs=np.where(mask, batch.old_logprobs, np.nan),
      behavior_logprobs=np.where(mask, batch.behavior_logprobs, -np.inf),
      reference_logprobs=np.where(mask, batch.reference_logprobs, 1e9),
      # Of the candidate without tokens.
      advantages=np.where(mask.any(-1), batch.advantages, -1e6))
  assert not mask.all() and not prompt_mask.all() and not mask.any(-1).all()
  _assert_same_bits(
      _accumulate(params, [junk]), _accumulate(params, [batch]))


def test_fillers_change_nothing(params, batch):
  def pad(x, **axes):
    widths = [(0, axes.get(str(axis), 0)) for axis in range(x.ndim)]
    return np.pad(np.asarray(x), widths)
  # One group more, S and T longer.
  padded = jax.tree.map(lambda x: pad(x, **{'0': 1, '2': 3}), batch)
  padded = dataclasses.replace(
      padded, prompts=pad(batch.prompts, **{'0': 1, '1': 4}),
      prompt_lengths=np.append(batch.prompt_lengths, np.int32(1)))
  assert padded.completions.shape == (4, 4, 8)
  _assert_close(
      _accumulate(params, [padded]), _accumulate(params, [batch]), 1e-6)


def test_remat_changes_the_program_and_not_the_numbers(params, batch):
  remat = dataclasses.replace(SPEC, remat=True)
  # Two products in each of two layers; the backward pass repeats them.
  rows = 2 * 2 * (3 * 7 + 12 * 5)
  counts = [
      tiny.count_rows(_traced(spec), (params, batch), tiny.MLP_KERNEL)
      for spec in (SPEC, remat)]
  assert counts == [rows, 2 * rows]
  _assert_close(
      _accumulate(params, [batch], remat), _accumulate(params, [batch]), 1e-6)


@pytest.mark.parametrize('size', [1, 8])
def test_a_prompt_is_computed_once_for_its_group(params, size):
  base = tiny.make_batch()
  batch = dataclasses.replace(
      base, completions=tiny.ids(3, size, 5),
      completion_lengths=np.full((3, size), 5, np.int32),
      behavior_logprobs=np.zeros((3, size, 5), np.float32),
      advantages=np.ones((3, size), np.float32))
  # The candidates read its last token again; no other is repeated.
  rows = 3 * 7 + 3 * size * 5
  for fn in (_traced(ON_POLICY), _score):
    assert tiny.count_rows(fn, (params, batch), tiny.EMBEDDING) == rows
    # Two products in each of two layers.
    assert tiny.count_rows(fn, (params, batch), tiny.MLP_KERNEL) == 4 * rows


def test_masked_positions_have_no_logits(params, batch, monkeypatch):
  # Bite: chunks that are computed whatever counts in them.
  scored = []
  unembed = model.unembed

  def noting(params, config, hidden):
    jax.debug.callback(lambda: scored.append(hidden.shape[:-1]))
    return unembed(params, config, hidden)

  monkeypatch.setattr(model, 'unembed', noting)
  monkeypatch.setattr(train_step, '_LOGIT_CHUNKS', (4, 4))
  mask = np.asarray(train_step.completion_mask(batch))
  assert mask.size == 3 * 4 * 5 and mask.sum() == 35

  # A function of its own, which nothing has compiled before.
  def loss(params):
    logprobs, entropy = train_step._score(params, tiny.CONFIG, batch, SPEC)
    return jnp.sum(jnp.where(mask, logprobs + entropy, 0.0)), logprobs

  (_, logprobs), _ = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  jax.effects_barrier()
  # 9 of 15 chunks, once and again in the backward pass; there a third time,
  # which is left out where no callback asks for it.
  assert scored == [(4,)] * 3 * 9
  np.testing.assert_allclose(
      logprobs[mask], _score(params, batch)[mask], rtol=1e-5)


def test_chunks_of_logits_do_not_each_keep_the_head(monkeypatch):
  # Bite: a checkpoint within the condition, which keeps the head for each of
  # its 15 chunks.
  config = dataclasses.replace(tiny.CONFIG, vocab_size=65536)
  params = model.param_shapes(config)
  static = {'config': config, 'spec': ON_POLICY}
  sums = jax.eval_shape(
      functools.partial(train_step.zero_sums, **static), params)

  def temporary(chunk):
    monkeypatch.setattr(train_step, '_LOGIT_CHUNKS', (chunk, chunk))
    compiled = jax.jit(lambda *args: train_step.accumulate.__wrapped__(
        *args, **static)).lower(params, sums, tiny.make_batch()).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  one_chunk = temporary(60)
  assert temporary(4) < one_chunk
  head = params['embedding'].size * 4
  assert temporary(4) < 6 * head < 15 * head


# Sampler and learner.


def test_first_update_on_policy_has_ratio_one(params):
  prompts, prompt_lengths = tiny.make_prompts()
  samples = tiny.sample(
      params, scripted.one_device(), prompts, prompt_lengths,
      categorical.group_keys(jax.random.key(5), np.arange(3)[:, None]),
      budget=5, num_slots=(3,), spec=programs.SamplerSpec(
          group_size=4, temperature=1.0, stop_ids=(3, 7), dtype='float32'))
  batch = dataclasses.replace(
      tiny.make_batch(), completions=samples.completions,
      completion_lengths=samples.lengths, behavior_logprobs=samples.logprobs)
  mask = np.asarray(train_step.completion_mask(batch))
  assert mask.sum() > 30
  difference = np.asarray(_score(params, batch) - samples.logprobs)
  assert np.abs(difference[mask]).max() <= 1e-5

  sums = _accumulate(params, [batch], ON_POLICY)
  assert sums.metrics['clipped'] == 0
  assert sums.metrics['approx_kl'] == 0
  assert sums.metrics['mismatch'] <= 1e-5 * mask.sum()
  # The ratio is one, so the loss is that of the advantages.
  np.testing.assert_allclose(
      sums.loss, -np.sum(mask * batch.advantages[..., None]), rtol=1e-4)


# What is not finite.


def test_non_finite_gradients_change_nothing_and_are_named(params, batch):
  good = _accumulate(params, [batch])
  state, _, _ = _update(_state(params), good)
  before = jax.device_get(state)
  grads = jax.tree.map(jnp.copy, good.grads)
  down = grads['layers']['down']
  down['kernel'] = down['kernel'].at[0, 1, 0, 0].set(jnp.inf)
  bad = dataclasses.replace(good, grads=grads)

  for in_a_row in (1, 2):
    state, metrics, finite = _update(state, bad)
    _assert_same_bits(state.params, before.params)
    _assert_same_bits(
        state.opt_state.inner_state, before.opt_state.inner_state)
    assert int(state.num_updates) == 1
    assert metrics['nonfinite_in_a_row'] == in_a_row
    names = [
        jax.tree_util.keystr(path, simple=True, separator='/')
        for path, ok in jax.tree_util.tree_leaves_with_path(finite) if not ok]
    assert names == ['layers/down/kernel']

  state, metrics, finite = _update(state, good)
  assert metrics['nonfinite_in_a_row'] == 0
  assert jax.tree.all(finite)
  assert int(state.num_updates) == 2
  assert not np.array_equal(
      state.params['embedding'], before.params['embedding'])


def test_a_non_finite_advantage_is_caught(params, batch):
  advantages = np.array(batch.advantages)
  advantages[0, 0] = np.nan
  sums = _accumulate(
      params, [dataclasses.replace(batch, advantages=advantages)])
  state, metrics, _ = _update(_state(params), sums)
  _assert_same_bits(state.params, params)
  assert metrics['nonfinite_in_a_row'] == 1
  assert int(state.num_updates) == 0
