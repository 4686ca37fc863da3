"""The cases of each benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import subprocess
import sys

import numpy as np

from atgrpo_jax import model
from benchmarks import machine
from benchmarks import ours
from benchmarks import peer as peer_lib
from benchmarks import timing
from benchmarks import training
from benchmarks import workload
from configs import common
from configs import writing
from environments import sandbox as sandbox_lib
from environments.boards.plan_path import env as plan_path
from models.nano import programs

# Configs with the loss and optimizer of a step.
_GRPO = common.game_config('plan_path', 'size=nano')
_MAGRPO = writing.get_config()


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the benchmarks; tests use tiny ones."""

  config: model.ModelConfig = workload.MODEL
  sampling: Sequence[workload.Load] = (
      workload.Load(8, 8, 128, 64), workload.Load(8, 8, 1024, 128))
  step: workload.Load = workload.Load(8, 8, 128, 64)
  agent: workload.Load = workload.Load(1, 8, 128, 64)  # Per agent of MAGRPO.
  scaling: Sequence[workload.Load] = (
      workload.Load(8, 1, 1024, 64), workload.Load(8, 8, 1024, 64),
      *(workload.Load(8, 8, 128, new) for new in (32, 64, 128)))
  budgets: Sequence[int] = (64, 128)  # For `step`, which needs the first.
  turns: Sequence[int] = (1, 4)  # With the load of `step`.
  agents: Sequence[int] = (1, 4)  # Each with the load of `step`.
  uneven: workload.Load = workload.Load(128, 8, 128, 256)
  mean_length: int = 64
  shortest: int = 8
  uneven_slots: Sequence[int] = (16, 64)  # As in configs/plan_path.py.
  programs: int = 64
  slots: int = 2
  products: Sequence[tuple[int, int, int]] = machine.PRODUCTS
  copy_bytes: int = machine.COPY_BYTES


@dataclasses.dataclass(frozen=True)
class Setup:
  """Arguments of a benchmark.

  Attributes:
    sizes: sizes of its cases.
    peers: running peers that can do the same work.
    stack: closes resources of the benchmark.
  """

  sizes: Sizes
  peers: Mapping[str, peer_lib.Process]
  stack: contextlib.ExitStack


def sampling(setup: Setup) -> list[timing.Case]:
  """Prompts to completions and log-probabilities on the host.

  A second set of cases times decoding alone.
  """
  sizes = setup.sizes
  return [
      timing.Case(
          str(load),
          _against(
              ours.Sampling(sizes.config, load), setup.peers,
              workload.request('sample', [load], sizes.config)),
          counts={'tokens': load.completion_tokens},
          min_work=workload.sampling_needs(sizes.config, load))
      for load in sizes.sampling
  ] + [_decoding(sizes.config, load) for load in sizes.sampling] + rates(setup)


def step(setup: Setup) -> list[timing.Case]:
  """A GRPO step: rollout, reward on the host, gradient, Adam."""
  return [_step('GRPO step', setup, setup.sizes.step, 1, _GRPO)]


def magrpo_step(setup: Setup) -> list[timing.Case]:
  """A MAGRPO step of two agents: rollout, reward, gradients, AdamW."""
  return [_step(
      'MAGRPO step of 2 agents', setup, setup.sizes.agent, 2, _MAGRPO)]


def update(setup: Setup) -> list[timing.Case]:
  """Gradient and Adam of one batch."""
  sizes = setup.sizes
  trained = training.Step(sizes.config, sizes.step, 1, _GRPO)
  groups = trained.rollout()
  return [timing.Case(
      f'update, {sizes.step}', _against(lambda: trained.update(groups)),
      counts={'tokens': sizes.step.completion_tokens},
      min_work=workload.update_needs(sizes.config, sizes.step))] + rates(setup)


def scaling(setup: Setup) -> list[timing.Case]:
  """Sampling time over group size, prompt, new tokens, budget and turns.

  Over the number of agents, whole steps are timed, because each agent also
  updates its model. Agents share the devices equally, or take turns if there
  are fewer devices than agents.
  """
  sizes = setup.sizes
  return [
      timing.Case(
          str(load), _against(ours.Sampling(sizes.config, load)),
          counts={'tokens': load.completion_tokens})
      for load in sizes.scaling
  ] + [
      timing.Case(
          f'{sizes.step.new_tokens} new tokens of a budget of {budget}',
          _against(ours.Stopping(sizes.config, sizes.step, budget)))
      for budget in sizes.budgets
  ] + [
      timing.Case(
          f'turns: {turns}, {sizes.step}',
          _against(ours.Turns(sizes.config, sizes.step, turns)),
          counts={'tokens': turns * sizes.step.completion_tokens})
      for turns in sizes.turns
  ] + [
      _step(f'GRPO step, agents: {agents}', setup, sizes.step, agents, _GRPO)
      for agents in sizes.agents]


def uneven(setup: Setup) -> list[timing.Case]:
  """Completions of geometric lengths: continuous batching and lockstep.

  There are more prompts than slots. Continuous batching refills a slot when its
  group is finished, lockstep when all groups are.
  """
  sizes, load = setup.sizes, setup.sizes.uneven
  contestant = ours.Uneven(
      sizes.config, load, sizes.uneven_slots, sizes.mean_length,
      sizes.shortest)
  lengths = contestant.lengths
  return [timing.Case(
      f'{load.num_prompts} prompts x {load.group_size} samples in '
      f'{sizes.uneven_slots[-1]} slots, prompt {load.prompt_length}, geometric '
      f'lengths from {lengths.min()} to {lengths.max()}, {lengths.mean():.0f} '
      'in the mean',
      {timing.OURS: timing.timed(contestant.continuous),
       'lockstep': timing.timed(contestant.lockstep)},
      counts={'tokens': int(lengths.sum())})]


@dataclasses.dataclass(frozen=True)
class _FreshInterpreter:
  """Runs each program as `python -c` instead of in a sandbox."""

  def run(self, source: str, stdin: str = '') -> sandbox_lib.ProgramResult:
    done = subprocess.run(
        [sys.executable, '-c', source], input=stdin,
        capture_output=True, text=True)
    status = sandbox_lib.Status
    return sandbox_lib.ProgramResult(
        status.ERROR if done.returncode else status.OK, done.returncode,
        done.stdout, done.stderr, 0.0, 0.0)


class _PlanPathSteps:
  """Steps mazes with a program that searches breadth first."""

  def __init__(
      self, sandbox: sandbox_lib.Sandbox | _FreshInterpreter, num_steps: int,
      num_slots: int):
    self._environment = plan_path.make_environment(
        team='pair', max_turns=4, reward='mixed', sandbox=sandbox)
    rng = np.random.default_rng(0)
    self._states = [
        self._environment.reset(
            {'task_id': str(i), **plan_path.random_task(rng)})
        for i in range(num_steps)]
    self._action = {'tool': programs.PLAN_PATH[0].reply}
    self._num_slots = num_slots

  def __call__(self) -> None:
    with futures.ThreadPoolExecutor(self._num_slots) as pool:
      steps = list(pool.map(
          lambda state: self._environment.step(state, self._action),
          self._states))
    assert all(step.reward_terms['plan_solved'] for step in steps)


def environment(setup: Setup) -> list[timing.Case]:
  """Plan-Path steps with programs: in the sandbox and in new interpreters."""
  sizes = setup.sizes
  server = setup.stack.enter_context(
      sandbox_lib.SandboxServer(num_slots=sizes.slots))
  contestants = {
      timing.OURS: sandbox_lib.Sandbox(server.address),
      'python': _FreshInterpreter()}
  return [timing.Case(
      f'{sizes.programs} Plan-Path steps, {sizes.slots} slots',
      {name: timing.timed(_PlanPathSteps(runner, sizes.programs, sizes.slots))
       for name, runner in contestants.items()},
      counts={'steps': sizes.programs})]


def rates(setup: Setup) -> list[timing.Case]:
  """Matrix products and copies of the machine."""
  return machine.cases(setup.sizes.products, setup.sizes.copy_bytes)


# Name -> function that makes its cases.
BENCHMARKS = {
    'sampling': sampling, 'step': step, 'magrpo_step': magrpo_step,
    'update': update, 'scaling': scaling, 'uneven': uneven,
    'environment': environment,
}
# Name -> peer that can do the same work.
RIVALS = {'sampling': 'tunix', 'step': 'tunix', 'magrpo_step': 'comlrl'}


def _decoding(config, load):
  decoding = ours.Decoding(config, load)
  rows, new = load.num_prompts * load.group_size, load.new_tokens
  return timing.Case(
      f'decoding alone, the last {new - decoding.done} tokens of {load}',
      {timing.OURS: decoding},
      counts={'tokens': rows * (new - decoding.done)},
      min_work=workload.decoding_needs(config, load, decoding.done))


def _step(name, setup, load, num_agents, run_config):
  config = setup.sizes.config
  return timing.Case(
      f'{name}, {load}',
      _against(
          training.Step(config, load, num_agents, run_config), setup.peers,
          workload.request('step', [load] * num_agents, config)),
      counts={'tokens': num_agents * load.completion_tokens})


def _against(function, peers=(), request=None):
  """Our function and the running peers as contestants."""
  return {timing.OURS: timing.timed(function)} | {
      name: peers[name].contestant(request) for name in peers}
