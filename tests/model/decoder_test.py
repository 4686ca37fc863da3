"""Parity with transformers.

tests/goldens/make_model_goldens.py made the goldens. tests/learner/
gradients_test.py compares groups with repeated prompts, tests/sampling/
programs_test.py compares decoding with one forward pass.
"""

import dataclasses
import functools
import pathlib

import chex
import jax
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.sampling import programs
from tests.rl import tiny
from tests.rollout import scripted

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
def _logits(params, tokens, config):
  """Logits [P, X, V] of tokens [P, X]."""
  hidden, _ = model.forward(params, config, tokens[:, None])
  return model.unembed(params, config, hidden[:, 0])


@pytest.mark.parametrize('name', NAMES)
def test_logits_match_transformers(name):
  config, params, reference = _golden(name)
  prompts = reference['prompts']
  mask = np.arange(prompts.shape[1]) < reference['lengths'][:, None]
  logits = np.asarray(_logits(params, prompts, config=config))
  for key in ('logits', 'logits_left'):
    np.testing.assert_allclose(
        logits[mask], reference[key][mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', NAMES)
def test_greedy_decoding_matches_transformers(name):
  config, params, reference = _golden(name)
  expected = reference['continuations']
  groups = tiny.sample(
      params, scripted.one_device(), reference['prompts'], reference['lengths'],
      np.zeros((len(expected), 1)), num_slots=(len(expected),), config=config,
      budget=expected.shape[1], spec=programs.SamplerSpec(
          group_size=1, temperature=0.0, stop_ids=(), dtype='float32'))
  np.testing.assert_array_equal(
      [ids for group in groups for ids in group.completions], expected)


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
