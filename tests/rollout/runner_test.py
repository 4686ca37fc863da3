"""Candidates and steps do not depend on batching or timing."""

from concurrent import futures
import dataclasses
import random
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.rollout import contract
from atgrpo_jax.rollout import node as node_lib
from atgrpo_jax.rollout import policies
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.rollout import workers as workers_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api
from tests import echo
from tests.rollout import scripted


@pytest.mark.parametrize('num_workers, sizes', [
    (2, [4, 4, 1]), (4, [2, 2, 2, 2, 1]), (16, [1] * 9)])
def test_steps_of_all_episodes_are_spread_over_the_workers(num_workers, sizes):
  workers = workers_lib.Workers(num_workers, 1, workers_lib.NO_PROGRAMS)
  messages = []

  def submit(step_all, environment, requests):
    messages.append(len(requests))
    step = futures.Future()
    step.set_result(step_all(environment, requests))
    return step

  workers.submit = submit
  runner = scripted.make_runner({'one': {}, 'two': {}}, executor=workers)

  def episode(name):
    return (yield runner.step_environments(
        [scripted.State(name, goal=5)], [{'a': '2'}], task_id=name, turn=0))

  steps = runner.play([episode(name) for name in 'ABCDEFGHI'])
  assert [step.state.task_id for step, in steps] == [*'ABCDEFGHI']
  assert messages == sizes


@pytest.mark.parametrize('keep_truncated', [True, False])
def test_truncated_completion_is_empty_unless_kept(
    keep_truncated, monkeypatch):
  scripted.follow_scripts(monkeypatch)
  runner = dataclasses.replace(scripted.make_runner(
      {'one': {'A/a turn 0 total 0': ('0' * 11, '0' * 12)}, 'two': {}}),
      keep_truncated=keep_truncated)
  node, = runner.play([node_lib.expand(
      runner, 'A', scripted.State('A', goal=9), contract.Position(),
      group_size=2)])
  whole, cut = node.groups[0].candidates
  # The learner scores the same tokens in both cases.
  assert (whole.completion[-1], len(cut.completion)) == (scripted.STOP, 12)
  assert scripted.STOP not in cut.completion
  assert (whole.text, cut.text) == ('0' * 11,
      '0' * 12 if keep_truncated else '')
  assert (cut.outcome == env_api.Outcome.OK) == keep_truncated
  assert runner.usage.cut_completions == 1


def test_stop_strings_end_the_completions_of_a_policy(monkeypatch):
  scripted.follow_scripts(monkeypatch)
  runner = scripted.make_runner(
      keep_truncated=False, stop=('!!!!',),
      per_policy={'one': {'stop': ('</a>', ';')}})
  keys = [types.GroupKey('A', role, turn=0, branch=0) for role in 'ab']
  pending = runner.sample(
      dict.fromkeys(keys, scripted.State('A', goal=9)), group_size=4)
  scripted.wait_for(runner, pending)
  requests = [x for made in scripted.Engine.made for x in made.requests]

  def find_end(request, text, num_new):
    return request.find_end(np.frombuffer(text.encode(), np.uint8), num_new)

  one, two = requests
  assert find_end(one, '1</b>' * 5, num_new=5) == 0
  assert find_end(one, 'x' * 9 + '1</a>234', num_new=4) == 14
  assert find_end(one, 'x' * 9 + '1</a>234;', num_new=9) == 14
  assert find_end(one, ';', num_new=1) == 1
  assert find_end(two, 'x' * 9 + '1</a>', num_new=5) == 0
  assert find_end(two, '2!!!!', num_new=1) == 5
  ended, cut = (
      np.frombuffer(text, np.uint8).astype(np.int32)
      for text in (b'1</a>', b'1</b>'))
  assert [runner.is_cut('a', x) for x in (ended, cut)] == [False, True]
  assert [runner.text_of('a', x) for x in (ended, cut)] == ['1</a>', '']


def test_equal_actions_are_stepped_once():
  made = []

  class Running(scripted.Counting):
    def step(self, state, actions):
      made.append((state, actions))
      return dataclasses.replace(
          super().step(state, actions), program_runs=1)

  runner = scripted.make_runner({}, environment=Running())
  one, other = (
      scripted.State('A', goal=5, total=total) for total in (0, 1))
  asked = [
      (one, {'a': '1'}), (one, {'a': '2'}), (one, {'a': '1'}),
      (other, {'a': '1'}), (one, {'b': '1'}), (one, {'a': '1'}),
      (one, {'a': '3 broken'}), (one, {'a': '3 broken'})]
  steps = scripted.wait_for(runner, runner.step_environments(
      *zip(*asked), task_id='A', turn=0))
  assert made == [asked[i] for i in (0, 1, 3, 4, 6)]
  assert steps == [
      runner.environment.step(state, actions) for state, actions in asked]
  assert runner.usage.environment_steps == 8
  assert runner.usage.program_runs == 5


@dataclasses.dataclass(frozen=True)
class Adding(scripted.Counting):
  """Any text is a number below three, so some episodes end early.

  A step sleeps for up to `max_seconds`.
  """

  max_seconds: float = 0.0

  def step(self, state, actions):
    time.sleep(random.uniform(0, self.max_seconds))
    return super().step(
        state, {role: str(len(text) % 3) for role, text in actions.items()})


class Letters(scripted.Bytes):
  """One id in eight ends a completion."""

  stop_ids = tuple(range(16))


@pytest.mark.parametrize('mode', ['tree', 'joint'])
def test_no_bit_depends_on_the_duration_of_steps(mode, monkeypatch):
  monkeypatch.setattr(engine_lib, 'CHUNK', 4)
  policies = {
      name: model.init_params(jax.random.key(seed), scripted.CONFIG)
      for seed, name in enumerate(('one', 'two'))}
  played = []
  for max_seconds in (0.0, 0.05):
    with futures.ThreadPoolExecutor(4) as executor:
      # A product of one row is rounded differently from eight.
      runner = scripted.make_runner(
          policies, environment=Adding(max_turns=3, max_seconds=max_seconds),
          group_buckets=(1, 8), tokenizer=Letters, executor=executor)
      played.append(scripted.collect(
          runner, {name: 2 + i % 3 for i, name in enumerate('ABCDEF')},
          mode=mode, group_size=2 if mode == 'joint' else 4))

  expected, late = played
  np.testing.assert_equal(
      list(map(dataclasses.asdict, late)),
      list(map(dataclasses.asdict, expected)))
  # The episodes differ.
  groups = tree_lib.groups_of(expected)
  assert {
      node.turn for tree in expected for node, _ in tree.ends()} == {0, 1, 2}
  lengths = {len(c.completion) for group in groups for c in group.candidates}
  assert min(lengths) == 1 and max(lengths) == 12


def test_a_prompt_with_few_bytes_and_many_tokens_is_refused(echo_folder):
  experiment = echo.experiment(echo_folder)
  tasks = [
      {'task_id': 'one word', 'letter': 'a' * 60},
      {'task_id': 'six words', 'letter': 'a b c d e f'}]
  arguments = {'buckets': experiment.buckets, 'max_new_tokens': 2}
  parts = experiment.policies, experiment.policy_map
  policies.check_first_prompts(
      experiment.environment, tasks[:1], *parts, **arguments)
  with pytest.raises(errors.UserError, match="'six words', turn 1, has 8"):
    policies.check_first_prompts(
        experiment.environment, tasks, *parts, **arguments)
