"""Asks and steps: batched, counted, and independent of each other."""

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
from atgrpo_jax.rollout import at_grpo
from atgrpo_jax.rollout import engine as engine_lib
from atgrpo_jax.rollout import interaction as interaction_lib
from atgrpo_jax.rollout import sampler
from atgrpo_jax.rollout import sampling
from environments import base
from environments.plan_path import env as plan_path
from tests.environments import echo_sandbox
from tests.rollout import scripted

ROLES = {'a': 'one', 'b': 'two'}  # role -> policy


class Names:
  """Answers to a prompt: its first letters, then 0, 1, ..."""

  def __init__(self, num_letters=3):
    self._num_letters = num_letters

  def __getitem__(self, prompt):
    return [f'{prompt[:self._num_letters]}{i}' for i in range(2)]


def ask(task_id, role='a', turn=0, branch=0, total=0):
  return interaction_lib.Ask(
      types.GroupKey(task_id, role, turn, branch),
      scripted.State(task_id, goal=5, total=total, turn=turn))


def ids_of(answer):
  return [tuple(ids) for ids in answer.completions]


@pytest.fixture
def engines(monkeypatch):
  """The scripted engines, as they are made."""
  scripted.follow_scripts(monkeypatch)
  return scripted.Engine.made


# Engines.


def test_one_engine_for_each_policy_and_length(engines):
  one, two = Names(2), Names(4)
  interaction = scripted.make_interaction(
      {'one': one, 'two': two}, ROLES, prompt_buckets=(18, 20))
  asks = [
      ask('A', 'a'), ask('B', 'b'), ask('C', 'a', total=10), ask('D', 'a'),
      ask('E', 'b')]
  answers = scripted.ask(interaction, asks, step=0, group_size=2)
  found = [
      (e.params is one, e.prompt_length, len(e.requests)) for e in engines]
  assert found == [(True, 18, 2), (False, 18, 2), (True, 20, 1)]
  assert [a.texts[1] for a in answers] == [
      'A/1', 'B/b 1', 'C/1', 'D/1', 'E/b 1']
  assert [len(a.prompt) for a in answers] == [18, 18, 19, 18, 18]
  assert scripted.ask(interaction, [], step=0, group_size=2) == []
  # The next turn's go into the same ones.
  scripted.ask(interaction, asks[:2], step=0, group_size=2)
  assert [len(e.requests) for e in engines] == [3, 3, 1]


@pytest.mark.parametrize('stop_ids, num_engines', [
    ((scripted.STOP,), 1), ((scripted.STOP, 1), 2)])
def test_policies_of_one_model_have_their_own_tokenizers(
    stop_ids, num_engines, engines):
  # Bite: stop ids that do not enter the key of the engines.
  class Shouting(scripted.Bytes):
    """Another prompt for the same messages, and other texts."""

    def encode_prompt(self, messages):
      return super().encode_prompt(messages) + 1

    def decode(self, ids):
      return super().decode(ids).upper()

  Shouting.stop_ids = stop_ids
  interaction = scripted.make_interaction({'one': Names()}, ROLES)
  interaction.policies['two'] = dataclasses.replace(
      interaction.policies['one'], tokenizer=Shouting())
  asks = [ask('A', 'a'), ask('B', 'b')]
  found = scripted.ask(interaction, asks, step=0, group_size=2)
  plain = scripted.Bytes().encode_prompt(
      [{'role': 'user', 'content': 'B/b turn 0 total 0'}])
  np.testing.assert_array_equal(found[1].prompt, plain + 1)
  assert [answer.texts for answer in found] == [
      ('A/a0', 'A/a1'), ('C0C0', 'C0C1')]
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

  interaction = scripted.make_interaction(
      {'one': Names()}, {'a': 'one'}, Waiting())

  def episode(name):
    answers = yield interaction.ask([ask(name)], step=0, group_size=2)
    steps = yield interaction.act([ask(name).state], [{'a': '5'}])
    return answers[0].texts[0], steps[0].success

  assert interaction.play([episode('first'), episode('second')]) == [
      ('fir0', True), ('sec0', True)]
  assert len(engines) == 1
  assert interaction.play([]) == []


def test_an_episode_waits_for_those_it_has_started(engines):
  interaction = scripted.make_interaction({'one': Names()}, {'a': 'one'})

  def leaf(name, num_steps):
    for action in '1' * num_steps:
      yield interaction.act([ask(name).state], [{'a': action}])
    answer, = yield interaction.ask([ask(name)], step=0, group_size=2)
    return answer.texts[0]

  def branch(name, count):
    return (name, (yield [leaf(f'{name}/{i}', i) for i in range(count)]))

  def root():
    nothing = yield []
    first = yield [branch('b', 3), leaf('lea', 0), branch('c', 0)]
    return nothing, first, (yield [leaf('x/x', 1)])

  assert interaction.play([leaf('fir', 4), root()]) == [
      'fir0', ([], [('b', ['b/00', 'b/10', 'b/20']), 'lea0', ('c', [])],
               ['x/x0'])]


def test_the_schedule_does_not_depend_on_the_time_of_programs(engines):
  """Requests come in the same order, whoever is slow."""
  orders = []
  for slow in 'abc':
    class Waiting(scripted.Counting):
      def step(self, state, actions, slow=slow):
        time.sleep(0.05 * (state.task_id == slow))
        return super().step(state, actions)

    with futures.ThreadPoolExecutor(3) as executor:
      interaction = dataclasses.replace(
          scripted.make_interaction({'one': Names()}, {'a': 'one'}, Waiting()),
          executor=executor)

      def episode(name, interaction=interaction):
        for turn in range(3):
          yield interaction.ask([ask(name, turn=turn)], step=0, group_size=2)
          yield interaction.act([ask(name).state], [{'a': '5'}])

      interaction.play([episode(name) for name in 'abc'])
    orders.append([r.prompt.tobytes() for r in engines[-1].requests])
  assert orders[0] == orders[1] == orders[2]
  assert len(orders[0]) == 9


def test_the_engine_is_told_what_the_interaction_was(engines):
  interaction = dataclasses.replace(
      scripted.make_interaction(
          {'one': Names()}, {'a': 'one'}, group_buckets=(2, 4)),
      temperature=0.6)
  scripted.ask(interaction, [ask('A')], step=0, group_size=2)
  engine, = engines
  assert engine.spec == sampler.SamplerSpec(
      group_size=2, temperature=0.6, stop_ids=(scripted.STOP,),
      dtype='float32')
  assert engine.num_slots == (2, 4)
  assert engine.requests[0].budget == 12


# Lengths.


@pytest.mark.parametrize('prompt_buckets, max_new_tokens, limit', [
    ((8, 18), 12, 18), ((8, 17), 12, 17), ((8, 32), 46, 18), ((8, 32), 47, 17)])
def test_a_prompt_that_does_not_fit(
    engines, prompt_buckets, max_new_tokens, limit):
  interaction = scripted.make_interaction(
      {'one': Names()}, {'a': 'one'}, prompt_buckets=prompt_buckets,
      max_new_tokens=max_new_tokens)
  asks = [ask('T'), ask('U', turn=1)]  # Of 18 tokens each.
  if limit == 18:
    assert len(scripted.ask(interaction, asks, step=0, group_size=2)) == 2
    return
  with pytest.raises(errors.UserError) as error:
    scripted.ask(interaction, asks[1:], step=0, group_size=2)
  assert str(error.value) == (
      "The prompt of role 'a' in task 'U', turn 2, has 18 tokens, but only 17 "
      f'fit: raise buckets.prompt (its largest is {prompt_buckets[-1]}) or '
      f'lower rollout.max_new_tokens ({max_new_tokens} of the 64 positions of '
      'the model).')
  assert not engines


# Counters.


def test_counters_add_up(engines):
  interaction = scripted.make_interaction(
      {'one': Names(3), 'two': Names(99)}, ROLES)
  asks = [ask('A', 'a'), ask('B', 'b'), ask('C', 'a', total=10)]
  for repeat in (1, 2):
    answers = scripted.ask(interaction, asks, step=0, group_size=2)
    counters = interaction.counters
    assert counters.prompt_tokens == repeat * (18 + 18 + 19)
    # 'A/a0' and its stop token; but two of 18 letters are cut at 12.
    assert counters.completion_tokens == repeat * (2 * 5 + 2 * 12 + 2 * 5)
    assert counters.model_calls == repeat * 6
    assert counters.cut_completions == repeat * 2
  assert answers[1].texts == ('B/b turn 0 t',) * 2
  assert counters.completion_tokens == 2 * sum(
      len(ids) for answer in answers for ids in answer.completions)
  assert counters.sample_seconds > 0
  assert (counters.environment_steps, counters.environment_seconds) == (0, 0)

  states = [one.state for one in asks]
  actions = [{'a': '2'}, {'b': '3 broken'}, {'a': '1'}]
  steps = scripted.act(interaction, states, actions)
  assert steps == [
      interaction.environment.step(*pair) for pair in zip(states, actions)]
  assert counters.environment_steps == 3
  assert counters.infrastructure_failures == 1
  assert counters.environment_seconds > 0
  assert counters.model_calls == 12
  assert scripted.act(interaction, [], []) == []


# Steps.


def test_steps_are_taken_in_worker_processes_without_jax():
  environment = plan_path.make_environment(
      team='solo', max_turns=2, reward='mixed', sandbox=None)
  state = environment.reset({
      'task_id': 'x', 'grid': ['..........'] * 10, 'start': [0, 0],
      'goal': [5, 5]})
  actions = [{'solo': f'#### {moves}'} for moves in (
      '["D"]', '["U"]', 'none', '["R", "R"]', '["D", "R"]')]
  with futures.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context('spawn')) as executor:
    interaction = dataclasses.replace(
        scripted.make_interaction({}, {}, environment), executor=executor)
    steps = scripted.act(interaction, [state] * 5, actions)
    # It takes time and memory that a worker has no use for.
    imported = executor.submit(eval, "set(__import__('sys').modules)").result()
  assert 'environments.plan_path.env' in imported
  assert 'jax' not in imported
  assert [step.state.board.position for step in steps] == [
      (1, 0), (0, 0), (0, 0), (0, 2), (1, 1)]
  assert steps[2].outcomes['solo'] is base.Outcome.PARSE_ERROR


def test_programs_are_counted():
  environment = plan_path.make_environment(
      team='pair', max_turns=2, reward='mixed', sandbox=echo_sandbox.Echo())
  state = environment.reset({
      'task_id': 'x', 'grid': ['..........'] * 10, 'start': [0, 0],
      'goal': [5, 5]})
  interaction = scripted.make_interaction({}, {}, environment)
  scripted.act(interaction, [state] * 3, [
      {'tool': text} for text in (
          '```python\n["D"]\n```', 'none', '```python\nprint(1)\n```')])
  assert interaction.counters.program_runs == 2


# Answers of a real model.


def test_answers_depend_on_their_own_key_and_policy_alone():
  params = [
      model.init_params(jax.random.key(seed), scripted.CONFIG)
      for seed in (0, 1)]

  def make(seed=0, policies=(0, 1)):
    return scripted.make_interaction(
        {'one': params[policies[0]], 'two': params[policies[1]]}, ROLES,
        max_new_tokens=3, seed=seed)

  def answer(one, step=0, interaction=None):
    result, = scripted.ask(
        interaction or make(), [one], step=step, group_size=3)
    return ids_of(result)

  asks = [ask(name, role) for name in 'ABCDEF' for role in 'ab']
  together = scripted.ask(make(), asks, step=0, group_size=3)
  backwards = scripted.ask(make(), asks[::-1], step=0, group_size=3)[::-1]
  for one, x, y in zip(asks, together, backwards, strict=True):
    assert ids_of(x) == ids_of(y)
    np.testing.assert_array_equal(x.prompt, y.prompt)
    for p, q in zip(x.logprobs, y.logprobs):
      np.testing.assert_allclose(p, q, atol=1e-5)
    assert answer(one) == ids_of(x)
  assert len({tuple(ids_of(x)) for x in together}) == len(asks)

  first = answer(ask('A'))
  state = ask('A').state
  for changed in (
      answer(ask('A'), step=1), answer(ask('A'), interaction=make(seed=1)),
      answer(ask('A'), interaction=make(policies=(1, 0))),
      answer(ask('A', branch=1)),
      # The same prompt under other keys.
      answer(interaction_lib.Ask(types.GroupKey('B', 'a', 0, 0), state)),
      answer(interaction_lib.Ask(types.GroupKey('A', 'a', 1, 0), state))):
    assert changed != first
  assert answer(ask('A'), interaction=make(policies=(0, 0))) == first


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


@pytest.mark.parametrize('rollout', at_grpo.TARGETS)
def test_no_bit_depends_on_the_time_of_programs(rollout, monkeypatch):
  monkeypatch.setattr(engine_lib, 'CHUNK', 4)
  requests, overlaps = [], []
  add, dispatch = engine_lib.Engine.add, engine_lib.Engine.dispatch

  def add_and_tell(engine, request):
    requests.append((request.prompt.tolist(), request.key.tolist()))
    add(engine, request)

  def dispatch_and_tell(engine):
    dispatch(engine)
    overlaps.append(engine._chunk is not None and interaction.executor.late)

  def keys_while_idle(*args):
    # Bite: keys that are computed, and waited for, behind a chunk.
    assert all(
        engine._chunk is None for engine in interaction._engines.values())
    return group_keys(*args)

  group_keys = sampling.group_keys
  monkeypatch.setattr(sampling, 'group_keys', keys_while_idle)
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
    interaction = dataclasses.replace(
        scripted.make_interaction(
            dict(zip(ROLES.values(), params)), ROLES, Adding(max_turns=3),
            group_buckets=(1, 8), tokenizer=Letters),
        executor=executor)
    with executor:
      collected = at_grpo.collect(
          interaction, [
              {'task_id': name, 'goal': 2 + index % 3}
              for index, name in enumerate('ABCDEF')], step=0,
          spec=at_grpo.RolloutSpec(rollout=rollout, group_size=4))
    played.append((
        collected, requests.copy(),
        [engine.counts for engine in interaction._engines.values()]))
    assert any(overlaps) == isinstance(executor, Late)

  (expected, *expected_work), *others = played
  assert {group.key.role for group in expected.groups} == set(ROLES)
  assert {episode.turns for episode in expected.episodes} == {1, 2, 3}
  lengths = {
      len(ids) for group in expected.groups for ids in group.completions}
  assert min(lengths) == 1 and max(lengths) == 12 and len(lengths) > 5
  # Bite: steps that are taken in only where they are done, episodes that go on
  # in the order in which their steps end.
  for found, *work in others:
    assert found.episodes == expected.episodes
    for one, other in zip(found.groups, expected.groups, strict=True):
      assert (one.key, one.chosen) == (other.key, other.chosen)
      for name in (
          'prompt', 'completions', 'behavior_logprobs', 'rewards'):
        for x, y in zip(getattr(one, name), getattr(other, name), strict=True):
          np.testing.assert_array_equal(x, y)
    # In the same order, in the same slots.
    assert work == expected_work
