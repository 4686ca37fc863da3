"""Plays a relay with policies that are tables, through the runner of training.

A completion is one id, the index of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses

import numpy as np

from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.sampling import engine as engine_lib


@dataclasses.dataclass(frozen=True)
class Answers:
  """A tokenizer whose ids are the answers of a role."""

  answers: Sequence[str]

  def decode(self, ids: np.ndarray) -> str:
    return self.answers[ids[0]]


@dataclasses.dataclass
class TabularRunner(runner_lib.EpisodeRunner):
  """Samples from a table of probabilities in the place of a model."""

  table: Mapping[str, np.ndarray] = dataclasses.field(kw_only=True)
  rng: np.random.Generator = dataclasses.field(kw_only=True)

  def sample(
      self, requests: Sequence[runner_lib.SampleRequest], *,
      group_size: int) -> runner_lib.PendingSamples:
    groups = []
    for request in requests:
      message, = self.environment.observe(request.state, request.key.role)
      prompt = message['content']
      probability = self.table[prompt]
      drawn = self.rng.choice(
          len(probability), size=group_size, p=probability)
      self.usage.model_calls += group_size
      groups.append(engine_lib.SampledGroup(
          engine_lib.Request(
              tag=None, prompt=np.frombuffer(prompt.encode(), np.uint8),
              key=None, budget=1),
          completions=tuple(drawn[:, None]),
          logprobs=tuple(np.log(probability[drawn])[:, None])))
    return runner_lib.PendingSamples(groups)


class Inline(futures.Executor):
  """Does at once what it is given."""

  def submit(self, function, /, *args, **kwargs):
    done = futures.Future()
    done.set_result(function(*args, **kwargs))
    return done
