"""Which policy plays which role, and how its model is sampled.

The policy map is the sigma of arXiv 2510.11062, section 3; `settings` reads it.
Everything else loops over {policy: ...} dicts.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import jax

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.rollout import contract
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api

PolicyMap = Mapping[str, str]  # role -> policy


# Sampling.


@dataclasses.dataclass(frozen=True)
class SamplingPolicy:
  """A model, its tokenizer, and the index of the policy's adapter."""

  model: engine_lib.SampledModel
  tokenizer: tokenizer_lib.Tokenizer
  adapter: int = 0


def sampling_policies(
    policies: Mapping[str, policy_lib.Policy],
    params: Mapping[str, model.Params | model.LoraWeights],
    frozen_params: Mapping[str, model.Params]) -> dict[str, SamplingPolicy]:
  """Policy -> model, tokenizer and adapter for the sampler.

  `params` are the trained parameters of each policy, `frozen_params` the frozen
  models. Adapters over one model are stacked and sampled together.
  """
  names_of_model, sampled = {}, {}
  for name, policy in policies.items():
    key = name
    if policy.trained == 'lora':
      key = id(frozen_params[name]), jax.tree.structure(params[name])
    names_of_model.setdefault(key, []).append(name)
  for names in names_of_model.values():
    policy, adapters = policies[names[0]], None
    if policy.trained == 'lora':
      with jax.set_mesh(policy.mesh):
        adapters = model.stack(
            [params[name] for name in names],
            [policies[name].lora.scale for name in names])
    source = params if policy.trained == 'all' else frozen_params
    shared = engine_lib.SampledModel(
        source[names[0]], policy.config, policy.learner.dtype, policy.mesh,
        adapters)
    for index, name in enumerate(names):
      sampled[name] = SamplingPolicy(shared, policies[name].tokenizer, index)
  return sampled


# Prompts.


def prompt_limit(
    buckets: batching.Buckets, max_new_tokens: int,
    config: model.ModelConfig) -> int:
  """The largest number of tokens in a prompt."""
  return min(buckets.prompt[-1], config.max_positions - max_new_tokens)


def check_prompt(
    length: int, key: types.GroupKey, *, buckets: batching.Buckets,
    max_new_tokens: int, config: model.ModelConfig) -> None:
  """Raises UserError if a prompt is too long; prompts are never cut."""
  limit = prompt_limit(buckets, max_new_tokens, config)
  if length > limit:
    raise errors.UserError(
        f'The prompt of role {key.role!r} in task {key.task_id!r}, turn '
        f'{key.turn + 1}, has {length} tokens; at most {max(limit, 0)} fit. '
        f'Raise buckets.prompt (largest: {buckets.prompt[-1]}) or lower '
        f'rollout.max_new_tokens={max_new_tokens}; the model has '
        f'{config.max_positions} positions.')


def check_first_prompts(
    environment: env_api.Environment, tasks: Sequence[env_api.Task],
    policies: Mapping[str, policy_lib.Policy], policy_map: PolicyMap, *,
    buckets: batching.Buckets, max_new_tokens: int) -> None:
  """Raises UserError unless every task starts and its first prompts fit.

  A prompt has at most as many tokens as bytes, besides those of the template,
  so only prompts that may be too long are encoded. The runner checks all first
  prompts, and `EpisodeRunner.has_room` all later ones.
  """
  limits = {
      role: prompt_limit(
          buckets, max_new_tokens, policies[policy_map[role]].config)
      for role in environment.phases[0]}
  overhead = {}  # Role -> tokens of its first prompt, with the template's.
  for task in tasks:
    state = contract.check_start(environment, task)
    for role, limit in limits.items():
      messages = contract.observe(
          environment, state, role, task_id=task['task_id'], turn=0)
      num_bytes = sum(len(str(x).encode()) for x in messages)
      if role not in overhead or num_bytes + overhead[role] > limit:
        policy = policies[policy_map[role]]
        length = len(policy.tokenizer.encode_prompt(messages))
        check_prompt(
            length, types.GroupKey(task['task_id'], role, turn=0, branch=0),
            buckets=buckets, max_new_tokens=max_new_tokens,
            config=policy.config)
        overhead.setdefault(role, length)
