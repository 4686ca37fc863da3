"""Checkpoints that are whole or absent, and are verified when read.

A step is a folder with two items of orbax, written under a temporary name and
then renamed:

  state  {policy or critic: TrainState} as a flat table, leaf name -> array: the
         trained parameters (all, or the adapter), the optimizer's state and the
         number of updates. Frozen models are not stored.
  meta   JSON: the step, the best step, shape, dtype and digest of every leaf,
         and from `train.py` the `LoopState`, the length of the metrics, hashes
         of the tasks, and digests of the config, of models and of code

If policies have devices of different processes, each set of processes writes an
item of its own, `state_0`, `state_1`, ..., and `meta` lists its leaves. orbax
renames the step after all processes have written.

orbax loads a file with a flipped bit as wrong numbers and casts a changed dtype
without an error. Therefore `meta` contains a SHA-256 of its rest, the table of
leaves is compared with the model before anything is loaded, and the digest of
every loaded leaf is recomputed.

The digest is computed on the devices: no host holds a whole sharded array, and
the shards differ from mesh to mesh. It is a sum of mixed 32-bit words, so it is
equal under every sharding. Any change within one word changes it; other damage
goes unnoticed with probability 2^-64. It detects broken disks and torn files,
not forgery.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import json
import math
import os
import pathlib
import shutil
from typing import Any, NamedTuple

from absl import logging
from etils import epath
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files

LATEST, BEST = 'latest', 'best'  # Names of checkpoints, besides the step.
NUM_NEWEST = 2  # Kept beside the best one; the older replaces a damaged one.

# Errors of orbax and tensorstore for damaged files. Other errors, such as a
# lack of memory, say nothing about the checkpoint.
_READ_ERRORS = (AttributeError, LookupError, OSError, TypeError, ValueError)
# 100 years. orbax measures a save with the system clock, which may jump.
_SAVE_TIMEOUT_SECONDS = 100 * 365 * 24 * 60 * 60
_FORMAT_BYTES = 1 << 20  # Tables of a checkpoint beside its arrays.
_MAX_LISTED = 10  # Leaves in an error message.

# orbax item -> the processes that write it, and the names of its leaves.
_Items = dict[str, tuple[tuple[int, ...], list[str]]]
_STATE = 'state'


class _Unreadable(Exception):
  """A step is damaged; an older one may be sound."""


class Restored(NamedTuple):
  """The result of `Checkpoints.restore`."""

  step: int
  state: Any
  meta: dict[str, Any]


class Checkpoints:
  """The checkpoints of one run: the newest `NUM_NEWEST` steps and the best.

  Reading changes nothing on disk, so it is safe while a trainer writes. Only
  one object may call `save`.
  """

  def __init__(self, directory: str | os.PathLike):
    if not files.is_remote(directory):
      directory = os.path.abspath(directory)  # orbax needs it.
    self._directory = epath.Path(directory)
    self._kept = _NewestAndBest()
    self._manager: ocp.CheckpointManager | None = None
    self._damaged_steps: set[int] = set()

  def save(
      self, step: int, state: Any, meta: Mapping[str, Any], *,
      is_best: bool = False) -> None:
    """Starts to write `step`; `state` may be donated when this returns.

    Renames steps that `restore` could not read to `<step>.corrupt`. Raises
    UserError and writes nothing if a leaf holds NaN or infinity.

    Args:
      step: must be larger than every saved step.
      state: pytree of jax arrays.
      meta: JSON values, returned by `restore`.
      is_best: keep this step until a better one is saved.
    """
    leaves = _named_leaves(state)
    items = _items(leaves)
    digests, bad = _examine(leaves)
    if bad:
      raise errors.UserError(
          f'Step {step} is not saved because of NaN or infinity in {len(bad)} '
          f'leaves, such as {", ".join(bad[:_MAX_LISTED])}. {self._directory} '
          'keeps the earlier steps; start again in another directory, with a '
          'smaller learning_rate or max_grad_norm.')
    if is_best:
      self._kept.best_step = step
    record = {
        'step': step,
        'meta': dict(meta),
        'best_step': self._kept.best_step,
        'leaves': {
            name: [list(leaf.shape), str(leaf.dtype), digests[name]]
            for name, leaf in leaves.items()},
    }
    if len(items) > 1:
      record['items'] = {item: names for item, (_, names) in items.items()}
    record['sha256'] = _sha256(record)
    self._writer(items).save(
        step,
        args=ocp.args.Composite(meta=ocp.args.JsonSave(record), **{
            item: ocp.args.PyTreeSave({name: leaves[name] for name in names})
            for item, (_, names) in items.items()}),
        force=True)  # Otherwise orbax may skip a save silently.

  def restore(
      self, template: Any, *, step: int | None = None,
      part: Callable[[Any], Any] = lambda tree: tree) -> Restored | None:
    """Loads the newest sound step, or returns None if none was ever saved.

    Warns once for each newer step that is damaged.

    Args:
      template: pytree of jax.Array or ShapeDtypeStruct with the shapes, dtypes
        and shardings to restore to.
      step: load exactly this step.
      part: selects the subtree to read; other leaves are not allocated.

    Raises:
      UserError: all steps are damaged, or the step holds another model.
    """
    self.wait()
    wanted = _named_leaves(template)
    for leaf in wanted.values():
      # Raises here if the sharding does not divide the shape, which would
      # otherwise look like damage.
      leaf.sharding.shard_shape(leaf.shape)
    names = part(jax.tree.unflatten(jax.tree.structure(template), list(wanted)))

    steps = self.steps()[::-1] if step is None else [self.find(step)]
    damage = {}
    for candidate in steps:
      try:
        record, leaves = self._read(candidate, wanted, jax.tree.leaves(names))
      except _Unreadable as error:
        damage[candidate] = str(error)
        continue
      for damaged, reason in damage.items():
        logging.warning(
            'checkpoint step %d: %s; using step %d; the next save renames it '
            'to %d.corrupt', damaged, reason, candidate, damaged)
      self._damaged_steps |= damage.keys()
      self._kept.best_step = record['best_step']
      return Restored(
          candidate, jax.tree.map(leaves.get, names), record['meta'])

    damage |= {
        path.name: 'was found damaged earlier'
        for path in sorted(self._directory.glob('*.corrupt'))}
    if damage:
      lines = [f'  step {name}: {reason}' for name, reason in damage.items()]
      raise errors.UserError(
          f'No checkpoint in {self._directory} can be read. To start from '
          'step 0, use another directory.\n' + '\n'.join(lines))
    return None

  def steps(self) -> list[int]:
    """The saved steps, including damaged ones, ascending."""
    found = ocp.path.step.standard_name_format().find_all(self._directory)
    return sorted(entry.step for entry in found)

  def find(self, name: str | int) -> int | None:
    """The step of a name, None for the latest; UserError if it is missing."""
    if name == LATEST:
      return None
    steps, best = self.steps(), None
    for step in reversed(steps):  # The newest sound record knows it.
      with contextlib.suppress(_Unreadable):
        best = self._read_record(step)['best_step']
        break
    is_number = str(name).isdecimal()
    step = best if name == BEST else int(name) if is_number else None
    if step is None or step not in steps:
      raise errors.UserError(
          f'There is no checkpoint {name!r} in {self._directory}; expected '
          f'one of {[LATEST, *([BEST] if best in steps else []), *steps]}.')
    return step

  def wait(self) -> None:
    """Blocks until the last save is on disk; raises its error."""
    if self._manager is not None:
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save and frees the threads."""
    if self._manager is not None:
      self._manager.close()

  def _read(
      self, step: int, template: Mapping[str, Any], names: Sequence[str]
  ) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """The verified record of `step` and the leaves `names`."""
    # The manager's `restore` ends in a barrier, where the hosts that can read
    # would wait for one that cannot. The handlers have no barrier.
    path = self._directory / str(step)
    record = self._read_record(step)
    _check_same_model(path, record['leaves'], template)
    leaves = {name: template[name] for name in names}
    leaves |= {  # Without data in a process without devices of the leaf.
        name: jax.make_array_from_single_device_arrays(
            leaf.shape, leaf.sharding, [], dtype=leaf.dtype)
        for name, leaf in leaves.items() if not _is_here(leaf)}
    with _reading(_STATE):
      for item, leaves_of_item in record.get('items', {_STATE: names}).items():
        wanted = {
            name: template[name] for name in leaves_of_item
            if name in leaves and _is_here(template[name])}
        if wanted:
          leaves |= ocp.PyTreeCheckpointHandler().restore(
              path / item,
              args=ocp.args.PyTreeRestore(
                  wanted,
                  ocp.checkpoint_utils.construct_restore_args(wanted),
                  partial_restore=True))
      for name, leaf in leaves.items():
        # orbax returns the template of a leaf that it does not find.
        if not isinstance(leaf, jax.Array):
          raise ValueError(f'{name} is missing')
    for name, found in _examine(leaves)[0].items():
      if found != record['leaves'][name][-1]:
        raise _Unreadable(f'digest of {name} differs')
    return record, leaves

  def _read_record(self, step: int) -> dict[str, Any]:
    """The verified content of `meta`."""
    with _reading('meta'):
      record = ocp.JsonCheckpointHandler().restore(
          self._directory / str(step) / 'meta')
      sha256, saved_step = record.pop('sha256'), record['step']
    if sha256 != _sha256(record):
      raise _Unreadable('SHA-256 of meta differs')
    if saved_step != step:
      raise _Unreadable(f'it is the checkpoint of step {saved_step}')
    return record

  def _writer(self, items: _Items) -> ocp.CheckpointManager:
    """The manager, opened or reloaded after damaged steps were renamed."""
    for step in sorted(self._damaged_steps):
      if hosts.is_first():
        aside = self._directory / f'{step}.corrupt'
        if aside.exists():
          aside.rmtree()
        (self._directory / str(step)).rename(aside)
      hosts.barrier()
    if self._manager is None:
      handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
      for item, (processes, _) in items.items():
        handlers.add(item, ocp.args.PyTreeSave, _Handler(processes))
      self._manager = ocp.CheckpointManager(
          self._directory,
          handler_registry=handlers,
          options=ocp.CheckpointManagerOptions(
              preservation_policy=self._kept,
              cleanup_tmp_directories=True,
              async_options=ocp.AsyncOptions(
                  timeout_secs=_SAVE_TIMEOUT_SECONDS,
                  create_directories_asynchronously=False),
              # Damaged metadata must not prevent opening.
              lightweight_initialize=True))
    elif self._damaged_steps:
      self._manager.reload()
    self._damaged_steps = set()
    return self._manager


def _items(leaves: Mapping[str, jax.Array]) -> _Items:
  """An item for each set of processes that hold leaves."""
  names = {}
  for name, leaf in leaves.items():
    names.setdefault(tuple(hosts.holders(leaf)), []).append(name)
  return {
      f'{_STATE}_{i}' if len(names) > 1 else _STATE: x
      for i, x in enumerate(names.items())}


class _Handler(ocp.PyTreeCheckpointHandler):
  """Saves leaves that only some processes hold; all processes call it."""

  def __init__(self, processes: Sequence[int]):
    self._processes = processes
    arrays = ocp.type_handlers.ArrayHandler(primary_host=processes[0])
    super().__init__(
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=processes[0], active_processes=set(processes)),
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            (jax.Array, arrays), (_Local, arrays)))

  async def async_save(self, directory: Any, args: Any) -> list[Any]:
    if jax.process_index() not in self._processes:
      return []
    is_local = jax.process_count() > 1 and len(self._processes) == 1
    leaves = jax.tree.map(_Local, args.item) if is_local else args.item
    return await super().async_save(
        directory, args=ocp.args.PyTreeSave(leaves))


class _Local:
  """An array of one process, among several; orbax refuses it as jax.Array."""

  def __init__(self, array: jax.Array):
    self._array = array

  def __getattr__(self, name: str) -> Any:
    return getattr(self._array, name)


def _is_here(leaf: Any) -> bool:
  """True if this process has devices of an array or its template."""
  return bool(leaf.sharding.addressable_devices)


class _NewestAndBest:
  """orbax preservation policy: the newest `NUM_NEWEST` steps and the best."""

  best_step: int | None = None

  def should_preserve(
      self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    del context
    first_kept = len(checkpoints) - NUM_NEWEST
    return [
        i >= first_kept or checkpoint.step == self.best_step
        for i, checkpoint in enumerate(checkpoints)]


@contextlib.contextmanager
def _reading(item: str) -> Iterator[None]:
  """Raises _Unreadable on all hosts if one of them cannot read its shards."""
  failure = None
  try:
    yield
  except Exception as error:
    # For a chunk that it cannot decode, orbax raises a bare Exception, whose
    # cause has a type.
    failure = error.__cause__ if type(error) is Exception else error
    if not isinstance(failure, _READ_ERRORS):
      raise
  # All hosts must continue with the same step.
  anywhere = any(hosts.exchange(failure is not None))
  if failure is not None:
    # The first line is the reason; tensorstore appends its whole spec.
    reason = str(failure).partition('\n')[0].partition(' [tensorstore_spec')[0]
    raise _Unreadable(
        f'{item}: {type(failure).__name__}: {reason}') from failure
  if anywhere:
    raise _Unreadable(f'{item}: another host cannot read its shards')


def num_bytes(state: Any) -> int:
  """Bytes of a checkpoint of a state or its template."""
  return _FORMAT_BYTES + sum(
      math.prod(leaf.shape) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(state))


def check_space(workdir: pathlib.Path, state: Any) -> None:
  """Raises UserError if the disk is too full for a checkpoint of `state`."""
  if files.is_remote(workdir):
    return
  needed, free = num_bytes(state), shutil.disk_usage(workdir).free
  if free < needed:
    raise errors.UserError(
        f'The disk of {workdir} has {free:,} bytes free, but a checkpoint of '
        f'this run may take {needed:,}; free some space, then run the same '
        'command again.')


def _named_leaves(tree: Any) -> dict[str, Any]:
  """Leaf name -> leaf, in the order of the tree, e.g. `planner/params/w`."""
  return {
      jax.tree_util.keystr(path, simple=True, separator='/'): leaf
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _check_same_model(
    path: Any, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
  """Raises UserError with the leaves that differ, one per line."""
  in_file = {
      name: f'{shape} {dtype}' for name, (shape, dtype, _) in saved.items()}
  in_model = {
      name: f'{list(leaf.shape)} {leaf.dtype}' for name, leaf in wanted.items()}
  lines = [
      f'  {name}: {in_file.get(name, "missing")} in the checkpoint, '
      f'{in_model.get(name, "missing")} in the model'
      for name in in_file | in_model if in_file.get(name) != in_model.get(name)]
  if lines:
    raise errors.UserError(
        f'{path} holds another model; nothing was loaded. Resume with the '
        f'config it was saved with. {len(lines)} leaves differ:\n'
        + '\n'.join(lines[:_MAX_LISTED]))


def _sha256(record: Mapping[str, Any]) -> str:
  text = json.dumps(record, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def digest(tree: Any) -> str:
  """16 hex digits that depend on the names and bytes of a tree of arrays."""
  return _sha256(_examine(_named_leaves(tree))[0])[:16]


def _examine(
    leaves: Mapping[str, jax.Array]) -> tuple[dict[str, str], list[str]]:
  """The digest of each leaf, and the names of leaves with NaN or infinity."""
  # One at a time: hundreds of small programs that wait for each other's
  # devices deadlock a host with fewer threads than virtual devices.
  examined = hosts.fetch({
      name: jax.block_until_ready(digest_and_check(leaf))
      for name, leaf in leaves.items()})
  digests = {
      name: f'{first:08x}{second:08x}'
      for name, (first, second, _) in examined.items()}
  return digests, [
      name for name, (*_, is_finite) in examined.items() if not is_finite]


@jax.jit
def digest_and_check(array: jax.Array) -> tuple[jax.Array, ...]:
  """Two uint32 sums over the words of `array`, and whether it is finite.

  They are equal for every sharding.
  """
  if array.dtype == jnp.bool_:
    words = array.astype(jnp.uint32)
  else:
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(
        array.dtype.itemsize, jnp.uint32)  # A 64-bit number is two words.
    words = jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
  index = jnp.zeros(words.shape, jnp.uint32)  # Row-major index, mod 2^32.
  for axis, size in enumerate(words.shape):
    iota = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    index = index * jnp.uint32(size % 2**32) + iota

  def mixed_sum(multiplier: jax.Array) -> jax.Array:
    # For a given index this is a bijection of the word (the last five lines
    # are MurmurHash3's finaliser), so one changed word changes the sum.
    mixed = words ^ (index * multiplier + (multiplier >> 1))
    mixed ^= mixed >> 16
    mixed *= jnp.uint32(0x85EBCA6B)
    mixed ^= mixed >> 13
    mixed *= jnp.uint32(0xC2B2AE35)
    mixed ^= mixed >> 16
    return jnp.sum(mixed, dtype=jnp.uint32)

  return (mixed_sum(jnp.uint32(0x9E3779B1)),
          mixed_sum(jnp.uint32(0x85EBCA77)), jnp.all(jnp.isfinite(array)))
