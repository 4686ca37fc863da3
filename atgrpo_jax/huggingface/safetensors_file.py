"""The weights of a Qwen3 from and to safetensors files, sharded or not.

`qwen3_names` says which tensor is which parameter. A missing, surplus or
mis-shaped tensor is an error that lists them.

Weights may be larger than the host's memory. Import compares all headers
before it reads a weight; then each tensor is read once, in blocks of rows, and
of it only what this process's devices hold is kept, cast, and written into its
place on the devices. Export fetches one tensor at a time and holds one file of
at most `_FILE_BYTES`. On several processes all of them call both functions.

The files are read with plain reads at the offsets of the header:
`safetensors.safe_open(...).get_slice` reads (or maps) the whole tensor for
every slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import qwen3_names
from atgrpo_jax.io import finite
from atgrpo_jax.model import config as config_lib
from atgrpo_jax.model import decoder

_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_TYPES = {'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
_BLOCK_SIZE = 2**16  # Numbers that are read at once.
_FILE_BYTES = 4 * 10**9

# One side of a box is (start, stop); a box has one for each axis.
Box = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """Where a tensor lies on disk."""

  path: pathlib.Path
  offset: int  # Of its first byte in the file.
  type: str  # As safetensors calls it.
  shape: tuple[int, ...]


def load_params(
    folder: str | pathlib.Path, config: config_lib.ModelConfig,
    dtype: jnp.dtype = jnp.float32, shardings=None) -> decoder.Params:
  """Reads the folder's weights as `dtype`, straight onto their devices.

  Args:
    folder: a Hugging Face model folder.
    config: what its `config.json` says.
    dtype: of the parameters.
    shardings: a tree like the parameters, of `jax.sharding.Sharding`s; None
      for the default device.

  Raises:
    UserError: naming every tensor that does not fit the config, or one that
      is not finite.
  """
  folder = pathlib.Path(folder)
  tensors = {}
  for path in _weight_files(folder):
    header = read_header(path)
    twice = sorted(header.keys() & tensors)
    if twice:
      raise errors.UserError(
          f'{folder} holds {", ".join(twice)} in {path.name} and in another '
          'file; remove one of them.')
    tensors.update(header)
  shapes = qwen3_names.tensor_shapes(config)
  head = tensors.pop(qwen3_names.HEAD, None) if config.tied_head else None
  compare(folder, tensors, shapes)
  if head is not None and not _equal(head, tensors[qwen3_names.EMBEDDING]):
    # Qwen3-0.6B and 1.7B are tied and store the head all the same.
    raise errors.UserError(
        f'{folder}: config.json has tie_word_embeddings=true, but '
        f'{qwen3_names.HEAD} is not {qwen3_names.EMBEDDING}; set it to false '
        'to keep both.')

  params = {}
  for leaf in qwen3_names.leaves(config):
    qwen3_names.put(params, leaf.path, _load_leaf(
        [tensors[name] for name in leaf.tensors], np.dtype(dtype),
        None if shardings is None else qwen3_names.get(shardings, leaf.path),
        stacked=leaf.stacked, transposed=leaf.transposed))
  for leaf in qwen3_names.leaves(config):
    if finite.nonfinite_leaves(qwen3_names.get(params, leaf.path)):
      _raise_nonfinite({name: tensors[name] for name in leaf.tensors}, dtype)
  return params


def save(
    folder: str | pathlib.Path, params: decoder.Params,
    config: config_lib.ModelConfig, dtype: jnp.dtype) -> None:
  """Writes `config.json` and the weights as `dtype`.

  The first of the processes that hold `params` writes; the others only take
  part in fetching, and may return before the files are complete. `folder` must
  hold no other weights, which may be cut into other files.
  """
  processes = holders(params)
  if jax.process_index() not in processes:
    return
  writing = jax.process_index() == processes[0]
  folder = pathlib.Path(folder)
  refuse_nonfinite(folder, params)
  source = {
      name: (leaf, layer if leaf.stacked else None)
      for leaf in qwen3_names.leaves(config)
      for layer, name in enumerate(leaf.tensors)}
  if writing:
    folder.mkdir(parents=True, exist_ok=True)
  shapes = qwen3_names.tensor_shapes(config)
  itemsize = jnp.dtype(dtype).itemsize
  files = _cut_into_files(shapes, itemsize)
  for file, names in files.items():
    tensors = {}
    for name in names:
      leaf, layer = source[name]
      tensor = fetch(_take(
          qwen3_names.get(params, leaf.path), layer, leaf.transposed, dtype))
      if writing:
        tensors[name] = tensor
    if writing:
      write_tensors(folder / file, tensors)
  if writing:
    if len(files) > 1:
      index = {
          'metadata': {'total_size': itemsize * sum(
              math.prod(shape) for shape in shapes.values())},
          'weight_map': {
              name: file for file, names in files.items() for name in names}}
      (folder / _INDEX).write_text(json.dumps(index, indent=2) + '\n')
    hub.save_config(folder, config, dtype)


def refuse_nonfinite(folder: pathlib.Path, params: Any) -> None:
  """Raises UserError if something is not finite that `folder` is to hold."""
  if bad := finite.nonfinite_leaves(params):
    raise errors.UserError(
        f'{folder} is not written: there is NaN or infinity in '
        f'{finite.listed(bad)}; train again, with a smaller learning_rate.')


def read_header(path: pathlib.Path) -> dict[str, StoredTensor]:
  """What a safetensors file holds, by name."""
  try:
    with safetensors.safe_open(path, framework='np'):
      pass  # Opening compares the header with the length of the file.
  except safetensors.SafetensorError as error:
    raise errors.UserError(
        f'{path} is not a whole safetensors file ({error}); copy or download '
        'it again.') from error
  with path.open('rb') as file:
    header_size = int.from_bytes(file.read(8), 'little')
    header = json.loads(file.read(header_size))
  header.pop('__metadata__', None)
  start = 8 + header_size
  return {
      name: StoredTensor(
          path, start + entry['data_offsets'][0], entry['dtype'],
          tuple(entry['shape']))
      for name, entry in header.items()}


def read(
    tensor: StoredTensor, boxes: Sequence[Box],
    dtype: np.dtype) -> list[np.ndarray]:
  """The piece of a stored tensor in each of `boxes`, as `dtype`.

  Args:
    tensor: what to read from.
    boxes: as a sharding cuts them, so that two ranges of rows are the same or
      have no row in common; thus no row is read twice.
    dtype: of the result.
  """
  pieces = [
      np.empty([stop - start for start, stop in box], dtype) for box in boxes]
  for rows in dict.fromkeys(box[0] for box in boxes):
    for start, block in _blocks(tensor, *rows):
      at = slice(start - rows[0], start - rows[0] + len(block))
      for piece, box in zip(pieces, boxes):
        if box[0] == rows:
          piece[at] = block[(slice(None), *(slice(*side) for side in box[1:]))]
  return pieces


def read_all(tensor: StoredTensor, dtype: np.dtype) -> np.ndarray:
  """The whole of a stored tensor, as `dtype`."""
  return read(tensor, [tuple((0, size) for size in tensor.shape)], dtype)[0]


def write_tensors(
    path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file as transformers and PEFT do."""
  path.touch()  # With the mode that the umask gives; safetensors makes it 0600.
  mode = path.stat().st_mode
  # safetensors writes an array's memory as it lies, whatever its strides.
  safetensors_numpy.save_file(
      {name: np.ascontiguousarray(x) for name, x in tensors.items()}, path,
      metadata={'format': 'pt'})
  path.chmod(mode)


def fetch(x: jax.Array) -> np.ndarray:
  """All of `x` on the host; every process that holds a part must call this."""
  if x.is_fully_addressable:
    return np.asarray(x)
  return multihost_utils.process_allgather(x, tiled=True)


def holders(params) -> list[int]:
  """The processes whose devices hold `params`; the first of them writes."""
  devices = jax.tree.leaves(params)[0].sharding.device_set
  return sorted({device.process_index for device in devices})


def compare(
    folder: pathlib.Path, found: Mapping[str, StoredTensor],
    expected: Mapping[str, tuple[int, ...]], fit: str = 'config.json') -> None:
  """Raises an error that lists all tensors that are not as expected."""
  problems = [f'missing {name}' for name in sorted(expected.keys() - found)]
  problems += [f'surplus {name}' for name in sorted(found.keys() - expected)]
  for name in sorted(found.keys() & expected):
    if found[name].shape != tuple(expected[name]):
      problems.append(
          f'{name} has shape {found[name].shape}, expected {expected[name]}')
    elif found[name].type not in _TYPES:
      problems.append(
          f'{name} has type {found[name].type}, expected one of '
          f'{", ".join(_TYPES)}')
  if problems:
    shown = '; '.join(problems[:10])
    more = f'; and {len(problems) - 10} more' if len(problems) > 10 else ''
    raise errors.UserError(
        f'The weights in {folder} do not fit its {fit}: {shown}{more}. '
        'Take both files from the same model.')


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / _WEIGHTS).is_file():
    return [folder / _WEIGHTS]
  if (folder / _INDEX).exists():
    index = hub.read_json(folder / _INDEX).get('weight_map')
    if (not isinstance(index, dict) or not index
        or not all(isinstance(name, str) for name in index.values())):
      raise errors.UserError(
          f'{folder / _INDEX} has no weight_map from tensors to files; '
          'download it again.')
    paths = [folder / name for name in sorted(set(index.values()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
      raise errors.UserError(
          f'{folder} lacks {", ".join(missing)}, which {_INDEX} names; '
          'download the model again.')
    return paths
  raise errors.UserError(
      f'{folder} has neither {_WEIGHTS} nor {_INDEX}: expected the weights of '
      'a Hugging Face model.')


def _blocks(
    tensor: StoredTensor, start: int,
    stop: int) -> Iterator[tuple[int, np.ndarray]]:
  """Rows `start` to `stop`: (number of the first row, rows) of each block."""
  dtype = np.dtype(_TYPES[tensor.type])
  width = math.prod(tensor.shape[1:])
  step = max(1, _BLOCK_SIZE // width)
  with tensor.path.open('rb', buffering=0) as file:
    file.seek(tensor.offset + start * width * dtype.itemsize)
    for row in range(start, stop, step):
      num_rows = min(step, stop - row)
      block = np.fromfile(file, dtype, num_rows * width)
      yield row, block.reshape(num_rows, *tensor.shape[1:])


def _raise_nonfinite(
    tensors: Mapping[str, StoredTensor], dtype: np.dtype) -> None:
  """Raises a UserError that names the first of the tensors that is not finite.

  It looks through them again on the host; one of them is not finite.
  """
  name = next(
      name for name, tensor in tensors.items()
      for _, block in _blocks(tensor, 0, tensor.shape[0])
      if not np.isfinite(block.astype(dtype)).all())
  raise errors.UserError(
      f'{tensors[name].path}: {name} holds NaN or infinity, as '
      f'{np.dtype(dtype)}; take the weights from another place, or train them '
      'again.')


def _equal(first: StoredTensor, second: StoredTensor) -> bool:
  return first.shape == second.shape and all(
      np.array_equal(a, b) for (_, a), (_, b) in zip(
          _blocks(first, 0, first.shape[0]),
          _blocks(second, 0, second.shape[0])))


def _load_leaf(
    tensors: Sequence[StoredTensor], dtype: np.dtype,
    sharding: jax.sharding.Sharding | None, *, stacked: bool,
    transposed: bool) -> jax.Array:
  """The leaf that is made of one tensor, or of one for each layer."""
  step = -1 if transposed else 1
  shape = tensors[0].shape[::step]
  if stacked:
    shape = (len(tensors), *shape)
  tensor_sharding = sharding
  if (stacked or transposed) and isinstance(
      sharding, jax.sharding.NamedSharding):
    spec = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
    tensor_sharding = jax.sharding.NamedSharding(
        sharding.mesh,
        jax.sharding.PartitionSpec(*spec[int(stacked):][::step]))
  if not stacked:
    x = _put_on_devices(tensors[0], dtype, tensor_sharding)
    return jax.block_until_ready(jax.jit(
        jnp.transpose, out_shardings=sharding)(x) if transposed else x)
  insert = jax.jit(
      _insert, donate_argnums=0, static_argnums=3, out_shardings=sharding)
  leaf = jnp.zeros(shape, dtype, device=sharding)
  for layer, tensor in enumerate(tensors):
    x = _put_on_devices(tensor, dtype, tensor_sharding)
    leaf = insert(leaf, x, layer, transposed)
    # Without this the host's copies pile up behind slow transfers.
    jax.block_until_ready(leaf)
  return leaf


def _put_on_devices(
    tensor: StoredTensor, dtype: np.dtype,
    sharding: jax.sharding.Sharding | None) -> jax.Array:
  """Reads the parts that this process's devices hold."""
  if sharding is None:
    return jax.device_put(read_all(tensor, dtype))

  def box(index):
    return tuple(
        side.indices(size)[:2] for side, size in zip(index, tensor.shape))

  indices = sharding.addressable_devices_indices_map(tensor.shape).values()
  boxes = list(dict.fromkeys(map(box, indices)))
  pieces = dict(zip(boxes, read(tensor, boxes, dtype)))
  # For a replicated tensor jax asks even where no device holds it.
  nothing = np.empty(0, dtype)
  return jax.make_array_from_callback(
      tensor.shape, sharding, lambda index: pieces.get(box(index), nothing),
      dtype=dtype)


def _insert(leaf, x, layer, transposed):
  return jax.lax.dynamic_update_index_in_dim(
      leaf, x.T if transposed else x, layer, axis=0)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _take(leaf, layer, transposed, dtype):
  """The tensor that a leaf, or layer `layer` of it, stands for."""
  if layer is not None:
    leaf = jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False)
  return (leaf.T if transposed else leaf).astype(dtype)


def _cut_into_files(
    shapes: Mapping[str, tuple[int, ...]],
    itemsize: int) -> dict[str, list[str]]:
  """File -> tensors, in files of at most `_FILE_BYTES` or one tensor."""
  files, size = [[]], 0
  for name, shape in shapes.items():
    num_bytes = math.prod(shape) * itemsize
    if files[-1] and size + num_bytes > _FILE_BYTES:
      files.append([])
      size = 0
    files[-1].append(name)
    size += num_bytes
  if len(files) == 1:
    return {_WEIGHTS: files[0]}
  return {
      f'model-{i:05}-of-{len(files):05}.safetensors': names
      for i, names in enumerate(files, start=1)}
