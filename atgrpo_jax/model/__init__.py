"""Decoders as pure functions over plain parameter dicts."""

from atgrpo_jax.model.config import ModelConfig
from atgrpo_jax.model.decoder import cast
from atgrpo_jax.model.decoder import forward
from atgrpo_jax.model.decoder import head_params
from atgrpo_jax.model.decoder import init_params
from atgrpo_jax.model.decoder import kept_bytes
from atgrpo_jax.model.decoder import param_shapes
from atgrpo_jax.model.decoder import Params
from atgrpo_jax.model.decoder import prefill
from atgrpo_jax.model.decoder import transpose_layers
from atgrpo_jax.model.decoder import unembed
from atgrpo_jax.model.decoder import unstack
from atgrpo_jax.model.kernels import skips_padding
from atgrpo_jax.model.kv_cache import along_positions
from atgrpo_jax.model.kv_cache import append_chunk
from atgrpo_jax.model.kv_cache import CompletionCache
from atgrpo_jax.model.kv_cache import init_cache
from atgrpo_jax.model.kv_cache import PromptCache
from atgrpo_jax.model.kv_cache import RowCache
from atgrpo_jax.model.kv_cache import Rows
from atgrpo_jax.model.layers import TRANSPOSED
from atgrpo_jax.model.lora import Adapters
from atgrpo_jax.model.lora import describe
from atgrpo_jax.model.lora import init_lora
from atgrpo_jax.model.lora import LoraSpec
from atgrpo_jax.model.lora import stack
from atgrpo_jax.model.lora import Weights as LoraWeights
from atgrpo_jax.model.lora import with_adapters
from atgrpo_jax.model.products import fastest_dtype
