"""The parts of a step and the step."""

import time

import jax.numpy as jnp

from atgrpo_jax.io import step_clock


def test_parts_add_up(monkeypatch):
  # Starts, [update 2 s], [rollout 10 s, of which 6 s are sampling], ends.
  clock = iter([0.0, 1.0, 3.0, 4.0, 14.0, 15.0, 20.0])
  monkeypatch.setattr(time, 'perf_counter', lambda: next(clock))
  steps = step_clock.StepClock()
  with steps.part('update'):
    pass
  with steps.part('rollout'):
    pass
  steps.move('rollout', 'sample', 6.0)
  steps.add('update', 0.5)
  assert steps.lap() == {
      'time/update': 2.5, 'time/rollout': 4.0, 'time/sample': 6.0,
      'time/step': 15.0}
  assert steps.lap() == {'time/step': 5.0}


def test_a_step_is_traced(tmp_path):
  steps = step_clock.StepClock()
  for step in range(3):
    with step_clock.profile(tmp_path, step, (1,)):
      with steps.part(f'part_of_{step}'):
        jnp.zeros(3).block_until_ready()
  trace, = tmp_path.glob('plugins/profile/*/*.xplane.pb')
  found = trace.read_bytes()
  assert b'part_of_1' in found and b'part_of_2' not in found
