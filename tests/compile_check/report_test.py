"""The verdict on a run and the predicted seconds of a step."""

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
      'name': name, 'arguments': 1 << 30, 'peak': peak << 30, 'kept': 0,
      'num_tokens': 1000, 'flops': 2e12, 'traffic': 4e9, **changes})


def _pool(*programs, **changes):
  return lower.Pool(**{
      'policies': ('a',), 'num_slots': 8,
      'state': 1 << 30, 'cache': 0, 'programs': programs, **changes})


@pytest.mark.parametrize('changes, words', [
    ({'peak': 10}, ['FITS: 5.75 of 15.75 GiB', "'decode a'", '0.010 compute']),
    ({'peak': 20}, ["DOES NOT FIT: 'decode a' needs 4.25 GiB more"]),
    ({'peak': 1, 'refusal': 'RESOURCE_EXHAUSTED: Out of vmem.'},
     ['DOES NOT FIT', "refuses 'decode a'", 'Out of vmem.'])])
def test_verdict(changes, words, capsys):
  program = _program(**changes)
  report.print_pool(_pool(program), CHIP, pod.get_config())
  printed = capsys.readouterr().out
  assert program.fits(CHIP) == printed.splitlines()[-1].startswith('FITS')
  for word in words:
    assert word in printed


def test_seconds_follow_the_tightest_limit_and_latency():
  program = _program()  # 2e12 FLOP at 197 TFLOP/s; 4 GB at 819 GB/s.
  seconds, limit = program.seconds(CHIP, 5e-6)
  assert (seconds, limit) == (pytest.approx(2 / 197), 'compute')
  # Half of 2 GB is sent 12 times at 200 GB/s.
  gather = costs.Collective('all-gather', 2 * 10**9, 2, 12)
  seconds, limit = _program(collectives=(gather,)).seconds(CHIP, 1e-3)
  assert (seconds, limit) == (pytest.approx(0.060 + 0.012), 'links')


def _predict(mode='tree', **changes):
  """A step of policy 'a' with 2 candidates.

  For 1000 tokens, decoding takes 1 s, prefill 2 s and the gradient 3 s.
  """
  config = pod.get_config('topology=h100:8')
  config.update_from_flattened_dict({
      'rollout.num_tasks': 4, 'rollout.group_size': 2, 'rollout.mode': mode,
      'environment.max_turns': 2, 'compile_check.collective_latency': 0.0,
      'compile_check.prompt_tokens': 900,
      'compile_check.completion_tokens': 600,
      'compile_check.longest_tokens': 800})
  programs = [
      _program(f'{name} a', flops=flops, traffic=0)
      for name, flops in (
          ('prepare', 0.5), ('prefill', 2), ('decode', 1), ('gradient', 3),
          ('update', 0.25))]
  return report.predict(
      lower.Run(config, {'tool': 'a', 'planner': 'a'}, {'a': None}, {}),
      [_pool(*programs, **changes)], fit.Chip(1, 1.0, 1.0, 1.0))


def test_step_is_tokens_times_seconds():
  # 4 tasks x 2 turns x 2 roles are 16 groups, in 8 rounds of 2 slots. Prompts
  # are padded to 1024, completions to 1024 tokens.
  seconds, num_tokens = _predict(num_slots=2)
  assert num_tokens == 16 * 2 * 600
  assert seconds == pytest.approx({
      'prepare': 0.5, 'prefill': 16 * 1024 / 1000 * 2, 'decode': 8 * 800 / 16,
      'gradient': 16 * 3 * 1024 / 1000 * 3, 'update': 0.25})
  # The 2 turns and 2 roles of a task are always sequential.
  assert _predict(num_slots=999)[0]['decode'] == 4 * 800 / 16


def test_joint_mode_continues_every_joint_action():
  # A task has 1 node in the first turn and 2 in the second.
  assert _predict(mode='joint')[1] == 4 * 2 * 3 * 2 * 600
