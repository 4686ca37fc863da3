"""diagnostics.py: each role's own gradient, entropy and way from the start."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import diagnostics
from atgrpo_jax.learner import gradients
from tests import specs
from tests.rl import tiny

SPEC = specs.learner(
    loss=specs.loss(kl_estimator='k3', kl_coefficient=0.5))
STATIC = {'config': tiny.CONFIG, 'spec': SPEC}
LORA = model.LoraSpec(
    rank=2, alpha=3.0, targets=('gate/kernel', 'down/kernel'))


def _diagnose(trained, batches, start, spec, frozen_params):
  mesh, = mesh_lib.make_meshes(
      ['all'], jax.devices()[:1], mesh_lib.MeshSpec()).values()
  roles = {}
  for role, own in batches.items():
    num_tokens = sum(batch.completion_lengths.sum().item() for batch in own)
    roles[role] = diagnostics.RoleBatches(own, num_tokens, num_tokens)
  return diagnostics.diagnose(
      trained, roles, functools.partial(gradients.score, start, **STATIC),
      frozen_params=frozen_params, mesh=mesh, config=tiny.CONFIG, spec=spec)


def _plain(params, batch):
  """Log-probabilities of a completion's tokens and entropies, as [P, G, T]."""
  logprobs = jax.nn.log_softmax(tiny.plain_logits(params, batch))
  logprobs = logprobs.reshape(*batch.completions.shape, -1)
  chosen = jnp.take_along_axis(logprobs, batch.completions[..., None], axis=-1)
  return chosen[..., 0], -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def _merged(params, adapter):
  """The model that an adapter of `LORA` makes of another."""
  layers = {
      name: {'kernel': params['layers'][name]['kernel']
             + LORA.alpha / LORA.rank * own['a'][0] @ own['b'][0]}
      for name, own in adapter.items()}
  return params | {'layers': params['layers'] | layers}


@pytest.mark.parametrize('adapted', [False, True])
def test_values_are_those_of_a_plain_model(adapted):
  # Bite: gradients of the base, an adapter that is left out or not scaled.
  params, batch = tiny.make_params(), tiny.make_batch()
  trained, frozen_params, spec, whole = params, None, SPEC, lambda x: x
  start = jax.tree.map(lambda x: 1.1 * x, params)
  if adapted:
    trained = jax.tree.map(
        lambda x: x + tiny.ids(*x.shape) / 64 - 0.25,
        model.init_lora(jax.random.key(1), tiny.CONFIG, LORA, 1))
    frozen_params = start = params
    spec = dataclasses.replace(SPEC, adapter_scale=LORA.scale)
    whole = functools.partial(_merged, params)
  mask = np.asarray(gradients.completion_mask(batch))
  reference = gradients.score(start, batch, **STATIC)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def plain_gradient(trained, advantages):
    logprobs, entropy = _plain(whole(trained), batch)
    # That of the KL to the start is log(policy / start) times this.
    gains = advantages[..., None] - 0.5 * jax.lax.stop_gradient(
        logprobs - reference)
    gains = jnp.where(mask, gains * logprobs, 0.0)
    return -jnp.sum(gains) / mask.sum(), (logprobs, entropy)

  advantages = batch.advantages, np.roll(batch.advantages, 1, axis=0)
  one, (logprobs, entropy) = plain_gradient(trained, advantages[0])
  other, _ = plain_gradient(trained, advantages[1])
  values = _diagnose(
      trained, {
          # A mean does not depend on how often the same is said.
          role: repeats * [dataclasses.replace(
              batch, advantages=own, behavior_logprobs=logprobs)]
          for role, own, repeats in zip(('one', 'other'), advantages, (1, 2))},
      start, spec, frozen_params)
  norms = float(optax.tree.norm(one)), float(optax.tree.norm(other))
  cosine = float(optax.tree.vdot(one, other)) / norms[0] / norms[1]
  entropy = np.mean(np.asarray(entropy)[mask])
  way = np.asarray(reference - logprobs)[mask]
  kl = np.mean(np.exp(way) - 1 - way)
  assert kl > 0.01 and abs(cosine) < 0.9
  assert 0.5 < entropy < 0.95 * np.log(tiny.CONFIG.vocab_size)
  assert values == pytest.approx({
      'one/grad_norm': norms[0], 'other/grad_norm': norms[1],
      'cosine/one+other': cosine, 'one/entropy': entropy,
      'other/entropy': entropy, 'one/kl_to_start': kl, 'other/kl_to_start': kl,
  }, rel=1e-4)
