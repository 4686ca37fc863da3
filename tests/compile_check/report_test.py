"""The verdict on a run and the lower bound on the seconds of a step."""

import pytest

from atgrpo_jax.compile_check import costs
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report
from atgrpo_jax.distributed import fit
from configs import pod

CHIP = fit.TPUS['v5e']


def _program(name='decode a', peak=10, **changes):
  """A program of `peak` GiB, with 2 TFLOP and 4 GB of traffic."""
  return lower.Program(**{
      'name': name, 'arguments': 1 << 30, 'peak': peak << 30,
      'num_tokens': 1000, 'flops': 2e12, 'traffic': 4e9, **changes})


@pytest.mark.parametrize('changes, words', [
    # 150 steps of 36 s are 1.5 hours of 16 chips.
    ({'peak': 10}, ['FITS: 5.75 of 15.75 GiB', '1.5 hours', '48.00 dollars']),
    ({'peak': 20}, ['DOES NOT FIT', "'decode a'", '4.25 GiB more']),
    ({'peak': 0, 'refusal': 'RESOURCE_EXHAUSTED: Out of vmem.'},
     ['DOES NOT FIT', "'decode a'", 'Out of vmem.'])])
def test_verdict(changes, words, monkeypatch, capsys):
  pool = lower.Pool(('a',), 8, 1 << 30, 0, (_program(**changes),))
  config = pod.get_config('topology=v5e:4x4')
  config.compile_check.dollars_per_hour = 2.0
  monkeypatch.setattr(
      report.targets, 'devices_of', lambda _: ([None] * 16, CHIP))
  monkeypatch.setattr(
      lower, 'build', lambda config, *_: lower.Run(config, {}, {}, {}))
  monkeypatch.setattr(lower, 'check', lambda run: [pool])
  monkeypatch.setattr(report, 'step_seconds', lambda *_: 36.0)
  verdict = report.compile_check(config)
  printed = capsys.readouterr().out
  assert '0.010 compute' in printed
  assert all(word in printed for word in words)
  assert verdict['fits'] == ('hours' in verdict) == ('\nFITS' in printed)


def test_seconds_follow_the_tightest_limit_and_latency():
  program = _program()  # 2e12 FLOP at 197 TFLOP/s; 4 GB at 819 GB/s.
  seconds, limit = program.seconds(CHIP, 5e-6)
  assert (seconds, limit) == (pytest.approx(2 / 197), 'compute')
  # Half of 2 GB is sent 12 times at 200 GB/s.
  gather = costs.Collective('all-gather', 2 * 10**9, 2, 12)
  seconds, limit = _program(collectives=(gather,)).seconds(CHIP, 1e-3)
  assert (seconds, limit) == (pytest.approx(0.060 + 0.012), 'links')


def _step_seconds(num_slots, mode='tree'):
  """A step of policy 'a', which plays two roles with 2 candidates.

  1000 tokens take 1 s to decode, 2 s to prefill and 3 s for the gradient.
  """
  config = pod.get_config('topology=h100:8')
  config.update_from_flattened_dict({
      'rollout.num_tasks': 4, 'rollout.group_size': 2, 'rollout.mode': mode,
      'environment.max_turns': 2, 'compile_check.collective_latency': 0.0,
      'compile_check.prompt_tokens': 900,
      'compile_check.completion_tokens': 600,
      'compile_check.longest_tokens': 800})
  programs = tuple(
      _program(f'{name} a', flops=flops, traffic=0)
      for name, flops in (
          ('prepare', 0.5), ('prefill', 2), ('decode', 1), ('gradient', 3),
          ('update', 0.25)))
  return report.step_seconds(
      lower.Run(config, {'tool': 'a', 'planner': 'a'}, {'a': None}, {}),
      lower.Pool(('a',), num_slots, 1 << 30, 0, programs),
      fit.Chip(1, 1.0, 1.0, 1.0))


@pytest.mark.parametrize('mode, num_groups, num_slots, num_rounds', [
    # 4 tasks x 2 turns x 2 roles are 16 groups.
    ('tree', 16, 2, 8),
    # The 2 turns and 2 roles of a task are always sequential.
    ('tree', 16, 999, 4),
    # Every joint action is continued: 1 node in turn 1, 2 in turn 2.
    ('joint', 24, 2, 12)])
def test_step_is_tokens_times_seconds(mode, num_groups, num_slots, num_rounds):
  # Prompts are padded to 1024 tokens, completions to 1024.
  expected = (
      0.5 + num_groups * 1024 / 1000 * 2 + num_rounds * 800 / 16
      + num_groups * 3 * 1024 / 1000 * 3 + 0.25)
  assert _step_seconds(num_slots, mode) == pytest.approx(expected)
