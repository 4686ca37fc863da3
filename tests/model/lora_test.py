"""model/lora.py: adapters change what they should and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from tests.rl import tiny

SPEC = model.LoraSpec(
    rank=3, alpha=6.0, targets=('attention/(q|v)/kernel', 'down/kernel'))
TOKENS = np.arange(24, dtype=np.int32).reshape(3, 2, 4) % tiny.CONFIG.vocab_size


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


def _random(num_roles, spec=SPEC, seed=1):
  """Adapters whose `b` is not 0."""
  shapes = jax.eval_shape(lambda: model.init_lora(
      jax.random.key(0), tiny.CONFIG, spec, num_roles))
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda x: 0.3 * rng.normal(size=x.shape).astype(np.float32), shapes)


@jax.jit
def _logits(params, tokens):
  hidden, _ = model.forward(params, tiny.CONFIG, tokens)
  return model.unembed(params, tiny.CONFIG, hidden)


def _adapted(params, weights, scales, ids=None, tokens=TOKENS):
  adapters = model.Adapters(weights, jnp.asarray(scales, jnp.float32))
  return _logits(model.with_adapters(params, adapters, ids), tokens)


def _merged(params, weights, index, scale):
  layers = jax.tree.map(lambda x: x, params['layers'])
  for parent, name in (
      (layers['attention'], 'q'), (layers['attention'], 'v'),
      (layers, 'down')):
    own = weights['attention'][name] if name != 'down' else weights['down']
    delta = jnp.einsum('lir,lro->lio', own['a'][index], own['b'][index])
    parent[name] = {'kernel': parent[name]['kernel'] + scale * delta}
  return params | {'layers': layers}


def test_fresh_adapters_change_nothing(params):
  weights = model.init_lora(jax.random.key(1), tiny.CONFIG, SPEC, 1)
  bound = tiny.CONFIG.intermediate_size**-0.5
  assert np.abs(weights['down']['a']).max() <= bound
  assert np.std(weights['down']['a']) > 0.4 * bound
  # Two programs, so equal to rounding.
  np.testing.assert_allclose(
      _adapted(params, weights, [2.0]), _logits(params, TOKENS), atol=2e-6)


def test_merged_equals_unmerged(params):
  weights = _random(1)
  found = _adapted(params, weights, [SPEC.scale])
  expected = _logits(_merged(params, weights, 0, SPEC.scale), TOKENS)
  assert np.abs(found - _logits(params, TOKENS)).max() > 0.01
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_of_one_batch_use_different_adapters(params):
  weights, ids, scales = _random(2), np.array([1, 0, 1]), [0.5, 2.0]
  found = _adapted(params, weights, scales, ids)
  for row, index in enumerate(ids):
    alone = _adapted(
        params, jax.tree.map(lambda x: x[index:index + 1], weights),
        scales[index:index + 1], tokens=TOKENS[row:row + 1])
    np.testing.assert_allclose(found[row], alone[0], atol=1e-5)


def test_decoding_uses_the_adapter_of_each_row(params):
  adapters = model.Adapters(_random(2), jnp.array([0.5, 2.0]))
  bound = model.with_adapters(params, adapters, np.array([1, 0, 1]))
  expected, _ = model.forward(bound, tiny.CONFIG, TOKENS)
  cache = model.init_cache(tiny.CONFIG, 6, 4, jnp.float32)
  step = jax.jit(lambda cache, index, tokens: model.forward(
      bound, tiny.CONFIG, tokens, cache=cache, cache_index=index))
  for index in range(4):
    hidden, cache = step(
        cache, index, TOKENS[:, :, index].reshape(-1, 1, 1))
    np.testing.assert_allclose(
        hidden.reshape(3, 2, -1), expected[:, :, index], atol=1e-5)


def test_smaller_ranks_are_filled_with_nothing(params):
  large = dataclasses.replace(SPEC, rank=5)
  first, second = _random(1), _random(1, large, seed=2)
  stacked = model.stack([first, second], [0.5, 2.0])
  assert stacked.weights['down']['a'].shape[-1] == 5
  found = _logits(
      model.with_adapters(params, stacked, np.array([0, 1, 0])), TOKENS)
  np.testing.assert_allclose(
      found[0], _adapted(params, first, [0.5])[0], atol=1e-5)
  np.testing.assert_allclose(
      found[1], _adapted(params, second, [2.0])[1], atol=1e-5)


@pytest.mark.parametrize('targets, said', [
    (('attention/x/kernel',), "'attention/x/kernel' matches no kernel"),
    (('embedding',), "'embedding' matches no kernel"),
    (('gate/kernel', 'norm.*'), r"'norm\.\*' matches no kernel"),
    ((), 'lora.targets is empty'),
])
def test_targets_that_hit_nothing_are_refused(targets, said):
  with pytest.raises(errors.UserError, match=said):
    model.init_lora(
        jax.random.key(0), tiny.CONFIG,
        dataclasses.replace(SPEC, targets=targets), 1)


def test_a_rank_of_nothing_is_refused():
  with pytest.raises(errors.UserError, match='lora.rank=0'):
    dataclasses.replace(SPEC, rank=0)
