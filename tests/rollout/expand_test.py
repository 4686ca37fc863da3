"""Expanding a node: one phase is sampled, stepped and rewarded."""

import dataclasses

import numpy as np
import pytest

from atgrpo_jax import types
from atgrpo_jax.rollout import runner as runner_lib
from environments import env_api
from tests.rollout import scripted


class Roman(scripted.Bytes):
  """Reads V as 5."""

  def decode(self, ids):
    return super().decode(ids).replace('V', '5')


def test_roles_of_a_phase_act_at_once(monkeypatch):
  """Joint action i is candidate i of each role; each reads its own rewards."""
  scripted.follow_scripts(monkeypatch)
  scripts = {
      'one': {'A/a turn 0 total 3': ('1', '1', '1')},
      'two': {'A/b turn 0 total 3': ('V', 'x', '2 broken')}}
  environment = scripted.Counting(phases=(('c',), ('a', 'b')))
  assert runner_lib.positions(environment) == [(0, 0), (0, 1), (1, 0), (1, 1)]
  runner = scripted.make_runner(scripts, environment=environment, alpha=0.5)
  runner.policies['two'] = dataclasses.replace(
      runner.policies['two'], tokenizer=Roman())
  state = scripted.State('A', goal=9, total=3)
  node, = runner.play([runner.expand(
      'A', state, (0, 1), group_size=3, branch=7)])

  assert (node.turn, node.phase, node.state) == (0, 1, state)
  assert node.steps == tuple(
      environment.step(state, {'a': '1', 'b': text})
      for text in ('5', 'x', '2 broken'))
  for group, role, policy, rewards in zip(
      node.groups, 'ab', ('one', 'two'),
      # The first meets the goal, the second does not, the third failed.
      ((.5 + .1, .1, np.nan), (.5 + .5, 0, np.nan)), strict=True):
    assert group.key == types.GroupKey('A', role, 0, 7)
    assert group.policy == policy
    prompt = f'A/{role} turn 0 total 3'
    assert scripted.prompt_of(group) == prompt
    np.testing.assert_allclose(group.returns, rewards, atol=1e-6)
    for candidate, said, reward, step in zip(
        group.candidates, scripts[policy][prompt], rewards, node.steps,
        strict=True):
      ids = candidate.completion
      assert bytes(ids.tolist()) == said.encode() + b'\0'
      np.testing.assert_array_equal(
          candidate.behavior_logprobs, -ids.astype(np.float32) / 8)
      np.testing.assert_allclose(candidate.reward, reward, atol=1e-6)
      assert candidate.text == said.replace('V', '5')
      assert candidate.reward_terms == step.reward_terms
      assert candidate.outcome is step.outcomes[role]
  assert [c.outcome for c in node.groups[1].candidates] == [
      env_api.Outcome.OK, env_api.Outcome.PARSE_ERROR,
      env_api.Outcome.INFRASTRUCTURE]
  # What failed for one role failed for all.
  assert [node.failed(i) for i in range(3)] == [False, False, True]
  assert [node.is_leaf(i) for i in range(3)] == [True, False, True]
  np.testing.assert_array_equal(
      node.rewards('a', alpha=0.5), [.5 + .1, .1, np.nan])


@pytest.mark.parametrize('keep_truncated', [True, False])
def test_a_truncated_completion_is_read_as_empty_unless_kept(
    keep_truncated, monkeypatch):
  scripted.follow_scripts(monkeypatch)
  runner = dataclasses.replace(scripted.make_runner(
      {'one': {'A/a turn 0 total 0': ('0' * 11, '0' * 12)}, 'two': {}}),
      keep_truncated=keep_truncated)
  node, = runner.play([runner.expand(
      'A', scripted.State('A', goal=9), (0, 0), group_size=2)])
  whole, cut = node.groups[0].candidates
  # What was sampled is the same: the learner scores all of it.
  assert (whole.completion[-1], len(cut.completion)) == (scripted.STOP, 12)
  assert scripted.STOP not in cut.completion
  assert (whole.text, cut.text) == ('0' * 11,
      '0' * 12 if keep_truncated else '')
  assert (cut.outcome == env_api.Outcome.OK) == keep_truncated
