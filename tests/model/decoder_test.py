"""Parity with transformers, and causality.

tests/goldens/make_model_goldens.py made the goldens. tests/learner/
gradients_test.py compares groups with repeated prompts, tests/sampling/
programs_test.py compares decoding with one forward pass.
"""

import dataclasses
import functools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
NAMES = (
    'qwen3_tied', 'qwen3_untied', 'qwen3_sharded', 'qwen2_untied', 'llama_tied',
    'mistral_untied')


@functools.cache
def _golden(name):
  """(config, params, reference) of a golden model."""
  config = hub.load_config(GOLDENS / name)
  params = safetensors_lib.load_params(GOLDENS / name, config)
  with np.load(GOLDENS / 'model_reference.npz') as file:
    reference = {
        key.removeprefix(f'{name}/'): value for key, value in file.items()
        if key.startswith(f'{name}/')}
  return config, params, reference


@functools.partial(jax.jit, static_argnames='config')
def _whole(params, tokens, config):
  """Logits [P, G, X, V] of suffixes without a prefix."""
  hidden, _ = model.forward(params, config, tokens)
  return model.unembed(params, config, hidden)


@functools.partial(jax.jit, static_argnames=('config', 'dtype'))
def _shared(params, prompts, lengths, suffixes, config, dtype=jnp.float32):
  """Logits [P, G, X, V] of suffixes [P, G, X] over prompts [P, S]."""
  prefix = model.prefill(params, config, prompts, lengths, dtype=dtype)
  hidden, _ = model.forward(
      params, config, suffixes, prefix=prefix, dtype=dtype)
  return model.unembed(params, config, hidden)


@functools.partial(jax.jit, static_argnames=('config', 'num_steps'))
def _decode(params, prompts, lengths, first, config, num_steps):
  """Greedy tokens [P, T] behind prompts [P, S] and `first` [P]."""
  prefix = model.prefill(params, config, prompts, lengths)
  rows = model.Rows.of(None, first.size, 1)

  def step(state, index):
    last, cache = state
    hidden, cache = model.forward(
        params, config, last[:, None, None], prefix=prefix, cache=cache,
        cache_index=index, rows=rows)
    logits = model.unembed(params, config, hidden[:, 0, 0])
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return (tokens, cache), tokens

  cache = model.init_cache(
      config, first.size, length=num_steps, dtype=jnp.float32)
  _, tokens = jax.lax.scan(step, (first, cache), jnp.arange(num_steps))
  return tokens.T


def _group(config):
  """Random (prompts [P, S], lengths, suffixes [P, G, X])."""
  rng = np.random.default_rng(0)
  prompts = rng.integers(config.vocab_size, size=(2, 6), dtype=np.int32)
  suffixes = rng.integers(config.vocab_size, size=(2, 3, 5), dtype=np.int32)
  return prompts, np.array([6, 4], np.int32), suffixes


@pytest.mark.parametrize('name', NAMES)
def test_logits_match_transformers(name):
  config, params, reference = _golden(name)
  prompts = reference['prompts']
  mask = np.arange(prompts.shape[1]) < reference['lengths'][:, None]
  logits = np.asarray(_whole(params, prompts[:, None], config=config)[:, 0])
  for key in ('logits', 'logits_left'):
    np.testing.assert_allclose(
        logits[mask], reference[key][mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', NAMES)
def test_greedy_decoding_matches_transformers(name):
  config, params, reference = _golden(name)
  prompts, lengths = reference['prompts'], reference['lengths']
  expected = reference['continuations']
  last = prompts[np.arange(len(prompts)), lengths - 1]
  np.testing.assert_array_equal(
      _decode(
          params, prompts, lengths - 1, last, config=config,
          num_steps=expected.shape[1]), expected)


def test_causality_by_gradient():
  """Each logit depends on exactly the tokens before it.

  All tokens differ and the head is untied, so each row of the embedding's
  gradient belongs to one position.
  """
  config, params, _ = _golden('qwen3_untied')
  assert not config.tied_head
  prompts, lengths, suffixes = _group(config)
  ids = np.arange(prompts.size + suffixes.size, dtype=np.int32)
  prompts = ids[:prompts.size].reshape(prompts.shape)
  suffixes = ids[prompts.size:].reshape(suffixes.shape)

  @jax.jit
  def gradients(weights):
    return jax.grad(lambda params: jnp.vdot(weights, _shared(
        params, prompts, lengths, suffixes, config=config)))(params)

  for p, g, x in np.ndindex(suffixes.shape):
    weights = np.zeros((*suffixes.shape, config.vocab_size), np.float32)
    weights[p, g, x] = np.random.default_rng(2).normal(size=config.vocab_size)
    grads = gradients(weights)
    seen = np.flatnonzero(np.asarray(grads['embedding']).any(axis=1))
    expected = [*prompts[p, :lengths[p]], *suffixes[p, g, :x + 1]]
    assert seen.tolist() == expected, (p, g, x)


def test_initial_parameters():
  config, golden, _ = _golden('qwen3_untied')
  config = dataclasses.replace(config, init_std=0.02)
  params = jax.jit(lambda rng: model.init_params(rng, config))(
      jax.random.key(0))
  chex.assert_trees_all_equal_shapes(params, golden)
  kernel = params['layers']['down']['kernel']
  for weight in params['embedding'], params['head'], kernel:
    assert abs(np.std(weight) / config.init_std - 1) < 0.05
  assert abs(np.corrcoef(kernel[0].ravel(), kernel[1].ravel())[0, 1]) < 0.1


def test_bfloat16_is_near_float32():
  config, params, _ = _golden('qwen3_untied')
  inputs = _group(config)
  rounded = _shared(params, *inputs, config=config, dtype=jnp.bfloat16)
  assert rounded.dtype == jnp.float32
  logits = _shared(params, *inputs, config=config)
  error = np.asarray(rounded - logits)
  # Measured: 0.025 of the standard deviation of the logits.
  assert 0 < np.sqrt(np.mean(error**2)) / np.std(logits) < 0.04
