"""The parameters of a model as decoding reads them, once for all its engines.

A run has an engine for each padded prompt length and group size. Decoding needs
a copy of the parameters (see `programs.prepare`), which may be the largest
thing on a device, so the engines of one model share it.
"""

from __future__ import annotations

import jax

from atgrpo_jax import model
from atgrpo_jax.sampling import programs


class DecodingParams:
  """Made when the first engine has work, dropped when none has any."""

  def __init__(
      self, params: model.Params, mesh: jax.sharding.Mesh,
      config: model.ModelConfig, dtype: str):
    """The copies are not made yet.

    Args:
      params: of the model.
      mesh: of the policy.
      config: the model's dimensions.
      dtype: of the copy.
    """
    self.mesh, self.config = mesh, config
    self.params, self._dtype = params, dtype
    self._num_users = 0
    self._prepared: model.Params | None = None
    self._decoding: model.Params | None = None

  def acquire(self) -> tuple[model.Params, model.Params]:
    """What prefill reads, and the same as a loop reads it.

    Each call wants a `release`.
    """
    if not self._num_users:
      self._prepared = self._decoding = programs.prepare(
          self.params, config=self.config, dtype=self._dtype)
      if self.mesh.devices.flat[0].platform == 'cpu':
        self._decoding = programs.unstack(self._prepared, config=self.config)
    self._num_users += 1
    return self._prepared, self._decoding

  def release(self) -> None:
    """Ends one `acquire`; the last one frees the memory."""
    self._num_users -= 1
    if not self._num_users:
      self._prepared = self._decoding = None
