"""policy_map.py: who is played by which policy, and maps that leave a doubt."""

import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import policy_map

ROLES = ('tool', 'planner', 'critic')


@pytest.mark.parametrize('policies, expected', [
    ('shared', {'tool': 'shared', 'planner': 'shared', 'critic': 'shared'}),
    ('per_role', {'tool': 'tool', 'planner': 'planner', 'critic': 'critic'}),
    ('lora_per_role',
     {'tool': 'tool', 'planner': 'planner', 'critic': 'critic'}),
    ('tool=a,planner=b,critic=a', {'tool': 'a', 'planner': 'b', 'critic': 'a'}),
    # A name may be a role's or a keyword's; the order is the team's.
    (' critic=shared, tool=planner, planner=tool',
     {'tool': 'planner', 'planner': 'tool', 'critic': 'shared'}),
])
def test_maps(policies, expected):
  found = policy_map.make_policy_map(policies, ROLES)
  assert found == expected
  assert tuple(found) == ROLES


def test_policies_come_once_in_the_order_of_roles():
  found = policy_map.make_policy_map('critic=x,tool=z,planner=x', ROLES)
  assert policy_map.policies_of(found) == ('z', 'x')
  shared = policy_map.make_policy_map('shared', ROLES)
  assert policy_map.policies_of(shared) == ('shared',)


@pytest.mark.parametrize('policies', [
    '', 'per-role', 'tool=a', 'tool=a,planner=b',
    'tool=a,planner=b,critic=', 'tool=a,planner=b,critic',
    'tool=a,planner=b,critic=c,', 'tool=a,planner=b,critic=c,judge=d',
    'tool=a,tool=a,planner=b,critic=c', 'tool=a,planner=b,judge=c'])
def test_maps_that_leave_a_doubt(policies):
  with pytest.raises(errors.UserError) as error:
    policy_map.make_policy_map(policies, ROLES)
  message = str(error.value)
  assert f'policies={policies!r}' in message
  # The example that it gives works.
  example = message.rpartition('such as ')[2].strip(".'")
  assert set(policy_map.make_policy_map(example, ROLES)) == set(ROLES)


def test_adapters():
  assert policy_map.adapts('lora_per_role')
  assert not policy_map.adapts('per_role')
