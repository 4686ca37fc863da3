"""The cases of each benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses

from atgrpo_jax import model
from benchmarks import ours
from benchmarks import timing
from benchmarks import workload
from configs import common
from configs import writing

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
  agents: Sequence[int] = (1, 4)  # Each with the load of `step`.


# Returns a contestant that does the work of a request.
AskPeer = Callable[[Mapping], Callable[[], float]]


def sampling(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[timing.Case]:
  """Prompts to completions and log-probabilities; then decoding alone."""
  cases = []
  for load in sizes.sampling:
    sample = ours.Sampling(sizes.config, load)
    cases.append(timing.Case(
        str(load), _contestants(sample, peers, workload.request(
            'sample', [load], sizes.config)),
        counts={'tokens': load.completion_tokens,
                **workload.sampling_work(sizes.config, load)}))
    new = load.new_tokens - sample.done
    cases.append(timing.Case(
        f'decoding alone, the last {new} tokens of {load}',
        {timing.OURS: sample.decode},
        counts={'tokens': load.num_prompts * load.group_size * new,
                **workload.sampling_work(sizes.config, load, sample.done)}))
  return cases


def step(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[timing.Case]:
  """A GRPO step: rollout, reward on the host, gradient, Adam."""
  return [_step('GRPO step', sizes, peers, sizes.step, 1, _GRPO)]


def magrpo_step(
    sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[timing.Case]:
  """A MAGRPO step of two agents: rollout, reward, gradients, AdamW."""
  return [_step(
      'MAGRPO step of 2 agents', sizes, peers, sizes.agent, 2, _MAGRPO)]


def update(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[timing.Case]:
  """Gradient and Adam of one batch."""
  del peers
  trained = ours.Step(sizes.config, sizes.step, 1, _GRPO)
  groups = trained.rollout()
  return [timing.Case(
      f'update, {sizes.step}', _contestants(lambda: trained.update(groups)),
      counts={'tokens': sizes.step.completion_tokens,
              **workload.update_work(sizes.config, sizes.step)})]


def scaling(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[timing.Case]:
  """Sampling over group size, prompt and new tokens; steps over agents.

  Agents share the devices equally, or take turns if there are fewer devices
  than agents.
  """
  del peers
  return [
      timing.Case(
          str(load), _contestants(ours.Sampling(sizes.config, load)),
          counts={'tokens': load.completion_tokens})
      for load in sizes.scaling
  ] + [
      _step(f'GRPO step, agents: {agents}', sizes, {}, sizes.step, agents,
            _GRPO)
      for agents in sizes.agents]


# Name -> function that makes its cases.
BENCHMARKS = {
    'sampling': sampling, 'step': step, 'magrpo_step': magrpo_step,
    'update': update, 'scaling': scaling,
}


def _step(name, sizes, peers, load, num_agents, run_config):
  return timing.Case(
      f'{name}, {load}',
      _contestants(
          ours.Step(sizes.config, load, num_agents, run_config), peers,
          workload.request('step', [load] * num_agents, sizes.config)),
      counts={'tokens': num_agents * load.completion_tokens})


def _contestants(function, peers=(), request=None):
  """Our function and the running peers as contestants."""
  return {timing.OURS: timing.timed(function)} | {
      name: peers[name](request) for name in peers}
