"""Which policy plays which role: the sigma of arXiv 2510.11062, section 3.

Nothing outside this module asks how policies are shared; everything else loops
over {policy: ...} dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import re

from atgrpo_jax import errors

PolicyMap = Mapping[str, str]  # role -> policy


def make_policy_map(
    policies: str, roles: Sequence[str], key: str = 'policies') -> PolicyMap:
  """Reads the config's `policies`, or another key, for a team of these roles.

  'shared' is one policy for all roles, 'per_role' and 'lora_per_role' one for
  each, named after it; 'tool=a,planner=b' names the policy of every role.
  """
  if policies == 'shared':
    return {role: 'shared' for role in roles}
  if policies in ('per_role', 'lora_per_role'):
    return _with_plain_names({role: role for role in roles}, key)
  pairs = [pair.strip().partition('=') for pair in policies.split(',')]
  policy_map = {role: policy for role, _, policy in pairs}
  if (len(policy_map) != len(pairs) or set(policy_map) != set(roles)
      or not all(policy_map.values())):
    example = ','.join(f'{role}=a' for role in roles)
    raise errors.UserError(
        f"{key}={policies!r} is neither 'shared' nor 'per_role' nor "
        "'lora_per_role' nor a map that names the policy of every role once, "
        f'such as {example!r}.')
  return _with_plain_names({role: policy_map[role] for role in roles}, key)


def _with_plain_names(policy_map, key):
  """Policies name folders, such as those of `export`."""
  for policy in policy_map.values():
    if not re.fullmatch(r'[A-Za-z0-9_]{1,64}', policy):
      raise errors.UserError(
          f'{key}: {policy!r} cannot name a policy; take at most 64 letters, '
          'digits and underscores.')
  return policy_map


def adapts(policies: str) -> bool:
  """Whether the policies are adapters unless the config says otherwise."""
  return policies == 'lora_per_role'


def policies_of(policy_map: PolicyMap) -> tuple[str, ...]:
  """The policies in the order of their first role."""
  return tuple(dict.fromkeys(policy_map.values()))
