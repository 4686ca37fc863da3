"""Estimates from independent parts, with their standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

import numpy as np


def jackknife(
    statistics: Callable[[np.ndarray], np.ndarray],
    parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Estimates [S] without the bias of noise, and their standard errors [S].

  Args:
    statistics: [S, ...] of totals [..., M, N], whatever the number of parts.
    parts: [R, M, N], independent, which add up to a total.
  """
  num, total = len(parts), parts.sum(axis=0)
  without = statistics(total - parts)  # [S, R]
  return (
      num * statistics(total) - (num - 1) * without.mean(axis=-1),
      np.sqrt((num - 1) * without.var(axis=-1)))


def root(square: float, error: float) -> tuple[float, float]:
  """Of an estimate and its standard error, see `benchmarks.credit`."""
  value = math.sqrt(max(square, 0.0))
  return value, math.sqrt(value**2 + error) - value


def mean(values: Sequence[float]) -> tuple[float, float]:
  """Of independent values; and its standard error."""
  return np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
