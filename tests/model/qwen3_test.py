"""model/qwen3.py: transformers' numbers, however the work is cut.

The goldens were made by transformers; see tests/goldens/make_qwen3_goldens.py.
Whatever shape a test needs, it asks the compiled functions below, so that one
compilation serves several tests.
"""

import dataclasses
import functools
import pathlib
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors_file

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
NAMES = ('qwen3_tied', 'qwen3_untied', 'qwen3_sharded')


@functools.cache
def _golden(name):
  """(config, params, reference) of a golden model."""
  config = hub.load_config(GOLDENS / name)
  params = safetensors_file.load_params(GOLDENS / name, config)
  with np.load(GOLDENS / 'qwen3_reference.npz') as file:
    reference = {
        key.removeprefix(f'{name}/'): value for key, value in file.items()
        if key.startswith(f'{name}/')}
  return config, params, reference


@functools.partial(jax.jit, static_argnames='config')
def _whole(params, tokens, config):
  """Logits [P, G, X, V] of suffixes without a prefix."""
  hidden, _ = model.forward(params, config, tokens)
  return model.unembed(params, config, hidden)


@functools.partial(
    jax.jit, static_argnames=('config', 'dtype', 'remat'))
def _shared(
    params, prompts, lengths, suffixes, config, dtype=jnp.float32,
    remat=False):
  """Logits [P, G, X, V] of suffixes [P, G, X] over prompts [P, S]."""
  prefix = model.prefill(
      params, config, prompts, lengths, dtype=dtype, remat=remat)
  hidden, _ = model.forward(
      params, config, suffixes, prefix=prefix, dtype=dtype, remat=remat)
  return model.unembed(params, config, hidden)


@functools.partial(jax.jit, static_argnames='config')
def _repeated(params, prompts, lengths, suffixes, config):
  """`_shared`, computed with a prompt for each candidate."""
  num_groups, candidates, length = suffixes.shape
  at = jnp.arange(prompts.shape[1] + length)
  before = jnp.pad(prompts, [(0, 0), (0, length)])[:, None]
  after = jnp.clip(at - lengths[:, None], 0, length - 1)[:, None]
  after = jnp.take_along_axis(suffixes, after, axis=2)
  rows = jnp.where(at < lengths[:, None, None], before, after)
  logits = _whole(params, rows.reshape(-1, 1, at.size), config=config)
  at = jnp.repeat(lengths, candidates)[:, None] + jnp.arange(length)
  logits = jnp.take_along_axis(logits[:, 0], at[..., None], axis=1)
  return logits.reshape(num_groups, candidates, length, -1)


@functools.partial(jax.jit, static_argnames=('logits_fn', 'config'))
def _gradients(logits_fn, params, inputs, weights, config):
  """Logits, and the gradients of their sum with weights [P, G, X, V]."""
  logits, vjp = jax.vjp(
      lambda params: logits_fn(params, *inputs, config=config), params)
  return logits, vjp(weights)[0]


@functools.partial(jax.jit, static_argnames=('config', 'num_steps'))
def _decode(params, prompts, lengths, first, config, num_steps):
  """Greedy decoding, one token at a time over a prefix and a cache.

  Args:
    params: of the model.
    prompts: [P, S] int32.
    lengths: [P] int32.
    first: [P, G] int32, the tokens after the prompts.
    config: of the model.
    num_steps: how many tokens to decode.

  Returns:
    tokens: [P, G, T] int32.
    logits: [P, G, T, V] float32, that they were the best of.
  """
  prefix = model.prefill(params, config, prompts, lengths)
  rows = model.Rows.of(None, *first.shape)

  def step(state, index):
    last, cache = state
    hidden, cache = model.forward(
        params, config, last.reshape(-1, 1, 1), prefix=prefix, cache=cache,
        cache_index=index, rows=rows)
    logits = model.unembed(params, config, hidden.reshape(*first.shape, -1))
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return (tokens, cache), (tokens, logits)

  cache = model.init_cache(
      config, first.size, length=num_steps, dtype=jnp.float32)
  _, (tokens, logits) = jax.lax.scan(
      step, (first, cache), jnp.arange(num_steps))
  return jnp.moveaxis(tokens, 0, 2), jnp.moveaxis(logits, 0, 2)


@functools.cache
def _greedy(name):
  """`_decode` of a golden; candidate 1 begins with another token."""
  config, params, reference = _golden(name)
  prompts, lengths = reference['prompts'], reference['lengths']
  last = np.take_along_axis(prompts, lengths[:, None] - 1, axis=1)
  first = np.concatenate([last, (last + 5) % config.vocab_size], axis=1)
  tokens, logits = _decode(
      params, prompts, lengths - 1, first, config=config,
      num_steps=reference['continuations'].shape[1])
  return first, np.asarray(tokens), np.asarray(logits)


def _mask(lengths, length):
  return np.arange(length) < np.asarray(lengths)[:, None]


def _group(config):
  """Random (prompts [P, S], lengths, suffixes [P, G, X])."""
  rng = np.random.default_rng(0)
  prompts = rng.integers(config.vocab_size, size=(2, 6), dtype=np.int32)
  suffixes = rng.integers(config.vocab_size, size=(2, 3, 5), dtype=np.int32)
  return prompts, np.array([6, 4], np.int32), suffixes


def _difference(x, y):
  """Largest difference, relative to the largest value."""
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  return abs(x - y).max() / abs(y).max()


# The same numbers as transformers.


@pytest.mark.parametrize('name', NAMES)
def test_logits_match_transformers(name):
  # Bite: rope_theta or norm_eps fixed to their defaults, rotated pairs that
  # are neighbours, scores that are not scaled, norms exchanged, a head that
  # reads the wrong key head.
  config, params, reference = _golden(name)
  prompts = reference['prompts']
  mask = _mask(reference['lengths'], prompts.shape[1])
  logits = np.asarray(_whole(params, prompts[:, None], config=config)[:, 0])
  for key in ('logits', 'logits_left'):
    np.testing.assert_allclose(
        logits[mask], reference[key][mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', NAMES)
def test_greedy_decoding_matches_transformers(name):
  # Bite: cache written one place off, positions that forget the prompt.
  _, tokens, _ = _greedy(name)
  expected = _golden(name)[2]['continuations']
  assert expected.shape[1] == 64
  np.testing.assert_array_equal(tokens[:, 0], expected)


# One model, whichever way the sequence is cut.


def test_decoding_equals_one_forward():
  # Bite: keys of another candidate, an unmasked rest of the cache. The last
  # prompt has one token, so that its prefix is empty.
  name = 'qwen3_tied'
  config, params, reference = _golden(name)
  first, tokens, logits = _greedy(name)
  assert (tokens[:, 0] != tokens[:, 1]).any()
  suffixes = np.concatenate([first[..., None], tokens[..., :-1]], axis=2)
  inputs = params, reference['prompts'], reference['lengths'] - 1, suffixes
  for other in (_shared, _repeated):
    assert _difference(logits, other(*inputs, config=config)) < 1e-5


def test_shared_prefix_equals_repeated_prompts():
  # Bite: a sum for each block of scores, positions that start from 0, a
  # stop_gradient on the prefix.
  config, params, _ = _golden('qwen3_untied')
  inputs = _group(config)
  weights = np.random.default_rng(1).normal(
      size=(*inputs[2].shape, config.vocab_size)).astype(np.float32)
  logits, grads = _gradients(_shared, params, inputs, weights, config=config)
  repeated, repeated_grads = _gradients(
      _repeated, params, inputs, weights, config=config)
  assert _difference(logits, repeated) < 1e-5
  differences = jax.tree.map(_difference, grads, repeated_grads)
  assert max(jax.tree.leaves(differences)) < 1e-5, differences


def test_scores_may_be_large():
  # Bite: a maximum over the scores of the suffix alone, which overflows.
  config, params, _ = _golden('qwen3_untied')
  params = jax.tree.map(lambda leaf: leaf, params)  # Its dicts are its own.
  params['layers']['attention']['q_norm']['scale'] *= 100
  inputs = _group(config)
  weights = np.ones((*inputs[2].shape, config.vocab_size), np.float32)
  results, repeated = (
      _gradients(logits_fn, params, inputs, weights, config=config)
      for logits_fn in (_shared, _repeated))
  chex.assert_tree_all_finite(results)
  assert _difference(results[0], repeated[0]) < 1e-3


def test_padding_of_the_prefix_changes_nothing():
  # Bite: a prefix mask that counts one position too many.
  config, params, _ = _golden('qwen3_untied')
  prompts, lengths, suffixes = _group(config)
  logits = _shared(params, prompts, lengths, suffixes, config=config)
  mask = _mask(lengths, prompts.shape[1])
  assert not mask.all()
  junk = np.where(mask, prompts, 17)
  np.testing.assert_array_equal(
      logits, _shared(params, junk, lengths, suffixes, config=config))
  longer = np.pad(junk, [(0, 0), (0, 7)], constant_values=3)
  padded = _shared(params, longer, lengths, suffixes, config=config)
  assert _difference(padded, logits) < 1e-6


# Who sees whom.


def test_causality_by_gradient():
  """Each logit depends on what its token sees, and on nothing else.

  All tokens differ and the head is not the embedding, so the gradient for a
  row of the embedding is the gradient for one position.
  """
  # Bite: `<` for `<=` in the mask or the other way round, candidates that see
  # each other, a prefix mask that is not applied.
  config, params, _ = _golden('qwen3_untied')
  assert not config.tied_head
  prompts, lengths, suffixes = _group(config)
  ids = np.arange(prompts.size + suffixes.size, dtype=np.int32)
  prompts = ids[:prompts.size].reshape(prompts.shape)
  suffixes = ids[prompts.size:].reshape(suffixes.shape)
  for p, g, x in np.ndindex(suffixes.shape):
    weights = np.zeros((*suffixes.shape, config.vocab_size), np.float32)
    weights[p, g, x] = np.random.default_rng(2).normal(size=config.vocab_size)
    _, grads = _gradients(
        _shared, params, (prompts, lengths, suffixes), weights, config=config)
    seen = np.flatnonzero(np.asarray(grads['embedding']).any(axis=1))
    expected = [*prompts[p, :lengths[p]], *suffixes[p, g, :x + 1]]
    assert seen.tolist() == expected, (p, g, x)


# Sizes, types, memory.


# Hidden size, MLP width, layers, query heads, tied head, parameters. The
# numbers of parameters are those that transformers reports for the models on
# the hub.
SIZES = {
    '0.6b': (1024, 3072, 28, 16, True, 596_049_920),
    '1.7b': (2048, 6144, 28, 16, True, 1_720_574_976),
    '4b': (2560, 9728, 36, 32, True, 4_022_468_096),
    '8b': (4096, 12288, 36, 32, False, 8_190_735_360),
}


@pytest.mark.parametrize('size', SIZES)
def test_sizes(size):
  # Bite: a head width taken from width / heads, a head beside a tied one.
  width, intermediate_size, num_layers, num_heads, tied, expected = SIZES[size]
  config = model.ModelConfig(
      vocab_size=151936, hidden_size=width, intermediate_size=intermediate_size,
      num_layers=num_layers, num_heads=num_heads, num_kv_heads=8,
      head_dim=128, rope_theta=1e6, norm_eps=1e-6, tied_head=tied,
      max_positions=40960, init_std=0.02)
  params = jax.eval_shape(
      lambda: model.init_params(jax.random.key(0), config))
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
      jnp.dtype('float32')}
  # The parameters fit the forward pass.
  spec = jax.ShapeDtypeStruct
  logits = jax.eval_shape(
      functools.partial(_shared, config=config, dtype=jnp.bfloat16), params,
      spec((2, 8), jnp.int32), spec((2,), jnp.int32),
      spec((2, 3, 4), jnp.int32))
  assert logits == spec((2, 3, 4, 151936), jnp.float32)


def test_fresh_parameters():
  config = dataclasses.replace(_golden('qwen3_untied')[0], init_std=0.02)
  params = jax.jit(lambda rng: model.init_params(rng, config))(
      jax.random.key(0))
  chex.assert_trees_all_equal_shapes(params, _golden('qwen3_untied')[1])
  layers = params['layers']
  for scale in (
      params['norm'], layers['attention']['q_norm'], layers['mlp_norm']):
    np.testing.assert_array_equal(scale['scale'], 1)
  for weight in (
      params['embedding'], params['head'], layers['gate']['kernel'],
      layers['attention']['q']['kernel']):
    assert abs(np.std(weight) / config.init_std - 1) < 0.05
  kernel = layers['down']['kernel']
  assert abs(np.corrcoef(kernel[0].ravel(), kernel[1].ravel())[0, 1]) < 0.1


def test_bfloat16_is_for_products_alone():
  # Bite: a softmax or a norm in bfloat16, logits that are rounded.
  config, params, _ = _golden('qwen3_untied')
  inputs = _group(config)
  rounded_fn = functools.partial(_shared, config=config, dtype=jnp.bfloat16)
  program = str(jax.make_jaxpr(rounded_fn)(params, *inputs))
  types = {
      (operation, dtype) for dtype, operation in re.findall(
          r':(\w+)\[[\d,]*\] = (dot_general|\w+)', program)}
  assert ('dot_general', 'bf16') in types
  for operation in ('exp', 'reduce_max', 'reduce_sum', 'rsqrt', 'cos', 'sin'):
    assert (operation, 'f32') in types
    assert (operation, 'bf16') not in types

  rounded = rounded_fn(params, *inputs)
  assert rounded.dtype == jnp.float32
  logits = _shared(params, *inputs, config=config)
  error = np.asarray(rounded - logits)
  # Measured: 0.025 of the spread of the logits.
  assert 0 < np.sqrt(np.mean(error**2)) / np.std(logits) < 0.04


def test_remat_changes_the_program_and_not_the_numbers():
  config, params, _ = _golden('qwen3_untied')
  inputs = _group(config)
  weights = np.ones((*inputs[2].shape, config.vocab_size), np.float32)
  plain = functools.partial(_gradients, _shared, config=config)
  remat = functools.partial(
      _gradients, functools.partial(_shared, remat=True), config=config)
  inputs = params, inputs, weights
  assert 'remat' not in str(jax.make_jaxpr(plain)(*inputs))
  assert 'remat' in str(jax.make_jaxpr(remat)(*inputs))
  differences = jax.tree.map(_difference, remat(*inputs), plain(*inputs))
  assert max(jax.tree.leaves(differences)) < 3e-6, differences
