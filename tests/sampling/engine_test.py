"""engine.py: who samples when changes the work, and never the samples."""

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
  """What one engine samples for the requests."""
  for request in requests:
    engine.add(request)
  sampled, = engine_lib.drain([engine])
  return sampled


def num_different(first, second):
  """How many completions of two lists of groups are not the same."""
  return sum(
      not np.array_equal(p, q)
      for x, y in zip(first, second, strict=True)
      for p, q in zip(x.completions, y.completions, strict=True))


@pytest.fixture(scope='module')
def sampled(params):
  """Twenty-four groups in eight slots."""
  return drain(make_engine(params), make_requests())


# The samples.


def test_samples_are_not_all_alike(sampled):
  lengths = [len(ids) for one in sampled for ids in one.completions]
  # Some of one chunk and some of several, some cut.
  assert min(lengths) < engine_lib.CHUNK < 4 * engine_lib.CHUNK < max(lengths)
  assert len({tuple(ids) for x in sampled for ids in x.completions}) > 150
  for one in sampled:
    for ids, logprobs in zip(one.completions, one.logprobs):
      assert len(ids) == len(logprobs) <= 100
      ended = np.isin(ids, SPEC.stop_ids)
      assert not ended[:-1].any()
      assert ended[-1] or len(ids) == 100


# Products of another shape may be rounded in another way, which decides ties.


def test_when_a_request_comes_changes_ties_alone(params, sampled):
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


def test_whole_numbers_move_with_their_scales(params, sampled):
  # Slots, rows and their length change meanwhile.
  together = drain(
      make_engine(params, kv_cache_dtype='int8'), make_requests())
  engine = make_engine(params, num_slots=(2, 8), kv_cache_dtype='int8')
  engine.add(make_requests()[0])
  engine.dispatch()
  found = engine.collect() + drain(engine, make_requests()[1:])
  found.sort(key=lambda one: one.request.tag)
  assert num_different(found, together) <= 1 < num_different(sampled, together)


def test_a_budget_cuts_and_changes_nothing_else(params, sampled):
  requests = [
      dataclasses.replace(request, budget=1 + request.tag)
      for request in make_requests()]
  for one, other in zip(drain(make_engine(params), requests), sampled):
    for ids, longer in zip(one.completions, other.completions):
      np.testing.assert_array_equal(ids, longer[:one.request.budget])


# The work.


def test_room_that_is_allowed_and_not_used_is_free(params):
  counts = []
  for budget in (100, 200):
    engine = make_engine(params, stop_ids=tuple(range(8)))
    sampled = drain(engine, make_requests(budget=budget))
    counts.append(engine.counts)
    assert max(len(x) for one in sampled for x in one.completions) <= 100
  assert counts[0] == counts[1]
  assert counts[0].prefilled_rows == 24  # Each prompt once.


def test_waiting_groups_take_the_slots_of_finished_ones(params):
  engine = make_engine(params, stop_ids=NEVER)
  drain(engine, [
      dataclasses.replace(request, budget=16 if request.tag else 64)
      for request in make_requests(29)])
  # Beside the long one, seven at a time.
  assert engine.counts.decoded_rows == 4 * 64 * 16


def test_who_has_ended_costs_nothing(params):
  def cache_bytes():
    return sum(x.nbytes for x in jax.live_arrays() if x.ndim == 4)

  gc.collect()
  of_other_tests = cache_bytes()
  engine = make_engine(params, (8, 32), stop_ids=NEVER)
  for request in make_requests(32):
    engine.add(dataclasses.replace(
        request, budget=64 if request.tag < 8 else 16))
  kept = []
  while engine.busy:
    engine.dispatch()
    engine.collect()
    kept.append(cache_bytes() - of_other_tests)
  # 32 groups for 16 tokens, then 8 for 48. Their prompts are read once for all
  # candidates. Bite: a count of rows in the place of slots, slots that are not
  # in flight.
  assert engine.counts.decoded_rows == 8 * (32 * 16 + 8 * 48)
  assert engine.counts.read_prefix_positions == 7 * (32 * 16 + 8 * 48)
  # Memory shrinks, and is given back in the end.
  assert kept[1] < 0.6 * kept[0] and kept[-1] == 0


# What prompts have in common.


@pytest.fixture
def short_shared_prefixes(monkeypatch):
  monkeypatch.setattr(placement, 'MIN_PREFIX_LENGTH', 4)
  monkeypatch.setattr(placement, '_MIN_SIZE', 4)


def make_alike(num=8, budget=14):
  """Prompts of two roles, each with instructions of its own, 8 to 12 tokens."""
  texts = {'tool': tiny.ids(7, seed=5), 'planner': tiny.ids(5, seed=6)}
  requests = []
  for request, role in zip(
      make_requests(num, budget), ['tool', 'planner'] * num):
    own = np.concatenate([texts[role], request.prompt[:4], [1]])
    requests.append(dataclasses.replace(
        request, prompt=own.astype(np.int32), role=role))
  return requests


def drain_apart(params, requests, **changes):
  """Samples of an engine that shares nothing, as each has its own role."""
  engine = make_engine(params, prompt_length=16, **changes)
  sampled = drain(engine, [
      dataclasses.replace(request, role=str(request.tag))
      for request in requests])
  assert engine.counts.shared_prefixes == 0
  return sampled, engine.counts


def test_common_beginnings_are_prefilled_once(params, short_shared_prefixes):
  engine = make_engine(params, prompt_length=16)
  found = drain(engine, make_alike())
  assert engine.counts.shared_prefixes == 2
  # Shared prefixes of 8 and 8, and 4 prompts of each role with 8 and 8.
  assert engine.counts.prefilled_positions == 8 + 8 + 4 * 8 + 4 * 8
  # More of the same find them there.
  drain(engine, make_alike())
  assert engine.counts.shared_prefixes == 2
  assert engine.counts.prefilled_positions == 8 + 8 + 2 * (4 * 8 + 4 * 8)
  expected, counts = drain_apart(params, make_alike())
  assert counts.prefilled_positions == 8 * 16
  assert num_different(found, expected) <= 1
  for one, other in zip(found, expected):
    for x, y in zip(one.logprobs, other.logprobs):
      if len(x) == len(y):
        np.testing.assert_allclose(x, y, atol=1e-4)


def test_a_prompt_that_begins_in_another_way(params, short_shared_prefixes):
  engine = make_engine(params, prompt_length=16)
  drain(engine, make_alike())
  assert engine.counts.shared_prefixes == 2
  requests = make_alike()
  for tag, length in ((6, 1), (7, 4)):  # Of the first, too little is alike.
    prompt = requests[tag].prompt.copy()
    prompt[length] += 1
    requests[tag] = dataclasses.replace(requests[tag], prompt=prompt)
  found = drain(engine, requests)
  # The planners' has become shorter; that of the tools is as it was.
  assert engine.counts.shared_prefixes == 3
  assert num_different(found, drain_apart(params, requests)[0]) <= 1


@pytest.mark.parametrize('prompts, num_shared', [
    ([[1]], 0), ([[1], [1]], 0), ([[1, 2, 3, 4, 5]], 0),
    # The last token of a prompt is no part of what it shares.
    ([range(9), range(9)], 1), ([range(4), range(4)], 0)])
def test_what_has_a_shared_prefix(
    params, short_shared_prefixes, prompts, num_shared):
  engine = make_engine(params, prompt_length=16)
  requests = [
      dataclasses.replace(request, prompt=np.array(prompt, np.int32))
      for request, prompt in zip(make_requests(budget=14), prompts)]
  found = drain(engine, requests)
  assert engine.counts.shared_prefixes == num_shared
  assert num_different(found, drain_apart(params, requests)[0]) <= 1


def test_shared_prefixes_with_adapters(params, short_shared_prefixes):
  lora = model.LoraSpec(rank=2, alpha=4.0, targets=('attention/[qv]/kernel',))
  weights = jax.tree.map(
      lambda x: x + 0.1 * np.arange(1, 3).reshape(2, *[1] * (x.ndim - 1)),
      model.init_lora(jax.random.key(0), CONFIG, lora, 2))
  adapters = model.Adapters(weights, np.full(2, lora.scale, np.float32))
  # One role's beginning, with the other's adapter, is another prefix.
  for requests in (
      [dataclasses.replace(request, adapter=int(request.role == 'tool'))
       for request in make_alike()],
      [dataclasses.replace(request, role='tool', adapter=index % 2)
       for index, request in enumerate(make_alike()[::2])]):
    engine = make_engine(params, prompt_length=16, adapters=adapters)
    found = drain(engine, requests)
    assert engine.counts.shared_prefixes == 2
    expected, _ = drain_apart(params, requests, adapters=adapters)
    assert num_different(found, expected) <= 1


def test_engines_of_one_model_share_one_copy(monkeypatch):
  made, original = [], programs.prepare

  def prepare(*args, **kwargs):
    made.append(original(*args, **kwargs))
    return made[-1]

  monkeypatch.setattr(programs, 'prepare', prepare)
  params = engine_lib.DecodingParams(
      tiny.make_params(), scripted.one_device(), CONFIG, 'float32')
  engines = [
      engine_lib.Engine(
          params, adapters=None, spec=SPEC, num_slots=(8,),
          prompt_length=length) for length in (7, 8)]
  for rounds in (1, 2):  # The copy is dropped when both engines are idle.
    for engine, request in zip(engines, make_requests(2)):
      engine.add(request)
    engine_lib.drain(engines)
    assert len(made) == rounds
  assert params.acquire() == (made[2], params.acquire()[1])
