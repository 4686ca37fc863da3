"""Samples and steps: batched, counted, and independent of each other."""

from concurrent import futures
import dataclasses
import multiprocessing
import threading
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import categorical
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from environments import env_api
from environments.boards.plan_path import env as plan_path
from tests.environments import echo_sandbox
from tests.rollout import scripted


class Names:
  """A script for any prompt: its first letters, then 0, 1, ..."""

  def __init__(self, num_letters=3):
    self._num_letters = num_letters

  def __getitem__(self, prompt):
    return [f'{prompt[:self._num_letters]}{i}' for i in range(2)]


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
    assert engine.spec == programs.SamplerSpec(
        group_size=2, temperature=0.6, stop_ids=(scripted.STOP,),
        dtype='float32')
    assert {request.budget for request in engine.requests} == {12}
  assert [texts_of(group)[1] for group in groups] == [
      'A/1', 'B/b 1', 'C/1', 'D/1', 'E/b 1']
  assert [len(group.request.prompt) for group in groups] == [
      18, 18, 19, 18, 18]
  assert sample(runner, []) == []
  # Those of the next turn go into the same engines.
  sample(runner, requests[:2])
  assert [len(e.requests) for e in engines] == [3, 3, 1]


@pytest.mark.parametrize('stop_ids, num_engines', [
    ((scripted.STOP,), 1), ((scripted.STOP, 1), 2)])
def test_policies_of_one_model_have_their_own_tokenizers(
    stop_ids, num_engines, engines):
  # Bite: stop ids that do not enter the key of the engines.
  class Shifted(scripted.Bytes):
    """Another prompt for the same messages."""

    def encode_prompt(self, messages):
      return super().encode_prompt(messages) + 1

  Shifted.stop_ids = stop_ids
  runner = scripted.make_runner({'one': Names()})
  runner.policies['two'] = dataclasses.replace(
      runner.policies['one'], tokenizer=Shifted())
  requests = [make_request('A', 'a'), make_request('B', 'b')]
  groups = sample(runner, requests)
  plain = scripted.Bytes().encode_prompt(
      [{'role': 'user', 'content': 'B/b turn 0 total 0'}])
  np.testing.assert_array_equal(groups[1].request.prompt, plain + 1)
  assert [e.spec.stop_ids for e in engines] == [
      (scripted.STOP,), stop_ids][:num_engines]


def test_devices_sample_while_environments_step(engines, monkeypatch):
  """The device has its next chunk before anybody waits for a program."""
  dispatched = threading.Event()
  plain = scripted.Engine.collect

  def collect_one(engine):
    # The second group takes a chunk more.
    engine.waiting, later = engine.waiting[:1], engine.waiting[1:]
    finished = plain(engine)
    engine.waiting = later
    dispatched.clear()
    return finished

  def dispatch(engine):
    if engine.busy:
      dispatched.set()

  monkeypatch.setattr(scripted.Engine, 'collect', collect_one)
  monkeypatch.setattr(scripted.Engine, 'dispatch', dispatch)

  class Waiting(scripted.Counting):
    def step(self, state, actions):
      if state.task_id == 'first':
        assert dispatched.wait(timeout=60)
      return super().step(state, actions)

  runner = scripted.make_runner({'one': Names()}, environment=Waiting())

  def episode(name):
    request = make_request(name)
    group, = yield runner.sample([request], group_size=2)
    step, = yield runner.step_environments([request.state], [{'a': '5'}])
    return texts_of(group)[0], step.success

  assert runner.play([episode('first'), episode('second')]) == [
      ('fir0', True), ('sec0', True)]
  assert len(engines) == 1
  assert runner.play([]) == []


def test_an_episode_waits_for_those_it_has_started(engines):
  runner = scripted.make_runner({'one': Names()})

  def leaf(name, num_steps):
    for action in '1' * num_steps:
      yield runner.step_environments(
          [make_request(name).state], [{'a': action}])
    group, = yield runner.sample([make_request(name)], group_size=2)
    return texts_of(group)[0]

  def branch(name, count):
    return (name, (yield [leaf(f'{name}/{i}', i) for i in range(count)]))

  def root():
    nothing = yield []
    first = yield [branch('b', 3), leaf('lea', 0), branch('c', 0)]
    return nothing, first, (yield [leaf('x/x', 1)])

  assert runner.play([leaf('fir', 4), root()]) == [
      'fir0', ([], [('b', ['b/00', 'b/10', 'b/20']), 'lea0', ('c', [])],
               ['x/x0'])]


# Lengths.


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
  with pytest.raises(errors.UserError) as error:
    sample(runner, requests[1:])
  assert str(error.value) == (
      "The prompt of role 'a' in task 'U', turn 2, has 18 tokens, but only 17 "
      f'fit: raise buckets.prompt (its largest is {prompt_buckets[-1]}) or '
      f'lower rollout.max_new_tokens ({max_new_tokens} of the 64 positions of '
      'the model).')
  assert not engines


# Counters.


def test_counters_add_up(engines):
  runner = scripted.make_runner({'one': Names(3), 'two': Names(99)})
  requests = [
      make_request('A', 'a'), make_request('B', 'b'),
      make_request('C', 'a', total=10)]
  for repeat in (1, 2):
    groups = sample(runner, requests)
    counters = runner.counters
    assert counters.prompt_tokens == repeat * (18 + 18 + 19)
    # 'A/a0' and its stop token; but two of 18 letters are cut at 12.
    assert counters.completion_tokens == repeat * (2 * 5 + 2 * 12 + 2 * 5)
    assert counters.model_calls == repeat * 6
    assert counters.cut_completions == repeat * 2
  assert texts_of(groups[1]) == ['B/b turn 0 t'] * 2
  assert counters.sample_seconds > 0
  assert (counters.environment_steps, counters.environment_seconds) == (0, 0)

  states = [request.state for request in requests]
  actions = [{'a': '2'}, {'b': '3 broken'}, {'a': '1'}]
  steps = step(runner, states, actions)
  assert steps == [
      runner.environment.step(*pair) for pair in zip(states, actions)]
  assert counters.environment_steps == 3
  assert counters.infrastructure_failures == 1
  assert counters.environment_seconds > 0
  assert counters.model_calls == 12
  assert step(runner, [], []) == []


# Steps.


def plan_path_game(team, **kwargs):
  """The game, and its first state."""
  environment = plan_path.make_environment(
      team=team, max_turns=2, reward='mixed', **kwargs)
  return environment, environment.reset({
      'task_id': 'x', 'grid': ['.' * 10] * 10, 'start': [0, 0],
      'goal': [5, 5]})


def test_steps_are_taken_in_worker_processes_without_jax():
  environment, state = plan_path_game('solo', sandbox=None)
  actions = [{'solo': f'#### {moves}'} for moves in (
      '["D"]', '["U"]', 'none', '["R", "R"]', '["D", "R"]')]
  with futures.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context('spawn')) as executor:
    runner = scripted.make_runner(
        {}, environment=environment, executor=executor)
    steps = step(runner, [state] * 5, actions)
    # It takes time and memory that a worker has no use for.
    imported = executor.submit(eval, "set(__import__('sys').modules)").result()
  assert 'environments.boards.plan_path.env' in imported
  assert 'jax' not in imported
  assert [step.state.board.position for step in steps] == [
      (1, 0), (0, 0), (0, 0), (0, 2), (1, 1)]
  assert steps[2].outcomes['solo'] is env_api.Outcome.PARSE_ERROR


def test_programs_are_counted():
  environment, state = plan_path_game('pair', sandbox=echo_sandbox.Echo())
  runner = scripted.make_runner({}, environment=environment)
  step(runner, [state] * 3, [
      {'tool': text} for text in (
          '```python\n["D"]\n```', 'none', '```python\nprint(1)\n```')])
  assert runner.counters.program_runs == 2


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

  requests = [make_request(name, role) for name in 'ABCDEF' for role in 'ab']
  together = sample(make(), requests, group_size=3)
  backwards = sample(make(), requests[::-1], group_size=3)[::-1]
  for request, x, y in zip(requests, together, backwards, strict=True):
    assert ids_of(x) == ids_of(y) == ids(request)
    np.testing.assert_array_equal(x.request.prompt, y.request.prompt)
    for p, q in zip(x.logprobs, y.logprobs):
      np.testing.assert_allclose(p, q, atol=1e-5)
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
  """Sleeps before each call."""

  def __init__(self, seed):
    super().__init__(4)
    self._rng = np.random.default_rng(seed)
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
  monkeypatch.setattr(engine_lib, 'CHUNK', 4)
  requests, overlaps = [], []
  add, dispatch = engine_lib.Engine.add, engine_lib.Engine.dispatch

  def add_and_tell(engine, request):
    requests.append((request.prompt.tolist(), request.key.tolist()))
    add(engine, request)

  def dispatch_and_tell(engine):
    dispatch(engine)
    overlaps.append(engine._chunk is not None and runner.executor.late)

  def keys_while_idle(*args):
    # Bite: keys that are computed, and waited for, behind a chunk.
    assert all(engine._chunk is None for engine in runner._engines.values())
    return group_keys(*args)

  group_keys = categorical.group_keys
  monkeypatch.setattr(categorical, 'group_keys', keys_while_idle)
  monkeypatch.setattr(engine_lib.Engine, 'add', add_and_tell)
  monkeypatch.setattr(engine_lib.Engine, 'dispatch', dispatch_and_tell)
  params = [
      model.init_params(jax.random.key(seed), scripted.CONFIG)
      for seed in (0, 1)]

  played = []
  for executor in (Inline(), Late(0), Late(1)):
    requests.clear()
    overlaps.clear()
    # One row is multiplied in another way than eight.
    runner = scripted.make_runner(
        dict(zip(('one', 'two'), params)), environment=Adding(max_turns=3),
        group_buckets=(1, 8), tokenizer=Letters, executor=executor)
    with executor:
      trees = scripted.collect(
          runner, {name: 2 + i % 3 for i, name in enumerate('ABCDEF')},
          mode=mode, group_size=4)
    played.append((
        trees, requests.copy(),
        [engine.counts for engine in runner._engines.values()]))
    assert any(overlaps) == isinstance(executor, Late)

  (expected, *expected_work), *others = played
  groups = tree_lib.groups_of(expected)
  assert {group.key.role for group in groups} == set(scripted.ROLES)
  assert {
      episode.turns for tree in expected
      for episode in tree.episodes()} == {1, 2, 3}
  lengths = {len(c.completion) for group in groups for c in group.candidates}
  assert min(lengths) == 1 and max(lengths) == 12 and len(lengths) > 5
  # Bite: steps that are taken in only where they are done, episodes that go on
  # in the order in which their steps end.
  for trees, *work in others:
    np.testing.assert_equal(
        list(map(dataclasses.asdict, trees)),
        list(map(dataclasses.asdict, expected)))
    # In the same order, in the same slots.
    assert work == expected_work
