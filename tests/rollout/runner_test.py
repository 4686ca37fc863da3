"""Samples and steps: batched, counted, and independent of each other."""

from concurrent import futures
import dataclasses
import multiprocessing
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api
from tests.environments.boards import games
from tests.rollout import scripted


class Names:
  """A script for any prompt: its first letters, then 0, 1, ..."""

  def __init__(self, num_letters=3):
    self._num_letters = num_letters

  def __getitem__(self, prompt):
    return [f'{prompt[:self._num_letters]}{i}' for i in range(2)]


class Shifted(scripted.Bytes):
  """Another prompt for the same messages."""

  stop_ids = (scripted.STOP, 1)

  def encode_prompt(self, messages):
    return super().encode_prompt(messages) + 1


def make_request(task_id, role='a', turn=0, branch=0, total=0):
  return runner_lib.SampleRequest(
      types.GroupKey(task_id, role, turn, branch),
      scripted.State(task_id, goal=5, total=total, turn=turn))


def sample(runner, requests, group_size=2):
  return scripted.wait_for(
      runner, runner.sample(requests, group_size=group_size))


def step(runner, states, actions):
  return scripted.wait_for(runner, runner.step_environments(states, actions))


def texts_of(group):
  return [scripted.Bytes().decode(ids) for ids in group.completions]


def ids_of(group):
  return [tuple(ids) for ids in group.completions]


@pytest.fixture
def engines(monkeypatch):
  """The scripted engines, as they are made."""
  scripted.follow_scripts(monkeypatch)
  return scripted.Engine.made


# Engines.


def test_one_engine_for_each_policy_and_length(engines):
  one, two = Names(2), Names(4)
  runner = scripted.make_runner(
      {'one': one, 'two': two}, prompt_buckets=(18, 20), group_buckets=(2, 4),
      temperature=0.6)
  requests = [
      make_request('A', 'a'), make_request('B', 'b'),
      make_request('C', 'a', total=10), make_request('D', 'a'),
      make_request('E', 'b')]
  groups = sample(runner, requests)
  assert [
      (engine.params is one, engine.prompt_length, len(engine.requests))
      for engine in engines] == [(True, 18, 2), (False, 18, 2), (True, 20, 1)]
  for engine in engines:
    assert engine.num_slots == (2, 4)
    assert engine.spec.group_size == 2
    assert engine.spec.temperature == 0.6
    assert {request.budget for request in engine.requests} == {12}
  assert [texts_of(group)[1] for group in groups] == [
      'A/1', 'B/b 1', 'C/1', 'D/1', 'E/b 1']
  assert sample(runner, []) == []
  # Those of the next turn go into the same engines.
  sample(runner, requests[:2])
  assert [len(e.requests) for e in engines] == [3, 3, 1]


def test_policies_of_one_model_have_their_own_tokenizers(engines):
  # Bite: stop ids that do not enter the key of the engines.
  runner = scripted.make_runner({'one': Names()})
  runner.policies['two'] = dataclasses.replace(
      runner.policies['one'], tokenizer=Shifted())
  groups = sample(runner, [make_request('A', 'a'), make_request('B', 'b')])
  assert bytes(groups[0].request.prompt.tolist()) == b'A/a turn 0 total 0'
  assert bytes((groups[1].request.prompt - 1).tolist()) == (
      b'B/b turn 0 total 0')
  assert [e.spec.stop_ids for e in engines] == [(0,), (0, 1)]


@pytest.mark.parametrize('prompt_buckets, max_new_tokens, limit', [
    ((8, 18), 12, 18), ((8, 17), 12, 17), ((8, 32), 46, 18), ((8, 32), 47, 17)])
def test_a_prompt_that_does_not_fit(
    engines, prompt_buckets, max_new_tokens, limit):
  runner = scripted.make_runner(
      {'one': Names()}, prompt_buckets=prompt_buckets,
      max_new_tokens=max_new_tokens)
  # Of 18 tokens each.
  requests = [make_request('T'), make_request('U', turn=1)]
  if limit == 18:
    assert len(sample(runner, requests)) == 2
    return
  with pytest.raises(errors.UserError, match=(
      "role 'a' in task 'U', turn 2, has 18 tokens; at most 17 fit. Raise "
      rf'buckets.prompt \(largest: {prompt_buckets[-1]}\) or lower '
      rf'rollout.max_new_tokens \({max_new_tokens} of')):
    sample(runner, requests[1:])
  assert not engines


def test_usage_adds_up(engines):
  runner = scripted.make_runner({'one': Names(3), 'two': Names(99)})
  requests = [
      make_request('A', 'a'), make_request('B', 'b'),
      make_request('C', 'a', total=10)]
  for repeat in (1, 2):
    groups = sample(runner, requests)
    usage = runner.usage
    assert usage.prompt_tokens == repeat * (18 + 18 + 19)
    # 'A/a0' and its stop token; but two of 18 letters are cut at 12.
    assert usage.completion_tokens == repeat * (2 * 5 + 2 * 12 + 2 * 5)
    assert usage.model_calls == repeat * 6
    assert usage.cut_completions == repeat * 2
  assert texts_of(groups[1]) == ['B/b turn 0 t'] * 2
  assert usage.sample_seconds > 0
  assert (usage.environment_steps, usage.environment_seconds) == (0, 0)

  states = [request.state for request in requests]
  actions = [{'a': '2'}, {'b': '3 broken'}, {'a': '1'}]
  steps = step(runner, states, actions)
  assert steps == [
      runner.environment.step(*pair) for pair in zip(states, actions)]
  assert usage.environment_steps == 3
  assert usage.infrastructure_failures == 1
  assert usage.environment_seconds > 0
  assert usage.model_calls == 12
  assert step(runner, [], []) == []

  # A reward that is not finite is no fault of who acted.
  found, = step(runner, states[:1], [{'a': '3 nan'}])
  assert found.outcomes == {'a': env_api.Outcome.INFRASTRUCTURE}
  assert usage.infrastructure_failures == 2


def test_steps_are_taken_in_worker_processes_without_jax():
  case = games.CASES['plan_path']
  environment = case.make('pair')
  state = environment.reset(case.task)
  actions = [{'tool': text} for text in (
      '```python\n["D"]\n```', 'none', '```python\nprint(1)\n```')]
  actions += [{'planner': f'#### {moves}'} for moves in (
      '["D"]', '["U"]', '["R", "R"]')]
  with futures.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context('spawn')) as executor:
    runner = scripted.make_runner(
        {}, environment=environment, executor=executor)
    steps = step(runner, [state] * 6, actions)
    # It takes time and memory that a worker has no use for.
    imported = executor.submit(eval, "set(__import__('sys').modules)").result()
  assert 'environments.boards.plan_path.env' in imported
  assert 'jax' not in imported
  assert steps == [environment.step(state, action) for action in actions]
  assert runner.usage.program_runs == 2


def test_what_candidates_do_alike_is_done_once():
  # Bite: steps that are told apart by their actions alone; program runs that
  # are counted for each candidate.
  made = []

  class Running(scripted.Counting):
    def step(self, state, actions):
      made.append((state, actions))
      return dataclasses.replace(
          super().step(state, actions), program_runs=1)

  runner = scripted.make_runner({}, environment=Running(), executor=Inline())
  one, other = make_request('A').state, make_request('A', total=1).state
  asked = [
      (one, {'a': '1'}), (one, {'a': '2'}), (one, {'a': '1'}),
      (other, {'a': '1'}), (one, {'b': '1'}), (one, {'a': '1'}),
      (one, {'a': '3 broken'}), (one, {'a': '3 broken'})]
  steps = step(runner, *zip(*asked))
  assert made == [asked[i] for i in (0, 1, 3, 4, 6)]
  assert [x.state.total for x in steps] == [1, 2, 1, 2, 1, 1, 3, 3]
  assert steps == [
      runner.environment.step(state, actions) for state, actions in asked]
  usage = runner.usage
  assert (usage.environment_steps, usage.program_runs) == (8, 5)
  assert usage.infrastructure_failures == 2


def test_what_persists_in_one_process_stops_all(monkeypatch):
  # Bite: who has no problem waits for the others' next exchange.
  told = []

  def exchange(value):
    told.append(value)
    return [value, ('The other is broken.', None, False)]

  monkeypatch.setattr(runner_lib.hosts, 'exchange', exchange)
  runner = scripted.make_runner({})
  with pytest.raises(errors.InfrastructureError, match='The other is broken'):
    step(runner, [make_request('A').state], [{'a': '2'}])

  class Broken(futures.Executor):
    def submit(self, *args):
      call = futures.Future()
      call.set_exception(errors.InfrastructureError('This one is broken.'))
      return call

  runner = scripted.make_runner({}, executor=Broken())
  with pytest.raises(errors.InfrastructureError, match='broken'):
    step(runner, [make_request('A').state], [{'a': '2'}])
  (problem, share, _), last = told
  assert problem == '' and share[0][0][0].state.total == 2
  assert last == ('This one is broken.', None, False)


def test_who_is_stopped_while_it_waits_stops_all(monkeypatch):
  monkeypatch.setattr(
      runner_lib.hosts, 'exchange', lambda value: [value, ('', None, True)])
  runner = scripted.make_runner({})
  with pytest.raises(signals.Stopped):
    step(runner, [make_request('A').state], [{'a': '2'}])


@pytest.mark.parametrize('count, looks', [(1, 20), (3, 3)])
def test_processes_ask_each_other_now_and_then(monkeypatch, count, looks):
  asked = []
  monkeypatch.setattr(runner_lib.jax, 'process_count', lambda: count)
  monkeypatch.setattr(
      runner_lib.hosts, 'any_process', lambda flag: bool(asked.append(flag)))
  runner = scripted.make_runner({})
  for num_chunks in range(20):
    runner._check_stopped(num_chunks)
  assert len(asked) == looks and not any(asked)
  runner.is_stopped = lambda: True
  monkeypatch.setattr(runner_lib.hosts, 'any_process', lambda flag: flag)
  with pytest.raises(signals.Stopped):
    runner._check_stopped(0)


# Samples of a real model.


def test_samples_depend_on_their_own_key_and_policy_alone():
  params = [
      model.init_params(jax.random.key(seed), scripted.CONFIG)
      for seed in (0, 1)]

  def make(policies=(0, 1), **kwargs):
    return scripted.make_runner(
        {'one': params[policies[0]], 'two': params[policies[1]]},
        max_new_tokens=3, **kwargs)

  def ids(request, **kwargs):
    group, = sample(make(**kwargs), [request], group_size=3)
    return ids_of(group)

  requests = [make_request(name, role) for name in 'ABC' for role in 'ab']
  together = sample(make(), requests, group_size=3)
  backwards = sample(make(), requests[::-1], group_size=3)[::-1]
  for x, y in zip(together, backwards, strict=True):
    assert ids_of(x) == ids_of(y)
    np.testing.assert_array_equal(x.request.prompt, y.request.prompt)
    for p, q in zip(x.logprobs, y.logprobs):
      np.testing.assert_allclose(p, q, atol=1e-5)
  assert ids_of(together[1]) == ids(requests[1])
  assert len({tuple(ids_of(x)) for x in together}) == len(requests)

  request = make_request('A')
  first = ids_of(together[0])
  for changed in (
      ids(request, train_step=1), ids(request, seed=1),
      ids(request, policies=(1, 0)), ids(make_request('A', branch=1)),
      # The same prompt under other keys.
      *(ids(dataclasses.replace(request, key=types.GroupKey(*key)))
        for key in (('B', 'a', 0, 0), ('A', 'a', 1, 0)))):
    assert changed != first
  assert ids(request, policies=(0, 0)) == first


class Adding(scripted.Counting):
  """Any text is a number below three, so some episodes end early."""

  def step(self, state, actions):
    return super().step(
        state, {role: str(len(text) % 3) for role, text in actions.items()})


class Letters(scripted.Bytes):
  """One id in eight ends a completion."""

  stop_ids = tuple(range(16))


class Inline(futures.Executor):
  """Has done all before anybody can wait for it."""

  late = False

  def submit(self, fn, /, *args):
    done = futures.Future()
    done.set_result(fn(*args))
    return done


class Late(futures.ThreadPoolExecutor):
  """Sleeps before each call, so that the devices go on in the meantime."""

  def __init__(self):
    super().__init__(4)
    self._rng = np.random.default_rng(0)
    self._submitted = []

  @property
  def late(self):
    return not all(call.done() for call in self._submitted)

  def submit(self, fn, /, *args):
    seconds = self._rng.uniform(0, 0.05)

    def call():
      time.sleep(seconds)
      return fn(*args)

    self._submitted.append(super().submit(call))
    return self._submitted[-1]


@pytest.mark.parametrize('mode', spec_lib.RETURN_TYPES)
def test_no_bit_depends_on_the_time_of_programs(mode, monkeypatch):
  # Bite: steps that are taken in only where they are done, episodes that go on
  # in the order in which their steps end.
  monkeypatch.setattr(engine_lib, 'CHUNK', 4)
  overlaps, dispatch = [], engine_lib.Engine.dispatch

  def dispatch_and_tell(engine):
    dispatch(engine)
    overlaps.append(engine.busy and runner.executor.late)

  monkeypatch.setattr(engine_lib.Engine, 'dispatch', dispatch_and_tell)
  params = [
      model.init_params(jax.random.key(seed), scripted.CONFIG)
      for seed in (0, 1)]
  played = []
  for executor in (Inline(), Late()):
    overlaps.clear()
    # One row is multiplied in another way than eight.
    runner = scripted.make_runner(
        dict(zip(('one', 'two'), params)), environment=Adding(max_turns=3),
        group_buckets=(1, 8), tokenizer=Letters, executor=executor)
    with executor:
      played.append(scripted.collect(
          runner, {name: 2 + i % 3 for i, name in enumerate('ABCDEF')},
          mode=mode, group_size=4))
    assert any(overlaps) == isinstance(executor, Late)

  expected, late = played
  np.testing.assert_equal(
      list(map(dataclasses.asdict, late)),
      list(map(dataclasses.asdict, expected)))
  # They are not all alike.
  groups = tree_lib.groups_of(expected)
  assert {
      episode.turns for tree in expected
      for episode in tree.episodes()} == {1, 2, 3}
  lengths = {len(c.completion) for group in groups for c in group.candidates}
  assert min(lengths) == 1 and max(lengths) == 12 and len(lengths) > 5
