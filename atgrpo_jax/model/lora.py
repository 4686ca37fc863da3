"""Low-rank adapters (LoRA, arXiv 2106.09685) over one frozen model.

The adapters of A roles are stacked, so one compiled program serves all roles,
and the groups of a batch may use different adapters. R is the rank; other
letters as in `atgrpo_jax.model.decoder`.
"""

from collections.abc import Sequence
import dataclasses
import re

from flax import struct
from flax import traverse_util
import jax
import jax.numpy as jnp

from atgrpo_jax import errors
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder

# Nested like the layers' parameters, with {'a': [A, L, in, R], 'b': [A, L, R,
# out]} float32 in place of a kernel [L, in, out].
Weights = dict


@dataclasses.dataclass(frozen=True)
class LoraSpec:
  """Shape and targets of adapters."""

  rank: int  # R
  alpha: float  # Adapter outputs are scaled by alpha / R.
  # Regular expressions. A kernel whose whole name matches has an adapter, such
  # as `attention/q/kernel` or `gate/kernel`.
  targets: tuple[str, ...]

  def __post_init__(self):
    errors.check_number('lora.rank', self.rank, min_value=1)
    errors.check_number('lora.alpha', self.alpha, greater_than=0)
    for target in self.targets:
      try:
        re.compile(target)
      except (TypeError, re.error) as error:
        raise errors.UserError(
            f'lora.targets: {target!r} is not a regular expression ({error}); '
            'use one such as attention/[qkvo]/kernel.') from error

  @property
  def scale(self) -> float:
    return self.alpha / self.rank


@struct.dataclass
class Adapters:
  """Adapters of A roles."""

  weights: Weights
  scales: jax.Array  # [A] float32, alpha / R


def init_lora(
    rng: jax.Array, config: config_lib.ModelConfig, spec: LoraSpec) -> Weights:
  """An adapter (A = 1) without effect: b = 0, and a is uniform as in PEFT."""
  shapes = traverse_util.flatten_dict(
      decoder.param_shapes(config)['layers'], sep='/')
  kernels = {
      name: leaf.shape for name, leaf in shapes.items() if leaf.ndim == 3}
  matches = {
      target: [name for name in kernels if re.fullmatch(target, name)]
      for target in spec.targets}
  if not matches or not all(matches.values()):
    raise errors.UserError(
        f'lora.targets={spec.targets!r}: expected patterns that each match '
        f'some of {", ".join(kernels)}.')
  weights = {}
  for index, name in enumerate(sorted(set().union(*matches.values()))):
    num_layers, num_in, num_out = kernels[name]
    module, bound = name.removesuffix('/kernel'), num_in**-0.5
    weights[f'{module}/a'] = jax.random.uniform(
        jax.random.fold_in(rng, index), (1, num_layers, num_in, spec.rank),
        minval=-bound, maxval=bound)
    weights[f'{module}/b'] = jnp.zeros((1, num_layers, spec.rank, num_out))
  return traverse_util.unflatten_dict(weights, sep='/')


def describe(weights: Weights) -> tuple[int, tuple[str, ...]]:
  """The rank and the `LoraSpec.targets` of adapters."""
  ranks = {
      path.removesuffix('/a') + '/kernel': leaf.shape[-1]
      for path, leaf in traverse_util.flatten_dict(weights, sep='/').items()
      if path.endswith('/a')}
  return max(ranks.values()), tuple(sorted(ranks))


def stack(
    weights: Sequence[Weights], scales: Sequence[float]) -> Adapters:
  """Joins adapters with the same targets on the role axis.

  Smaller ranks are padded with zeros, which have no effect.
  """
  rank = max(describe(tree)[0] for tree in weights)

  def fill(path, leaf):
    axis = leaf.ndim - (1 if path[-1].key == 'a' else 2)
    missing = [(0, 0)] * leaf.ndim
    missing[axis] = (0, rank - leaf.shape[axis])
    return jnp.pad(leaf, missing)

  filled = [jax.tree_util.tree_map_with_path(fill, tree) for tree in weights]
  return Adapters(
      jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *filled),
      jnp.array(scales, jnp.float32))


def with_adapters(
    params: decoder.Params, adapters: Adapters,
    ids: jax.Array | None = None) -> decoder.Params:
  """Adds the adapter of each group to the linear layers.

  `ids` [P] int32 is the adapter of each group; None if there is one adapter.
  Every group is multiplied by all adapters, and the results of the others by 0.
  The adapters are small, and groups with different ones may be in any order.
  """
  scales = adapters.scales[:, None, None, None]
  flat, bound = traverse_util.flatten_dict(adapters.weights), {}
  for path, leaf in flat.items():
    if path[-1] == 'a':  # [A, L, in, R] -> [L, in, A * R]
      leaf = jnp.moveaxis(leaf, 0, 2)
      bound[path] = leaf.reshape(*leaf.shape[:2], -1)
      if ids is not None:
        use = jax.nn.one_hot(ids, len(adapters.scales))
        bound[*path[:-1], 'use'] = jnp.broadcast_to(
            use, (len(leaf), *use.shape))
    else:  # [A, L, R, out] -> [L, A * R, out]
      leaf = jnp.swapaxes(leaf * scales, 0, 1)
      bound[path] = leaf.reshape(len(leaf), -1, leaf.shape[-1])
  return params | {'lora': traverse_util.unflatten_dict(bound)}
