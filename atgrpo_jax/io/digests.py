"""Digests of arrays: are the bytes of sharded arrays what they were?

An array of a pod has no host that holds its bytes, and on another mesh its
shards are others. So a digest is a sum of mixed 32-bit words: it is the same
number under every sharding, is computed where the shards are, and moves
nothing. Any change inside one word changes it; any other damage goes unseen
with probability 2^-64. It guards against broken disks and torn files, not
against forgery.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def of_leaves(leaves: Mapping[str, jax.Array]) -> dict[str, str]:
  """Name -> digest, 16 hex digits."""
  # One after the other on all devices, where a copy to the host waits for one
  # of them: hundreds of small programs that wait for each other's devices lock
  # up a host that has fewer threads than (virtual) devices.
  return {
      name: '%08x%08x' % jax.device_get(jax.block_until_ready(of_array(leaf)))
      for name, leaf in leaves.items()
  }


@jax.jit
def of_array(array: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Two uint32 sums over the words of `array`, whatever its sharding."""
  if array.dtype == jnp.bool_:
    words = array.astype(jnp.uint32)
  else:
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(
        array.dtype.itemsize, jnp.uint32  # A 64-bit number is two words.
    )
    words = jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)
  index = jnp.zeros(words.shape, jnp.uint32)  # Row-major index, mod 2^32.
  for axis, size in enumerate(words.shape):
    iota = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    index = index * jnp.uint32(size % 2**32) + iota

  def lane(multiplier: int) -> jax.Array:
    # For a given index this is a bijection of the word (the last five lines
    # are MurmurHash3's finaliser), so one changed word changes the sum.
    mixed = words ^ (index * multiplier + (multiplier >> 1))
    mixed ^= mixed >> 16
    mixed *= jnp.uint32(0x85EBCA6B)
    mixed ^= mixed >> 13
    mixed *= jnp.uint32(0xC2B2AE35)
    mixed ^= mixed >> 16
    return jnp.sum(mixed, dtype=jnp.uint32)

  return lane(jnp.uint32(0x9E3779B1)), lane(jnp.uint32(0x85EBCA77))
