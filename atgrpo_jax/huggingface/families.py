"""Names and shapes of the tensors of a model folder.

One table serves all families, import and export. A parameter of the layers
stacks all layers in one leaf, [L, ...]; a tensor belongs to one layer. The
tensor of a linear layer is [out, in], its kernel is [in, out].
"""

import dataclasses
import functools

from flax import traverse_util
import jax

from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder

HEAD, EMBEDDING = 'lm_head.weight', 'model.embed_tokens.weight'

# Tensor of a layer -> (path of the leaf below `layers`, transposed). Only some
# families have biases, or norms of q and k.
LAYER = {
    'self_attn.q_proj.weight': ('attention.q.kernel', True),
    'self_attn.k_proj.weight': ('attention.k.kernel', True),
    'self_attn.v_proj.weight': ('attention.v.kernel', True),
    'self_attn.q_proj.bias': ('attention.q.bias', False),
    'self_attn.k_proj.bias': ('attention.k.bias', False),
    'self_attn.v_proj.bias': ('attention.v.bias', False),
    'self_attn.o_proj.weight': ('attention.o.kernel', True),
    'self_attn.q_norm.weight': ('attention.q_norm.scale', False),
    'self_attn.k_norm.weight': ('attention.k_norm.scale', False),
    'input_layernorm.weight': ('attention_norm.scale', False),
    'post_attention_layernorm.weight': ('mlp_norm.scale', False),
    'mlp.gate_proj.weight': ('gate.kernel', True),
    'mlp.up_proj.weight': ('up.kernel', True),
    'mlp.down_proj.weight': ('down.kernel', True),
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
  params = _param_shapes(config)
  head = [] if config.tied_head else [Leaf('head', (HEAD,), transposed=True)]
  return [
      Leaf('embedding', (EMBEDDING,)),
      Leaf('norm.scale', ('model.norm.weight',)),
      *head,
      *(Leaf(f'layers.{path}', tuple(
          f'model.layers.{i}.{tensor}' for i in range(config.num_layers)),
             transposed, stacked=True)
        for tensor, (path, transposed) in LAYER.items()
        if f'layers.{path}' in params)]


def tensor_shapes(
    config: config_lib.ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of every tensor of a model folder."""
  params, shapes = _param_shapes(config), {}
  for leaf in leaves(config):
    shape = params[leaf.path].shape
    shape = shape[1:] if leaf.stacked else shape
    shapes |= dict.fromkeys(
        leaf.tensors, shape[::-1] if leaf.transposed else shape)
  return shapes


@functools.cache
def _param_shapes(
    config: config_lib.ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
  return traverse_util.flatten_dict(decoder.param_shapes(config), sep='.')
