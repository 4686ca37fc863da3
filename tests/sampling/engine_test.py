"""Scheduling changes the work of the engine, never the completions."""

import dataclasses
import gc

import jax
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import placement
from atgrpo_jax.sampling import programs
from tests.rl import tiny
from tests.rollout import scripted

# Two in 32 tokens end a completion.
SPEC = programs.SamplerSpec(
    group_size=8, temperature=1.0, stop_ids=(3, 7), dtype='float32')
CONFIG = dataclasses.replace(tiny.CONFIG, max_positions=256)
NEVER = (CONFIG.vocab_size,)


@pytest.fixture(scope='module')
def params():
  return tiny.make_params()


def make_engine(
    params, num_slots=(8,), prompt_length=7, adapters=None, **changes):
  return engine_lib.Engine(
      engine_lib.DecodingParams(
          params, scripted.one_device(), CONFIG, SPEC.dtype),
      adapters=adapters, spec=dataclasses.replace(SPEC, **changes),
      num_slots=num_slots, prompt_length=prompt_length)


def make_requests(num=24, budget=100):
  """Distinct prompts of three lengths."""
  prompts = tiny.ids(num, 7)
  keys = np.asarray(jax.random.key_data(programs.group_keys(
      jax.random.key(2), np.arange(num, dtype=np.uint32)[:, None])))
  return [
      engine_lib.Request(i, prompts[i, :(7, 4, 1)[i % 3]], keys[i], budget)
      for i in range(num)]


def drain(engine, requests):
  """The sampled groups of the requests."""
  for request in requests:
    engine.add(request)
  sampled, = engine_lib.drain([engine])
  return sampled


# Products of another shape may be rounded differently, which decides ties.
def num_different(first, second):
  """Number of completions that differ between two lists of groups."""
  return sum(
      not np.array_equal(p, q)
      for x, y in zip(first, second, strict=True)
      for p, q in zip(x.completions, y.completions, strict=True))


@pytest.fixture(scope='module')
def sampled(params):
  """Twenty-four groups in eight slots."""
  return drain(make_engine(params), make_requests())


def test_completions_differ_and_end_at_stop_ids(sampled):
  lengths = [len(ids) for one in sampled for ids in one.completions]
  # Some need one chunk, some several, some are truncated.
  assert min(lengths) < engine_lib.CHUNK < 4 * engine_lib.CHUNK < max(lengths)
  assert len({tuple(ids) for x in sampled for ids in x.completions}) > 150
  for one in sampled:
    for ids, logprobs in zip(one.completions, one.logprobs):
      assert len(ids) == len(logprobs) <= 100
      ended = np.isin(ids, SPEC.stop_ids)
      assert not ended[:-1].any()
      assert ended[-1] or len(ids) == 100


def test_arrival_of_requests_changes_ties_only(params, sampled):
  rng = np.random.default_rng(0)
  engine = make_engine(params)
  requests = make_requests()
  rng.shuffle(requests)
  found = [None] * len(requests)
  while requests or engine.busy:
    for _ in range(min(rng.integers(5), len(requests))):
      engine.add(requests.pop())
    engine.dispatch()
    for one in engine.collect():
      found[one.request.tag] = one
  assert num_different(found, sampled) <= 1


def test_waiting_groups_reuse_free_slots(params):
  engine = make_engine(params, stop_ids=NEVER)
  drain(engine, [
      dataclasses.replace(request, budget=16 if request.tag else 64)
      for request in make_requests(29)])
  # Seven short groups at a time beside the long one.
  assert engine.counts.decoded_rows == 4 * 64 * 16


def test_finished_groups_cost_nothing(params):
  def cache_bytes():
    return sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)

  gc.collect()
  before = cache_bytes()
  engine = make_engine(params, (8, 32), stop_ids=NEVER)
  for request in make_requests(32):
    engine.add(dataclasses.replace(
        request, budget=64 if request.tag < 8 else 16))
  kept = []
  while engine.busy:
    engine.dispatch()
    engine.collect()
    kept.append(cache_bytes() - before)
  # 32 groups for 16 tokens, then 8 for 48. Prompts are read once per group.
  assert engine.counts.decoded_rows == 8 * (32 * 16 + 8 * 48)
  assert engine.counts.read_prefix_positions == 7 * (32 * 16 + 8 * 48)
  # Memory shrinks, and is freed in the end.
  assert kept[1] < 0.6 * kept[0] and kept[-1] == 0


@pytest.fixture
def short_shared_prefixes(monkeypatch):
  monkeypatch.setattr(placement, 'MIN_PREFIX_LENGTH', 4)
  monkeypatch.setattr(placement, '_MIN_SIZE', 4)


def make_shared(num=8, budget=14):
  """Prompts of 8 to 12 tokens; each of the two roles has instructions."""
  texts = {'tool': tiny.ids(7, seed=5), 'planner': tiny.ids(5, seed=6)}
  requests = []
  for request, role in zip(
      make_requests(num, budget), ['tool', 'planner'] * num):
    prompt = np.concatenate([texts[role], request.prompt[:4], [1]])
    requests.append(dataclasses.replace(
        request, prompt=prompt.astype(np.int32), role=role))
  return requests


def drain_unshared(params, requests, **changes):
  """Drains without shared prefixes, because all roles differ."""
  engine = make_engine(params, prompt_length=16, **changes)
  sampled = drain(engine, [
      dataclasses.replace(request, role=str(request.tag))
      for request in requests])
  assert engine.counts.shared_prefixes == 0
  return sampled, engine.counts


def test_shared_prefixes_are_prefilled_once(params, short_shared_prefixes):
  engine = make_engine(params, prompt_length=16)
  found = drain(engine, make_shared())
  assert engine.counts.shared_prefixes == 2
  # Shared prefixes of 8 and 8, and 4 prompts of each role with 8 and 8.
  assert engine.counts.prefilled_positions == 8 + 8 + 4 * 8 + 4 * 8
  # Later requests reuse the prefixes.
  drain(engine, make_shared())
  assert engine.counts.shared_prefixes == 2
  assert engine.counts.prefilled_positions == 8 + 8 + 2 * (4 * 8 + 4 * 8)
  expected, counts = drain_unshared(params, make_shared())
  assert counts.prefilled_positions == 8 * 16
  assert num_different(found, expected) <= 1
  for one, other in zip(found, expected):
    for x, y in zip(one.logprobs, other.logprobs):
      if len(x) == len(y):
        np.testing.assert_allclose(x, y, atol=1e-4)


@pytest.mark.parametrize('prompts, num_shared', [
    ([[1]], 0), ([[1], [1]], 0), ([[1, 2, 3, 4, 5]], 0),
    # The last token of a prompt is never shared.
    ([range(9), range(9)], 1), ([range(4), range(4)], 0)])
def test_number_of_shared_prefixes(
    params, short_shared_prefixes, prompts, num_shared):
  engine = make_engine(params, prompt_length=16)
  requests = [
      dataclasses.replace(request, prompt=np.array(prompt, np.int32))
      for request, prompt in zip(make_requests(budget=14), prompts)]
  found = drain(engine, requests)
  assert engine.counts.shared_prefixes == num_shared
  assert num_different(found, drain_unshared(params, requests)[0]) <= 1


def test_shared_prefixes_with_adapters(params, short_shared_prefixes):
  lora = model.LoraSpec(rank=2, alpha=4.0, targets=('attention/[qv]/kernel',))
  weights = jax.tree.map(
      lambda x: x + 0.1 * np.arange(1, 3).reshape(2, *[1] * (x.ndim - 1)),
      model.init_lora(jax.random.key(0), CONFIG, lora, 2))
  adapters = model.Adapters(weights, np.full(2, lora.scale, np.float32))
  # Equal prompts with different adapters have different prefixes.
  for requests in (
      [dataclasses.replace(request, adapter=int(request.role == 'tool'))
       for request in make_shared()],
      [dataclasses.replace(request, role='tool', adapter=index % 2)
       for index, request in enumerate(make_shared()[::2])]):
    engine = make_engine(params, prompt_length=16, adapters=adapters)
    found = drain(engine, requests)
    assert engine.counts.shared_prefixes == 2
    expected, _ = drain_unshared(params, requests, adapters=adapters)
    assert num_different(found, expected) <= 1
