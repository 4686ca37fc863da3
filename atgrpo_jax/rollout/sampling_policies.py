"""What is sampled for each policy: a model, or an adapter among several."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from atgrpo_jax import model
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import runner as runner_lib


def make(
    policies: Mapping[str, policy_lib.Policy],
    params: Mapping[str, model.Params | model.LoraWeights],
    frozen_params: Mapping[str, model.Params],
) -> dict[str, runner_lib.SamplingPolicy]:
  """Policy -> what is sampled for it.

  Adapters over the same model become one, to be sampled at once. Each policy is
  prompted with its own tokenizer all the same.

  Args:
    policies: of the run.
    params: of each policy that is trained.
    frozen_params: of each policy with a frozen model.
  """
  sampled, together = {}, {}
  for name, policy in policies.items():
    if policy.trained == 'lora':
      key = id(frozen_params[name]), jax.tree.structure(params[name])
      together.setdefault(key, []).append(name)
    else:
      own = params if policy.trained == 'all' else frozen_params
      sampled[name] = runner_lib.SamplingPolicy(
          _sampled_model(policy, own[name]), policy.tokenizer)
  for names in together.values():
    policy = policies[names[0]]
    with jax.set_mesh(policy.mesh):
      adapters = model.stack(
          [params[name] for name in names],
          [policies[name].lora.scale for name in names])
    together_model = _sampled_model(policy, frozen_params[names[0]], adapters)
    for index, name in enumerate(names):
      sampled[name] = runner_lib.SamplingPolicy(
          together_model, policies[name].tokenizer, index)
  return sampled


def _sampled_model(
    policy: policy_lib.Policy, params: model.Params,
    adapters: model.Adapters | None = None) -> runner_lib.SampledModel:
  return runner_lib.SampledModel(
      params=params, config=policy.config, dtype=policy.learner.dtype,
      mesh=policy.mesh, adapters=adapters)
