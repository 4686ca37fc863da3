"""dry_run.py: the engine's schedule, and what a device would read."""

import dataclasses

import numpy as np
import pytest

from atgrpo_jax.model.kernels import ragged
from atgrpo_jax.sampling import decoding_params
from atgrpo_jax.sampling import dry_run
from atgrpo_jax.sampling import engine as engine_lib
from benchmarks import reads
from tests.rl import tiny
from tests.rollout import scripted
from tests.sampling import engine_test


def _engine(device, num_slots, prompt_length, group_size):
  return engine_lib.Engine(
      decoding_params.DecodingParams(
          None, scripted.one_device(), engine_test.CONFIG, 'float32'),
      adapters=None,
      spec=dataclasses.replace(engine_test.SPEC, group_size=group_size),
      num_slots=num_slots, prompt_length=prompt_length, device=device)


@pytest.mark.parametrize('num_slots', [(8,), (2, 4, 16)])
def test_it_is_the_schedule_of_the_engine(num_slots):
  requests = engine_test.make_requests()
  engine = engine_test.make_engine(tiny.make_params(), num_slots)
  sampled = engine_test.drain(engine, requests)
  dry = _engine(
      dry_run.DryRun(1, {
          int(group.request.key[-1]): [len(x) for x in group.completions]
          for group in sampled}), num_slots, 7, 8)
  again = engine_test.drain(dry, requests)
  assert [
      [len(x) for x in group.completions] for group in again
  ] == [[len(x) for x in group.completions] for group in sampled]
  assert dry.counts == engine.counts


def test_reads_are_those_of_a_hand_count():
  # Two groups of two, of which one has to wait.
  device = dry_run.DryRun(1, {0: [20, 3], 1: [1, 1]})
  prompts = [300, 10]
  requests = [
      engine_lib.Request(
          i, np.arange(length, dtype=np.int32) + i,
          np.array([0, i], np.uint32), 100) for i, length in enumerate(prompts)]
  sampled = engine_test.drain(_engine(device, (1,), 512, 2), requests)
  assert [
      [len(x) for x in group.completions] for group in sampled
  ] == [[20, 3], [1, 1]]
  # Chunks of 16 and 4 tokens, then of 1; two rows with a room of 64.
  assert ragged.block_size(512) == 256 and ragged.block_size(64) == 64
  steps, chunk = 16 + 4 + 1, engine_lib.CHUNK
  assert device.reads == dry_run.Reads(
      counting=300 * 20 + sum(range(20)) + sum(range(3)) + 10,
      by_room=steps * (512 + 2 * 64 + 2 * chunk),
      by_block=20 * 512 + 4 * 64 + 256 + steps * 2 * chunk)


def test_blocks_come_near_what_counts():
  found = reads.measure(seed=0, num_prompts=48, num_slots=8)
  assert 1 < found.by_block / found.counting < 1.25
  assert found.by_room / found.counting > 5
