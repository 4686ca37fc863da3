"""Model weights from and to safetensors files, sharded or not.

`families` maps tensors to parameters. Both directions demand a bijection: a
missing, surplus or mis-shaped tensor raises an error that lists the names.

A process reads only the shards of its devices, one parameter at a time. Export
holds one file of at most `_MAX_FILE_BYTES` at a time, with copies.
All processes call both functions.
"""

from collections.abc import Callable, Mapping
import functools
import json
import math
import pathlib
from typing import Any

from flax import traverse_util
import huggingface_hub
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.huggingface import families
from atgrpo_jax.huggingface import hub
from atgrpo_jax.io import files
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder

_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_TYPES = ('F32', 'F16', 'BF16')
_MAX_FILE_BYTES = 2 * 10**9

# Tensor name -> a lazy tensor, which reads only the elements of a slice. It has
# `get_shape` and `get_dtype`.
Tensors = dict[str, Any]


def load_params(
    folder: str | pathlib.Path, config: config_lib.ModelConfig,
    dtype: jnp.dtype = jnp.float32, shardings=None) -> decoder.Params:
  """Loads the weights of a model folder onto the devices as `dtype`.

  `config` is the content of its `config.json`, and `shardings` a tree like the
  parameters, of `jax.sharding.Sharding`s; None for the default device.

  Raises UserError with all tensors that do not fit the config, or one with NaN
  or infinity.
  """
  folder, dtype = pathlib.Path(folder), np.dtype(dtype)
  tensors = {}
  for path in _weight_files(folder):
    tensors |= open_tensors(path)
  # Qwen3-0.6B and 1.7B are tied but store the head.
  head = tensors.pop(families.HEAD, None) if config.tied_head else None
  compare(folder, tensors, families.tensor_shapes(config))
  if head is not None and not np.array_equal(
      head[:], tensors[families.EMBEDDING][:]):
    check_finite(folder, families.HEAD, head[:])  # NaN differs from itself.
    raise errors.UserError(
        f'{folder}: {families.HEAD} differs from {families.EMBEDDING}, but '
        'config.json has tie_word_embeddings=true; set it to false to use '
        'both.')
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, decoder.param_shapes(config))
  shardings = traverse_util.flatten_dict(shardings, sep='.')
  return traverse_util.unflatten_dict({
      leaf.path: _load_leaf(
          folder, leaf, tensors, dtype, shardings[leaf.path])
      for leaf in families.leaves(config)}, sep='.')


def save(
    folder: str | pathlib.Path, params: decoder.Params,
    config: config_lib.ModelConfig, dtype: jnp.dtype) -> None:
  """Writes `config.json` and the weights as `dtype`.

  The first process that holds `params` writes. The others only take part in
  fetching and may return before the files are complete. `folder` must not hold
  weights already, because the number of files may differ.
  """
  processes = hosts.holders(params)
  if jax.process_index() not in processes:
    return
  dtype, params = jnp.dtype(dtype), traverse_util.flatten_dict(params, sep='.')
  source = {
      name: (leaf, layer if leaf.stacked else None)
      for leaf in families.leaves(config)
      for layer, name in enumerate(leaf.tensors)}

  def read_tensor(name):
    leaf, layer = source[name]
    return fetch(_take(params[leaf.path], layer, leaf.transposed, dtype))

  write_model(
      folder, config, dtype, read_tensor,
      is_writer=jax.process_index() == processes[0])


def write_model(
    folder: str | pathlib.Path, config: config_lib.ModelConfig,
    dtype: np.dtype, read_tensor: Callable[[str], np.ndarray],
    is_writer: bool = True) -> None:
  """Writes `config.json` and the weights in files of limited size.

  `read_tensor` returns the tensor of a name as `dtype`. A process that is not
  the writer only calls it.
  """
  folder = pathlib.Path(folder)
  if is_writer:
    folder.mkdir(parents=True, exist_ok=True)
    fields = config_lib.to_hf(config, dtype.name)
    (folder / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')
  shards = huggingface_hub.split_state_dict_into_shards_factory(
      families.tensor_shapes(config),
      get_storage_size=lambda shape: math.prod(shape) * dtype.itemsize,
      filename_pattern='model{suffix}.safetensors',
      max_shard_size=_MAX_FILE_BYTES)
  for file, names in shards.filename_to_tensors.items():
    tensors = {name: read_tensor(name) for name in names}
    if is_writer:
      write_tensors(folder / file, tensors)
  if is_writer and shards.is_sharded:
    (folder / _INDEX).write_text(json.dumps({
        'metadata': shards.metadata, 'weight_map': shards.tensor_to_filename,
    }, indent=2) + '\n')


def open_tensors(path: pathlib.Path) -> Tensors:
  """The tensors of a safetensors file."""
  try:
    file = safetensors.safe_open(path, framework='np')
  except (OSError, safetensors.SafetensorError) as error:
    raise errors.UserError(
        f'{path} is not a complete safetensors file ({error}); copy or '
        'download it again.') from error
  return {name: file.get_slice(name) for name in file.keys()}


def write_tensors(
    path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file as transformers and PEFT do."""
  # safetensors ignores strides, and its `save_file` sets the mode 0600.
  tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
  path.write_bytes(safetensors_numpy.save(tensors, {'format': 'pt'}))


def fetch(x: jax.Array) -> np.ndarray:
  """`x` on the host; all processes that hold a part must call this."""
  if x.is_fully_addressable:
    return np.asarray(x)
  return multihost_utils.process_allgather(x, tiled=True)


def check_finite(
    folder: pathlib.Path, name: str, array: np.ndarray) -> None:
  """Raises UserError if a tensor of a folder holds NaN or infinity."""
  if not np.isfinite(array).all():
    raise errors.UserError(
        f'{folder}: {name} holds NaN or infinity as {array.dtype}; get the '
        'weights from another source, or train them again.')


def compare(
    folder: pathlib.Path, actual: Tensors,
    expected: Mapping[str, tuple[int, ...]],
    fit: str = 'config.json') -> None:
  """Raises UserError, which lists the tensors that differ from `expected`."""
  problems = [f'missing {name}' for name in sorted(expected.keys() - actual)]
  problems += [f'surplus {name}' for name in sorted(actual.keys() - expected)]
  for name in sorted(actual.keys() & expected):
    shape, kind = tuple(actual[name].get_shape()), actual[name].get_dtype()
    if shape != tuple(expected[name]):
      problems.append(f'{name} has shape {shape}, expected {expected[name]}')
    elif kind not in _TYPES:
      problems.append(
          f'{name} has type {kind}, expected one of {", ".join(_TYPES)}')
  if problems:
    shown = '; '.join(problems[:10])
    more = f'; and {len(problems) - 10} more' if len(problems) > 10 else ''
    raise errors.UserError(
        f'The weights in {folder} do not fit its {fit}: {shown}{more}; '
        'take both files from the same model.')


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / _WEIGHTS).is_file():
    return [folder / _WEIGHTS]
  if not (folder / _INDEX).exists():
    raise errors.UserError(
        f'{folder} has neither {_WEIGHTS} nor {_INDEX}: expected the weights '
        'of a Hugging Face model.')
  index = hub.read_json(folder / _INDEX)
  with files.read_errors_as_user_errors(folder / _INDEX, 'download it again'):
    names = sorted(set(index['weight_map'].values()))
    if any(pathlib.PurePath(name).name != name for name in names):
      raise ValueError('it names files of other folders')
  if missing := [name for name in names if not (folder / name).exists()]:
    raise errors.UserError(
        f'{folder} lacks {", ".join(missing)}, which {_INDEX} names; copy or '
        'download the folder again.')
  return [folder / name for name in names]


def _load_leaf(
    folder: pathlib.Path, leaf: families.Leaf, tensors: Tensors,
    dtype: np.dtype, sharding: jax.sharding.Sharding) -> jax.Array:
  """Loads a parameter; reads only the shards of this process."""
  step = -1 if leaf.transposed else 1
  shape = tensors[leaf.tensors[0]].get_shape()[::step]
  if leaf.stacked:
    shape = [len(leaf.tensors), *shape]

  @functools.cache  # Replicas share one copy.
  def read(*bounds):
    """The part of the leaf between (start, stop) of each axis."""
    sides = [slice(*bound) for bound in bounds]
    piece = np.empty([stop - start for start, stop in bounds], dtype)
    layers, names = piece[None], leaf.tensors
    if leaf.stacked:
      layers, names = piece, names[sides.pop(0)]
    for layer, name in zip(layers, names):
      tensor = tensors[name][tuple(sides[::step])]
      layer[...] = tensor.T if leaf.transposed else tensor
      check_finite(folder, name, layer)
    return piece

  def callback(index):
    if not sharding.addressable_devices:
      return np.empty(0, dtype)  # jax calls this for replicated arrays, too.
    return read(*(
        side.indices(size)[:2] for side, size in zip(index, shape)))

  # Blocking keeps host copies from piling up behind slow transfers.
  return jax.block_until_ready(jax.make_array_from_callback(
      tuple(shape), sharding, callback, dtype=dtype))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _take(leaf, layer, transposed, dtype):
  """The tensor of a leaf, or of layer `layer` of it."""
  if layer is not None:
    leaf = jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False)
  return (leaf.T if transposed else leaf).astype(dtype)
