"""digests.py: a digest is what old files hold, and sees every change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.io import digests


def _reference_digest(words):
  """The same sums in Python's own integers."""
  sums = []
  for multiplier in (0x9E3779B1, 0x85EBCA77):
    total = 0
    for index, word in enumerate(words):
      h = word ^ (index * multiplier + (multiplier >> 1)) % 2**32
      h ^= h >> 16
      h = h * 0x85EBCA6B % 2**32
      h ^= h >> 13
      h = h * 0xC2B2AE35 % 2**32
      h ^= h >> 16
      total += h
    sums.append(total % 2**32)
  return tuple(sums)


@pytest.mark.parametrize('array, view', [
    (np.float32([[1.5, -0.0, 0.0], [np.nan, np.inf, 1e-40]]), np.uint32),
    (jnp.array([[1.5], [-2]], jnp.bfloat16), np.uint16),
    (np.array([-3, 2**31 - 1], np.int32), np.uint32),
    (np.array([-3, 4], np.int8), np.uint8),
    (np.array([True, False, True]), np.uint8),
    (np.uint32(7), np.uint32),
    (np.zeros((2, 0), np.float32), np.uint32)])
def test_digest_is_what_old_files_hold(array, view):
  """A changed digest would make every checkpoint of the past unreadable."""
  words = np.asarray(array).reshape(-1).view(view).tolist()
  digest = digests.of_array(jnp.asarray(array))
  assert tuple(map(int, digest)) == _reference_digest(words)


def test_digest_sees_every_bit_and_every_exchange():
  words = np.random.default_rng(0).integers(2**32, size=12, dtype=np.uint32)
  versions = [words]
  for i in range(12):
    for bit in range(32):
      versions.append(words.copy())
      versions[-1][i] ^= np.uint32(1 << bit)
    for j in range(i):
      versions.append(words.copy())
      versions[-1][[i, j]] = words[[j, i]]
  for sums in jax.vmap(digests.of_array)(jnp.stack(versions)):
    assert len(np.unique(sums)) == len(versions) == 1 + 12 * 32 + 66
