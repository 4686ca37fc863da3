"""Checkpoints that are complete, and that are checked when they are read.

A step is one orbax composite, written beside its place and renamed once, so
it exists whole or not at all. It holds

  state  {policy: TrainState} as one flat table, leaf name -> array
  meta   JSON: the step, the caller's `meta`, and shape, dtype and digest of
         every leaf

orbax alone loads a file with a flipped bit as wrong numbers and casts a
changed dtype, both in silence. So `meta` carries a SHA-256 of itself, the
table of leaves is compared with the model before anything is loaded, and the
digest of every leaf that is read (see `digests`) is computed again from what
has arrived on the devices.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import os
from typing import Any, NamedTuple

from absl import logging
from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np
import orbax.checkpoint as ocp

from atgrpo_jax import errors
from atgrpo_jax.io import digests
from atgrpo_jax.io import finite
from atgrpo_jax.io import leaves as leaves_lib

# What orbax and tensorstore raise on damaged files. Running out of memory or
# a broken device is not among them: that says nothing about the checkpoint.
_READ_ERRORS = (AttributeError, LookupError, OSError, TypeError, ValueError)
# What a checkpoint can be called, beside its step.
LATEST, BEST = 'latest', 'best'

# orbax takes the time from a clock that may jump: a hundred years.
_PATIENCE_SECONDS = 100 * 365 * 24 * 60 * 60


class _Unreadable(Exception):
  """One step is damaged; an older one may do."""


class Restored(NamedTuple):
  """What `Checkpoints.restore` found."""

  step: int
  state: Any
  meta: dict[str, Any]


class Checkpoints:
  """The checkpoints of one run.

  Reading changes nothing on disk, so a run may be read while it goes on. The
  first `save` makes this object the directory's only writer.
  """

  def __init__(self, directory: str | os.PathLike, *, max_to_keep: int = 2):
    """Looks at `directory`; will keep the newest steps and the best one."""
    if max_to_keep < 2:
      raise errors.CheckpointError(
          f'max_to_keep={max_to_keep}: expected 2 or more, so that a damaged '
          'checkpoint has an older one behind it.'
      )
    directory = str(directory)
    if '://' not in directory:  # gs://... is absolute and must stay as it is.
      directory = os.path.abspath(directory)
    self._directory = epath.Path(directory)
    self._kept = _NewestAndBest(max_to_keep)
    self._manager: ocp.CheckpointManager | None = None
    self._damaged_steps: set[int] = set()

  def save(
      self,
      step: int,
      state: Any,
      meta: Mapping[str, Any],
      *,
      is_best: bool = False,
  ):
    """Starts to write `step`; `state` may be donated when this returns.

    Steps that `restore` could not read are first renamed to `<step>.corrupt`.
    A state that is not finite is a CheckpointError, and nothing is written.

    Args:
      step: larger than every step saved before.
      state: pytree of jax arrays.
      meta: what JSON gives back unchanged (no tuples, NaN or int keys).
      is_best: keep this step, in place of the best one so far, for good.
    """
    manager = self._writer()
    newest = manager.latest_step()
    if newest is not None and step <= newest:
      raise errors.CheckpointError(
          f'cannot save step {step}: {self._directory} already has step '
          f'{newest}. Resume from it, or use another directory.'
      )
    leaves = leaves_lib.named(state)
    if bad := finite.nonfinite_leaves(leaves):
      raise errors.CheckpointError(
          f'Step {step} is not saved: there is NaN or infinity in '
          f'{finite.listed(bad)}. {self._directory} keeps the steps before; '
          'start anew in another directory, with a smaller learning_rate or '
          'max_grad_norm.'
      )
    leaf_digests = digests.of_leaves(leaves)
    if is_best:
      self._kept.best_step = step
    record = {
        'step': step,
        'meta': dict(meta),
        'best_step': self._kept.best_step,
        'leaves': {
            name: [*leaves_lib.signature(leaf), leaf_digests[name]]
            for name, leaf in leaves.items()
        },
    }
    if json.loads(json.dumps(record)) != record:
      raise errors.CheckpointError(
          f'meta={meta}: JSON does not give it back unchanged. Use str keys, '
          'lists for tuples, and strings for NaN.'
      )
    record['sha256'] = _sha256(record)
    manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(leaves),
            meta=ocp.args.JsonSave(record),
        ),
        force=True,  # orbax's own clock may skip a save without a word.
    )

  def note_best(self, step: int) -> None:
    """Makes a step that was saved the best one, from the next `save` on."""
    self._kept.best_step = step

  def restore(
      self,
      template: Any,
      *,
      step: int | None = None,
      part: Callable[[Any], Any] = lambda tree: tree,
  ) -> Restored | None:
    """Loads the newest readable step, or None if nothing was ever saved.

    Each newer step that cannot be read is reported by one warning. Raises
    CheckpointError if no step can be read, or if the step is sound but holds
    another model, in whatever part.

    Args:
      template: pytree of jax.Array or ShapeDtypeStruct with the shapes,
        dtypes and shardings to restore to.
      step: this one or an error.
      part: takes from such a tree what is wanted; no other leaf is read,
        allocated, or checked for damage.
    """
    self.wait()
    wanted = leaves_lib.named(template)
    for name, leaf in wanted.items():
      if leaf.sharding is None:
        raise errors.CheckpointError(
            f'template leaf {name} has no sharding: expected the sharding to '
            'restore to. Pass it to jax.ShapeDtypeStruct.'
        )
      # Raises here if it does not divide the shape: the checkpoint is sound.
      leaf.sharding.shard_shape(leaf.shape)
    names = part(jax.tree.unflatten(jax.tree.structure(template), list(wanted)))

    steps = self.steps()[::-1]
    if step is not None:
      if step not in steps:
        raise errors.CheckpointError(
            f'no step {step} in {self._directory}: expected one of {steps}.'
        )
      steps = [step]
    damage = {}
    for candidate in steps:
      try:
        record, leaves = self._read(candidate, wanted, jax.tree.leaves(names))
      except _Unreadable as error:
        damage[candidate] = str(error)
        continue
      for damaged, reason in damage.items():
        logging.warning(
            'checkpoint step %d: %s; using step %d; the next save keeps it '
            'as %d.corrupt',
            *(damaged, reason, candidate, damaged),
        )
      self._damaged_steps |= damage.keys()
      self._kept.best_step = record['best_step']
      state = jax.tree.map(leaves.get, names)
      return Restored(candidate, state, record['meta'])

    if damage:
      lines = [f'  step {s}: {reason}' for s, reason in damage.items()]
      raise errors.CheckpointError(
          f'no checkpoint in {self._directory} can be read. To start from '
          'step 0, use another directory.\n' + '\n'.join(lines)
      )
    corrupt = sorted(path.name for path in self._directory.glob('*.corrupt'))
    if corrupt:
      raise errors.CheckpointError(
          f'{self._directory} holds only damaged checkpoints: '
          f'{", ".join(corrupt)}. To start from step 0, use another directory.'
      )
    return None

  def steps(self) -> list[int]:
    """What is saved, damaged steps included, ascending."""
    found = ocp.path.step.standard_name_format().find_all(self._directory)
    return sorted(entry.step for entry in found)

  def find(self, name: str | int) -> int | None:
    """The step of the checkpoint called `name`; None for the newest one.

    Raises CheckpointError unless it is a step that is there, 'latest', or
    'best' where a best one is known.
    """
    if name == LATEST:
      return None
    steps, best = self.steps(), self._best_step()
    is_number = str(name).isdecimal()
    step = best if name == BEST else int(name) if is_number else None
    if step is None or step not in steps:
      raise errors.CheckpointError(
          f'there is no checkpoint {name!r} in {self._directory}: expected '
          f'one of {[LATEST, *([BEST] if best in steps else []), *steps]}.')
    return step

  def _best_step(self) -> int | None:
    """As the newest step says whose record is sound."""
    for step in reversed(self.steps()):
      try:
        return self._read_record(step)['best_step']
      except _Unreadable:
        continue
    return None

  def wait(self):
    """Blocks until the last save is on disk; raises what went wrong in it."""
    if self._manager is not None:
      self._manager.wait_until_finished()

  def close(self):
    """Waits, then frees the threads."""
    if self._manager is not None:
      self._manager.close()

  def _read(
      self, step: int, template: Mapping[str, Any], names: Sequence[str]
  ):
    """The verified record of `step`, and its leaves of these names."""
    # By orbax's handlers, since the manager's `restore` ends in a barrier, at
    # which the hosts that can read would wait for one that cannot.
    path = self._directory / str(step)
    record = self._read_record(step)
    leaves_lib.check_same_model(path, record['leaves'], template)
    wanted = {name: template[name] for name in names}
    with _Reading('state'):
      leaves = ocp.PyTreeCheckpointHandler().restore(
          path / 'state',
          args=ocp.args.PyTreeRestore(
              wanted,
              ocp.checkpoint_utils.construct_restore_args(wanted),
              partial_restore=True,
          ),
      )
    # What orbax does not find it leaves as it was wanted.
    if absent := [
        name for name, leaf in leaves.items() if not isinstance(leaf, jax.Array)
    ]:
      raise _Unreadable(f'state: there is no {absent[0]}')
    for name, digest in digests.of_leaves(leaves).items():
      if digest != record['leaves'][name][-1]:
        raise _Unreadable(f'digest of {name} differs')
    if bad := finite.nonfinite_leaves(leaves):
      raise _Unreadable(f'NaN or infinity in {finite.listed(bad)}')
    return record, leaves

  def _read_record(self, step: int) -> dict[str, Any]:
    """What `meta` has, verified."""
    with _Reading('meta'):
      record = ocp.JsonCheckpointHandler().restore(
          self._directory / str(step) / 'meta')
      sha256, its_step = record.pop('sha256'), record['step']
    if sha256 != _sha256(record):
      raise _Unreadable('SHA-256 of meta differs')
    if its_step != step:
      raise _Unreadable(f'it is the checkpoint of step {its_step}')
    return record

  def _writer(self) -> ocp.CheckpointManager:
    """The manager, which has never seen the damaged steps."""
    for step in sorted(self._damaged_steps):
      self._set_aside(step)
    if self._manager is None:
      self._manager = ocp.CheckpointManager(
          self._directory,
          options=ocp.CheckpointManagerOptions(
              preservation_policy=self._kept,
              cleanup_tmp_directories=True,
              async_options=ocp.AsyncOptions(
                  timeout_secs=_PATIENCE_SECONDS,
                  create_directories_asynchronously=False),
              # A damaged file of orbax's own must not stop us from opening.
              lightweight_initialize=True,
          ),
      )
    elif self._damaged_steps:
      self._manager.reload()
    self._damaged_steps = set()
    return self._manager

  def _set_aside(self, step: int):
    """Renames a damaged step so that it is kept but never read again."""
    aside = self._directory / f'{step}.corrupt'
    repeats = 1
    while aside.exists():
      repeats += 1
      aside = self._directory / f'{step}.{repeats}.corrupt'
    # All hosts must have looked for a free name before one of them takes it.
    multihost_utils.sync_global_devices(f'{aside.name} is free')
    if jax.process_index() == 0:
      (self._directory / str(step)).rename(aside)
    multihost_utils.sync_global_devices(f'{aside.name} is taken')


class _NewestAndBest:
  """orbax preservation policy: the newest `num_newest` steps and one more."""

  def __init__(self, num_newest: int):
    self._num_newest = num_newest
    self.best_step: int | None = None

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any):
    del context
    first_kept = len(checkpoints) - self._num_newest
    return [
        i >= first_kept or checkpoint.step == self.best_step
        for i, checkpoint in enumerate(checkpoints)
    ]


def _sha256(record: Mapping[str, Any]) -> str:
  text = json.dumps(record, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


class _Reading:
  """Says _Unreadable, on all hosts, for what orbax raises on damaged files."""

  def __init__(self, item: str):
    self._item = item

  def __enter__(self):
    return self

  def __exit__(self, kind, error, traceback):
    # A chunk that cannot be decoded comes as a bare Exception, which no
    # `except` clause can name without catching everything; its cause tells.
    cause = error.__cause__ if kind is Exception else error
    damaged = isinstance(cause, _READ_ERRORS)
    if error is not None and not damaged:
      return
    # Each host reads its own part, but all must go on with the same step.
    anywhere = multihost_utils.process_allgather(np.array(damaged)).any()
    if damaged:
      # The first line says what and where; tensorstore adds its whole spec.
      reason = str(cause).partition('\n')[0].partition(' [tensorstore_spec')[0]
      raise _Unreadable(
          f'{self._item}: {type(cause).__name__}: {reason}'
      ) from error
    if anywhere:
      raise _Unreadable(f'{self._item}: another host cannot read its part')


def digest(tree: Any) -> str:
  """16 hex digits of the bytes and names of a tree of arrays."""
  return _sha256(digests.of_leaves(leaves_lib.named(tree)))[:16]
