"""Policy maps: valid ones, their order, and ambiguous ones."""

import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import policies as policies_lib

ROLES = ('tool', 'planner', 'critic')


@pytest.mark.parametrize('policies, expected', [
    ('shared', {'tool': 'shared', 'planner': 'shared', 'critic': 'shared'}),
    ('per_role', {'tool': 'tool', 'planner': 'planner', 'critic': 'critic'}),
    ('lora_per_role',
     {'tool': 'tool', 'planner': 'planner', 'critic': 'critic'}),
    ('tool=a,planner=b,critic=a', {'tool': 'a', 'planner': 'b', 'critic': 'a'}),
    # A policy may have the name of a role or a keyword.
    (' critic=shared, tool=planner, planner=tool',
     {'tool': 'planner', 'planner': 'tool', 'critic': 'shared'}),
])
def test_a_map_names_the_policy_of_each_role(policies, expected):
  found = policies_lib.make_policy_map(policies, ROLES)
  assert found == expected
  assert tuple(found) == ROLES


def test_policies_are_listed_once_in_role_order():
  found = policies_lib.make_policy_map('critic=x,tool=z,planner=x', ROLES)
  assert policies_lib.policy_names(found) == ('z', 'x')
  shared = policies_lib.make_policy_map('shared', ROLES)
  assert policies_lib.policy_names(shared) == ('shared',)


@pytest.mark.parametrize('policies', [
    '', 'per-role', 'tool=a', 'tool=a,planner=b',
    'tool=a,planner=b,critic=', 'tool=a,planner=b,critic',
    'tool=a,planner=b,critic=c,', 'tool=a,planner=b,critic=c,judge=d',
    'tool=a,tool=a,planner=b,critic=c', 'tool=a,planner=b,judge=c'])
def test_an_ambiguous_map_is_refused(policies):
  with pytest.raises(errors.UserError) as error:
    policies_lib.make_policy_map(policies, ROLES)
  message = str(error.value)
  assert f'policies={policies!r}' in message
  # The example in the message is a valid map.
  example = message.rpartition('such as ')[2].strip(".'")
  assert set(policies_lib.make_policy_map(example, ROLES)) == set(ROLES)
