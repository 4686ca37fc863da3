"""Which critics a run has, and how the trees of a step are shown to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import functools

from atgrpo_jax import errors
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.learner import buckets as buckets_lib
from atgrpo_jax.learner import critic as critic_lib
from atgrpo_jax.learner import critic_step
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import train_state


def build(
    spec: spec_lib.CriticSpec, policies: Mapping[str, policy_lib.Policy],
    buckets: buckets_lib.Buckets,
    read_model: Callable[[str], policy_lib.Pretrained],
) -> dict[str, critic_lib.Critic]:
  """Name, as in 'critic/central' -> critic; empty without any.

  A central critic is on the devices of the first policy.

  Args:
    spec: the switches.
    policies: of the run.
    buckets: static shapes of the policies.
    read_model: of `spec.folder`.
  """
  if spec.kind == 'none':
    return {}
  judged = {
      'central': {actor_critic.CENTRAL: next(iter(policies.values()))},
      'independent': policies}[spec.kind]
  critics = {}
  for key, policy in judged.items():
    if spec.trunk == 'policy' and policy.trained != 'all':
      raise errors.UserError(
          f"critic.trunk='policy', but policy {policy.name!r} has "
          f'model.trained={policy.trained!r}, so its hidden states are not '
          "trained; use model.trained='all', or critic.trunk='own'.")
    name = f'critic/{key}'
    critics[name] = critic_lib.Critic(
        name=name, policy=policy.name, pretrained=(
            read_model(spec.folder) if spec.folder else policy.pretrained),
        learner=critic_step.CriticLearnerSpec(
            optimizer=dataclasses.replace(
                policy.learner.optimizer, learning_rate=spec.learning_rate),
            value_clip=spec.value_clip, dtype=policy.learner.dtype,
            remat=policy.learner.remat, trains_trunk=spec.trunk == 'own'),
        mesh=policy.mesh, lengths=spec.prompt_buckets or buckets.prompt,
        microbatch_tokens=buckets.microbatch_tokens,
        num_updates=spec.updates_per_rollout)
  return critics


def judges(
    spec: spec_lib.CriticSpec, critics: Mapping[str, critic_lib.Critic],
    params: Mapping[str, train_state.Params]) -> actor_critic.Critics | None:
  """The critics at these parameters of theirs; None without any."""
  if not critics:
    return None
  return actor_critic.Critics(spec, {
      name.removeprefix('critic/'): actor_critic.Judge(
          name, critic.tokenizer, functools.partial(critic.values, params))
      for name, critic in critics.items()})
