"""whole_step.py: the parts of a step, and what devices tell each other."""

import dataclasses

import jax
import pytest

from atgrpo_jax.compile_check import collectives
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import whole_step
from atgrpo_jax.distributed import chips
from tests.compile_check import lower_test

CHIP = chips.Chip(memory=1, flops=1e9, bandwidth=1e9, links=1e6)


def _predict(chip=CHIP, programs=(), **changes):
  config = lower_test.small_config(**{
      'mesh.fsdp': 1, 'mesh.tensor': 1, 'rollout.num_tasks': 4,
      'rollout.group_size': 2,
      'environment.max_turns': 2, 'compile_check.environment_seconds': 0.0,
      'compile_check.num_validation': 4, 'compile_check.talk_seconds': 0.0,
      'compile_check.prompt_lengths': (12, 20),
      'compile_check.completion_lengths': (8, 12), **changes})
  return whole_step.predict(
      config, lower.build_policies(config, jax.devices()), programs, chip)


def test_a_chip_twice_as_fast_takes_half_as_long():
  step = _predict()
  faster = _predict(dataclasses.replace(CHIP, flops=2e9, bandwidth=2e9))
  for part in ('sample', 'update', 'validation'):
    assert step.seconds[part] > 0
    assert faster.seconds[part] == pytest.approx(step.seconds[part] / 2)
  assert step.total == sum(step.seconds.values())
  assert faster.completion_tokens == step.completion_tokens > 0
  # Every program waits for the chip in one way or the other.
  assert sum(step.programs.values()) == pytest.approx(
      step.seconds['sample'] + step.seconds['update'])


def test_environments_hide_behind_the_devices_until_they_take_longer():
  steps = [
      _predict(**{'compile_check.environment_seconds': seconds})
      for seconds in (0.0, 1e-9, 100.0)]
  waits = [step.seconds['environment'] for step in steps]
  assert waits[0] == 0 and waits[1] < 1e-6
  # Two workers step both candidates of two roles in two turns of four tasks.
  assert 100 < waits[2] <= 100 * 4 * 2 * 2 * 2 / 2


def test_what_the_compiled_programs_send_is_in_it_for_each_policy():
  # Of two policies of one kind on one mesh the first alone is compiled.
  sent = collectives.Collective('all-gather', 10**9, 2, (), 1)
  gradient = lower.Program(
      'gradient tool', arguments=0, peak=0, kept=0, flops=0, traffic=0,
      collectives=(sent,))
  waits = [
      _predict(programs=programs, policies='per_role').programs.get(
          ('gradient', 'links'), 0.0) for programs in ([], [gradient])]
  # Half of a GB for a microbatch of each policy.
  assert waits == [0, pytest.approx(2 * 0.5e9 / CHIP.links)]
