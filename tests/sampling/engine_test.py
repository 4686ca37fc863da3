"""Scheduling changes the work of the engine, never the completions."""

import dataclasses
import gc

import jax
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.distributed import fit
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests.rl import tiny
from tests.rollout import scripted

# Two in 32 tokens end a completion.
SPEC = programs.SamplerSpec(
    group_size=8, temperature=1.0, stop_ids=(3, 7), dtype='float32')
CONFIG = dataclasses.replace(tiny.CONFIG, max_positions=256)
NEVER = (CONFIG.vocab_size,)


def make_model(params, adapters=None, dtype=SPEC.dtype):
  return engine_lib.SampledModel(
      params, CONFIG, dtype, scripted.one_device(), adapters)


def make_engine(
    sampled, num_slots=(8,), prompt_lengths=(7,), num_rows=0, **changes):
  """An engine of a model, or of its parameters."""
  if not isinstance(sampled, engine_lib.SampledModel):
    sampled = make_model(sampled)
  return engine_lib.Engine(
      sampled, spec=dataclasses.replace(SPEC, dtype=sampled.dtype, **changes),
      num_slots=num_slots, prompt_lengths=prompt_lengths, num_rows=num_rows)


def make_requests(num=24, budget=100):
  """Distinct prompts of three lengths."""
  prompts = tiny.ids(num, 7)
  return [
      engine_lib.Request(i, prompts[i, :(7, 4, 1)[i % 3]], (2, i), budget)
      for i in range(num)]


def chunks(*engines, found):
  """Yields while each chunk is decoded; adds the sampled groups to `found`."""
  while any(engine.busy for engine in engines):
    for engine in engines:
      engine.dispatch()
    yield
    for engine in engines:
      found += engine.collect()


def drain(engine, requests):
  """The sampled groups of the requests."""
  for request in requests:
    engine.add(request)
  return tiny.drain(engine)


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
  lengths = [len(ids) for group in sampled for ids in group.completions]
  # Some need one chunk, some several, some are truncated.
  assert min(lengths) < engine_lib.CHUNK < 4 * engine_lib.CHUNK < max(lengths)
  assert len({tuple(ids) for x in sampled for ids in x.completions}) > 150
  for group in sampled:
    for ids, logprobs in zip(group.completions, group.logprobs):
      assert len(ids) == len(logprobs) <= 100
      ended = np.isin(ids, SPEC.stop_ids)
      assert not ended[:-1].any()
      assert ended[-1] or len(ids) == 100


def test_requests_can_end_candidates(params, sampled):
  def find_end(tokens, num_new):
    ends = np.flatnonzero(np.isin(tokens, SPEC.stop_ids)) + 1
    assert not np.any(ends <= len(tokens) - num_new)
    return next(iter(ends), 0)

  engine = make_engine(params, stop_ids=NEVER)
  requests = [
      dataclasses.replace(x, find_end=find_end) for x in make_requests()]
  found = drain(engine, requests)
  assert num_different(found, sampled) <= 1
  assert all(
      len(ids) == len(logprobs) for group in found
      for ids, logprobs in zip(group.completions, group.logprobs))


@pytest.mark.parametrize('budget, capacity', [(100, 128), (130, 256)])
def test_rows_of_bfloat16_hold_the_longest_completion(
    params, budget, capacity):
  engine = make_engine(make_model(
      model.cast(params, jax.numpy.bfloat16), dtype='bfloat16'), (1,))
  request, = make_requests(num=1, budget=budget)
  engine.add(request)
  engine.dispatch()
  assert engine._capacity == capacity


def test_ended_candidates_lose_their_rows(params):
  engine = make_engine(params, num_slots=(16,), stop_ids=NEVER)
  for request in make_requests(num=16):
    engine.add(dataclasses.replace(
        request, find_end=lambda tokens, _: int(tokens[0] % 2)))
  engine.dispatch()
  engine.collect()
  running = np.array(engine._slots.running)
  assert 0 < running.sum() < running.size
  engine.dispatch()
  engine.collect()
  assert engine._num_rows == 64  # Of 128.


def test_parameters_are_copied_only_into_another_dtype(params):
  for dtype in ('float32', 'bfloat16'):
    prepared = make_model(params, dtype=dtype).prepared
    assert (prepared is params) == (dtype == 'float32')
    assert prepared['embedding'].dtype == dtype


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
    for group in engine.collect():
      found[group.request.tag] = group
  assert num_different(found, sampled) <= 1


def test_prompts_are_computed_without_the_padding_of_their_slots(
    params, sampled, monkeypatch):
  fill, shapes = programs.fill, set()

  def record(params, slots, slot_ids, prompts, *args, **kwargs):
    shapes.add(prompts.shape)
    return fill(params, slots, slot_ids, prompts, *args, **kwargs)

  monkeypatch.setattr(programs, 'fill', record)
  monkeypatch.setattr(engine_lib, '_MAX_CPU_PREFILL', 2048)
  found = drain(make_engine(params, prompt_lengths=(512,)), make_requests())
  assert shapes == {(4, 128), (1, 128)}
  assert num_different(found, sampled) <= 1


@pytest.mark.parametrize('num_rows', [0, 64])
def test_rows_that_move_keep_their_adapter(params, num_rows):
  spec = model.LoraSpec(rank=3, alpha=3.0, targets=('.*kernel',))
  weights = [
      jax.tree.map(lambda x: x + 0.1 * sign, model.init_lora(
          jax.random.key(sign), CONFIG, spec)) for sign in (1, -1)]
  requests = make_requests(16)
  found = drain(
      make_engine(
          make_model(params, model.stack(weights, [1.0, 1.0])), (16,),
          num_rows=num_rows),
      [dataclasses.replace(x, adapter=x.tag % 2) for x in requests])
  # 128 candidates begin, and at most 64 rows are left for the last ones.
  lengths = np.sort([len(ids) for x in found for ids in x.completions])
  assert lengths[-64] < lengths[-1] - engine_lib.CHUNK
  for adapter in (0, 1):
    alone = drain(
        make_engine(make_model(
            params, model.stack([weights[adapter]], [1.0]))),
        requests[adapter::2])
    assert num_different(found[adapter::2], alone) <= 1


def test_candidates_wait_for_rows(params, monkeypatch):
  """One program decodes, and few rows are free."""
  decode, shapes = programs.decode, set()

  def record(params, slots, past, *args, **kwargs):
    shapes.add((len(slots.running), *past.keys[0].shape[::3]))
    return decode(params, slots, past, *args, **kwargs)

  monkeypatch.setattr(programs, 'decode', record)
  requests = make_requests(72, budget=64)
  engine = make_engine(params, (16,), num_rows=64)
  found = drain(engine, requests)
  assert shapes == {(16, 64, 128)}
  assert engine.num_at_work > 0.8 * engine.num_decoded
  assert num_different(found, drain(make_engine(params), requests)) <= 1


@pytest.mark.parametrize('skips_padding', [False, True])
def test_prompts_of_all_lengths_are_decoded_together(
    params, skips_padding, monkeypatch):
  """The estimate of `fit` holds."""
  monkeypatch.setattr(model, 'skips_padding', lambda *_: skips_padding)
  shapes = fit.Shapes(256, 128, SPEC.group_size, 1, (2, 4, 8))
  learner = fit.Learner(CONFIG, 'none', itemsize=4)
  limit = shapes.groups[-1] * shapes.group_tokens * learner.kv_bytes
  prompts = tiny.ids(24, 200)
  requests = [
      engine_lib.Request(i, prompts[i, :(5, 60, 200)[i // 8]], (2, i), 100)
      for i in range(24)]
  engine = make_engine(params, shapes.groups, (7, 64, 256))
  for request in requests:
    engine.add(request)
  found, lengths, held = [], set(), 0
  for _ in chunks(engine, found=found):
    lengths.add(engine._slots.prompt_length)
    held = max(held, sum(x.nbytes for x in jax.tree.leaves(
        (engine._slots.prefix, engine._past))))
  assert 0.6 * limit < held < 1.05 * limit
  assert lengths == ({256} if skips_padding else {7, 64, 256})
  found.sort(key=lambda group: group.request.tag)
  for i, length in enumerate((7, 64, 256)):
    same = slice(8 * i, 8 * i + 8)
    alone = drain(make_engine(params, (8,), (length,)), requests[same])
    assert num_different(found[same], alone) <= 1


def test_a_long_prompt_waits_for_memory_on_a_cpu(params, monkeypatch):
  token_bytes = 8 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim
  # Eight slots of 64 tokens, or two of 256.
  monkeypatch.setattr(
      engine_lib, '_MAX_CPU_PROMPT_BYTES', 2 * 256 * token_bytes)
  prompts = tiny.ids(9, 200)
  engine = make_engine(params, (2, 8), (64, 256), stop_ids=NEVER)
  for i in range(9):
    engine.add(engine_lib.Request(
        i, prompts[i, :200 if i == 4 else 60], (2, i), 16))
  shapes = [
      (len(engine._held), engine._slots.prompt_length)
      for _ in chunks(engine, found=[])]
  # The first four, then the long one and its successor, then the others.
  assert shapes == [(8, 64), (2, 256), (8, 64)]


def test_engines_of_a_model_share_its_slots_and_rows(params, sampled):
  shared = make_model(params)
  engines = [
      make_engine(shared, (2, 4, 8), num_rows=24) for _ in range(3)]
  for request in make_requests():
    engines[request.tag % 3].add(request)
  found, held, rows = [], [], []
  for _ in chunks(*engines, found=found):
    held.append([len(engine._held) for engine in engines])
    rows.append([share.num_rows for share in shared.shares.values()])
  assert max(map(sum, held)) == 8 and any(all(x) for x in held)
  assert max(map(sum, rows)) == 24
  # Few numbers are compiled; two groups have 16 candidates.
  assert {*sum(rows, [])} <= {0, 6, 12, 16, 18, 24}
  assert not shared.shares
  found.sort(key=lambda group: group.request.tag)
  assert num_different(found, sampled) <= 1


def test_waiting_candidates_sample_nothing_in_free_rows(params):
  """Also if their engine gives rows to another."""
  shared = make_model(params)
  first, second = (
      make_engine(
          shared, (4, 8), num_rows=8, group_size=3, stop_ids=NEVER)
      for _ in range(2))
  requests = make_requests(9, budget=32)
  first.add(dataclasses.replace(requests[0], budget=16))
  for request in requests[1:4]:
    first.add(request)
  first.dispatch()
  found = first.collect()
  # One group has left three of eight rows, and its slot is taken at once.
  first.add(requests[4])
  for request in requests[5:]:
    second.add(request)
  for _ in chunks(second, first, found=found):
    pass
  for group in found:
    assert {*map(len, group.completions)} == {group.request.budget}


def test_waiting_groups_reuse_free_slots(params):
  engine = make_engine(params, stop_ids=NEVER)
  for request in make_requests(29):
    engine.add(dataclasses.replace(request, budget=16 if request.tag else 64))
  num_chunks = 0
  while engine.busy:
    engine.dispatch()
    engine.collect()
    num_chunks += 1
  # Seven short groups at a time beside the long one.
  assert num_chunks == 4


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
  # Memory shrinks with the groups, from 32 to 8, and is freed in the end.
  assert kept[1] < 0.6 * kept[0] and kept[-1] == 0
