"""Names and shapes of the tensors of each model family.

One table serves import and export, so they are inverse. A parameter of the
layers stacks all layers in one leaf, [L, ...]; a tensor belongs to one layer.
The tensor of a linear layer is [out, in], its kernel is [in, out].
"""

from __future__ import annotations

import dataclasses

from flax import traverse_util

from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder

HEAD = 'lm_head.weight'

# Module of a layer -> (path of the leaf below `layers`, transposed).
LAYER = {
    'self_attn.q_proj': ('attention.q.kernel', True),
    'self_attn.k_proj': ('attention.k.kernel', True),
    'self_attn.v_proj': ('attention.v.kernel', True),
    'self_attn.o_proj': ('attention.o.kernel', True),
    'self_attn.q_norm': ('attention.q_norm.scale', False),
    'self_attn.k_norm': ('attention.k_norm.scale', False),
    'input_layernorm': ('attention_norm.scale', False),
    'post_attention_layernorm': ('mlp_norm.scale', False),
    'mlp.gate_proj': ('gate.kernel', True),
    'mlp.up_proj': ('up.kernel', True),
    'mlp.down_proj': ('down.kernel', True),
}


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A leaf of the parameters."""

  path: str  # Dotted, such as `layers.attention.q.kernel`.
  tensors: tuple[str, ...]  # Their names; L if the leaf is stacked, else 1.
  transposed: bool = False  # The tensor is [out, in], the leaf [in, out].
  stacked: bool = False  # The first axis of the leaf is the layer.


def leaves(config: config_lib.ModelConfig) -> list[Leaf]:
  """All leaves of the parameters."""
  head = [] if config.tied_head else [Leaf('head', (HEAD,), transposed=True)]
  return [
      Leaf('embedding', ('model.embed_tokens.weight',)),
      Leaf('norm.scale', ('model.norm.weight',)),
      *head,
      *(Leaf(f'layers.{path}', tuple(
          f'model.layers.{i}.{module}.weight'
          for i in range(config.num_layers)), transposed, stacked=True)
        for module, (path, transposed) in LAYER.items())]


def tensor_shapes(
    config: config_lib.ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of every tensor of a model folder."""
  params = traverse_util.flatten_dict(decoder.param_shapes(config), sep='.')
  shapes = {}
  for leaf in leaves(config):
    shape = params[leaf.path].shape
    shape = shape[1:] if leaf.stacked else shape
    shapes |= dict.fromkeys(
        leaf.tensors, shape[::-1] if leaf.transposed else shape)
  return shapes
