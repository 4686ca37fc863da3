"""Reads the parts of a config that need neither jax nor models.

This module must not import jax, so that mistakes in a config are reported
before jax is loaded, which takes up to a minute on a cold disk.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import math
import numbers
import re

import ml_collections

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax.algorithms import spec as spec_lib
from environments import env_api
from environments import sandbox as sandbox_lib

# Required attributes of an `env_api.Environment`.
_ENVIRONMENT = (
    'roles', 'phases', 'max_turns', 'team_reward_range', 'reset', 'observe',
    'step')
# Logits divided by a smaller temperature may overflow.
_MIN_TEMPERATURE = 1e-6
_MIN_VALUES = {
    'rollout.num_tasks': 1, 'rollout.max_new_tokens': 1, 'train.num_steps': 0,
    'train.completion_tokens': 0, 'train.updates_per_rollout': 1,
    'train.checkpoint_every': 1, 'train.groups_every': 1,
    'train.diagnose_every': 0, 'evaluation.validate_every': 1,
    'evaluation.num_samples': 1, 'evaluation.num_timed': 0, 'mesh.fsdp': 0,
    'mesh.tensor': 0}


def read(
    config: ml_collections.ConfigDict, sandbox: sandbox_lib.Sandbox | None,
) -> tuple[
    env_api.Environment, Mapping[str, str], spec_lib.RolloutSpec,
    spec_lib.AdvantageSpec, spec_lib.CriticSpec]:
  """Returns the parts of an experiment that need neither jax nor models."""
  with version_errors():
    _check_values(config)
    rollout = rollout_spec(config)
    advantage = spec_lib.AdvantageSpec(**config.advantage)
    critic = spec_lib.CriticSpec(**config.critic)
  environment = make_environment(config, sandbox)
  policy_map = make_policy_map(
      config.policies, environment.roles, config.policy_map)
  spec_lib.check_terms(rollout, advantage)
  spec_lib.check_critic(critic, rollout, advantage)
  return environment, policy_map, rollout, advantage, critic


@contextlib.contextmanager
def version_errors() -> Iterator[None]:
  """Raises UserError for a config with missing or unknown keys."""
  try:
    yield
  except (AttributeError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'The config does not fit this version ({errors.one_line(error)}); '
        'start from base_config of configs/common.py. If it is from a workdir, '
        'use the version in its provenance.jsonl.') from error


def load_tasks(
    config: ml_collections.ConfigDict, split: str) -> list[env_api.Task]:
  """Returns the tasks of a split; UserError if it cannot be used."""
  from environments import datasets  # Here, because its import takes seconds.

  section = config.dataset
  with errors.as_user_error():
    return datasets.load(
        section.builder or config.environment.module, split,
        section.data_dir or None, section.config or None)


def rollout_spec(config: ml_collections.ConfigDict) -> spec_lib.RolloutSpec:
  """Returns the switches of the rollout."""
  return spec_lib.RolloutSpec(**{
      field.name: config.rollout[field.name]
      for field in dataclasses.fields(spec_lib.RolloutSpec)})


def _check_values(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for values that no spec checks."""
  train = config.train
  errors.check_number(
      'seed', config.seed, min_value=0, less_than=2**32,
      advice='; jax uses seeds modulo 2**32')
  for name, min_value in _MIN_VALUES.items():
    section, _, key = name.partition('.')
    errors.check_number(name, config[section][key], min_value=min_value)
  for name, value in config.environment.options.to_dict().items():
    try:
      json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
      raise errors.UserError(
          f'environment.options.{name}={value!r:.100} cannot be saved as JSON '
          f'({error}); give numbers, texts, lists or dicts.') from error
  errors.check_number(
      'environment.step_seconds', config.environment.step_seconds,
      greater_than=0, less_than=1e8)
  if not train.num_steps and not train.completion_tokens:
    raise errors.UserError(
        'train.num_steps=0 and train.completion_tokens=0: the run would never '
        'end; set one of them.')
  errors.check_choice(
      'train.update_order', train.update_order, ('mixed', 'last_turn', 'nodes'))
  if train.update_order != 'mixed' and train.updates_per_rollout > 1:
    raise errors.UserError(
        f'train.updates_per_rollout={train.updates_per_rollout} with '
        f'update_order={train.update_order!r}, which makes one update per '
        "turn or node; use 1, or update_order='mixed'.")
  check_sampling(config)


def check_sampling(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for values that the sampler cannot use."""
  errors.check_number(
      'rollout.temperature', config.rollout.temperature,
      min_value=_MIN_TEMPERATURE, advice='; equal candidates have no advantage')
  stop = config.rollout.stop
  if not isinstance(stop, tuple) or not all(
      isinstance(x, str) and x for x in stop):
    raise errors.UserError(
        f"rollout.stop={stop!r}: expected strings, such as ('</answer>',).")
  evaluation = config.evaluation
  if evaluation.temperature != 0:
    errors.check_number(
        'evaluation.temperature', evaluation.temperature,
        min_value=_MIN_TEMPERATURE, advice=', or 0 for greedy decoding')
  errors.check_number('evaluation.top_k', evaluation.top_k, min_value=0)
  spec_lib.check_fraction('evaluation.top_p', evaluation.top_p)


def make_environment(
    config: ml_collections.ConfigDict,
    sandbox: sandbox_lib.Sandbox | None) -> env_api.Environment:
  """Returns the environment; it cannot be stepped without a sandbox."""
  name = config.environment.module
  given = f'environment.module={name!r}'
  make = rules.load(given, name, 'make_environment')
  rules.check_unchanged([name])  # The workers import the file.
  section = config.environment
  arguments = {
      'team': section.team, 'max_turns': section.max_turns,
      'reward': section.reward, 'sandbox': sandbox, **section.options}
  with errors.as_user_error():
    try:
      environment = make(**arguments)
    except ValueError:  # An invalid option.
      raise
    except Exception as error:  # User code may raise anything.
      raise errors.of_user_code(
          f'{given}: make_environment failed ({errors.one_line(error)}); check '
          'the section environment of the config. It must have the parameters '
          f'{", ".join(arguments)}, or **_ for those that it ignores.', error
          ) from error
  missing = [x for x in _ENVIRONMENT if not hasattr(environment, x)]
  if missing:
    raise errors.UserError(
        f'{given}: the environment lacks '
        f'{", ".join(missing)}; see environments/env_api.py.')
  if not (isinstance(environment.max_turns, numbers.Integral)
          and environment.max_turns >= 1):
    raise errors.UserError(
        f'{given}: max_turns={environment.max_turns!r:.100}; expected a whole '
        'number, at least 1.')
  try:
    low, high = environment.team_reward_range
    is_range = -math.inf < low <= high < math.inf
  except (TypeError, ValueError):
    is_range = False
  if not is_range:
    raise errors.UserError(
        f'{given}: team_reward_range={environment.team_reward_range!r:.100}; '
        'expected the least and the largest team reward of a step.')
  roles, phases = environment.roles, environment.phases
  try:
    acting = [role for phase in phases for role in phase]
    is_team = (
        acting and sorted(acting) == sorted({*roles}) == sorted(roles)
        and all(isinstance(x, str) for x in acting)
        and not any(isinstance(x, str) for x in (roles, phases, *phases)))
  except TypeError:
    is_team = False
  if not is_team:
    raise errors.UserError(
        f'{given}: each of the roles {roles!r:.200} must be a distinct text '
        f'and act in exactly one of the phases {phases!r:.200}; give a tuple '
        'of texts, and a tuple of such tuples.')
  return environment


def make_policy_map(
    policies: str, roles: Sequence[str],
    pairs: Sequence[tuple[str, str]]) -> Mapping[str, str]:
  """Returns role -> policy of a config's `policies` and `policy_map`.

  'shared' is one policy for all roles; 'per_role' and 'lora_per_role' are one
  policy for each role, with its name. (role, policy) `pairs` take precedence.
  """
  errors.check_choice(
      'policies', policies, ('shared', 'per_role', 'lora_per_role'))
  if pairs:
    return read_policy_map('policy_map', pairs, roles)
  if policies == 'shared':
    return dict.fromkeys(roles, 'shared')
  return read_policy_map('policies', [(role, role) for role in roles], roles)


def read_policy_map(
    key: str, pairs: Sequence[tuple[str, str]],
    roles: Sequence[str]) -> Mapping[str, str]:
  """Returns the policy map of (role, policy) pairs, one for each role."""
  if (any(not isinstance(pair, tuple) or [*map(type, pair)] != [str, str]
          for pair in pairs)
      or sorted(role for role, _ in pairs) != sorted(roles)):
    example = tuple((role, 'a') for role in roles)
    raise errors.UserError(
        f'{key}={pairs!r}: expected a (role, policy) pair for every role, such '
        f'as {example!r}.')
  policy_map = dict(pairs)
  for policy in policy_map.values():
    # Policies name folders, for example those of `export`.
    if not re.fullmatch(r'[A-Za-z0-9_]{1,64}', policy):
      raise errors.UserError(
          f'{key}: {policy!r} cannot name a policy; use at most 64 letters, '
          'digits and underscores.')
  return {role: policy_map[role] for role in roles}
