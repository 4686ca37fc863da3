"""Policy maps: valid ones, their order, and ambiguous ones."""

import pytest

from atgrpo_jax import errors
from atgrpo_jax.rollout import policies as policies_lib

ROLES = ('tool', 'planner', 'critic')
# Policies may be named after other roles.
PAIRS = (('critic', 'shared'), ('tool', 'planner'), ('planner', 'tool'))


@pytest.mark.parametrize('policies, pairs, expected', [
    ('shared', (), dict.fromkeys(ROLES, 'shared')),
    ('per_role', (), {role: role for role in ROLES}),
    ('lora_per_role', (), {role: role for role in ROLES}),
    ('shared', PAIRS, dict(PAIRS)),
])
def test_a_map_names_the_policy_of_each_role(policies, pairs, expected):
  policy_map = policies_lib.make_policy_map(policies, ROLES, pairs)
  assert policy_map == expected
  assert tuple(policy_map) == ROLES


def test_policies_are_listed_once_in_role_order():
  policy_map = policies_lib.make_policy_map(
      'shared', ROLES, (('critic', 'x'), ('tool', 'z'), ('planner', 'x')))
  assert policies_lib.policy_names(policy_map) == ('z', 'x')


@pytest.mark.parametrize('policies, pairs, words', [
    ('', (), "policies=''"), ('per-role', (), "policies='per-role'"),
    ('shared', (('tool', 'a'),), 'policy_map='),
    ('shared', (*PAIRS, ('tool', 'a')), 'policy_map='),
    ('shared', (*PAIRS[1:], ('judge', 'a')), 'policy_map='),
    ('shared', ('tool', 'planner', 'critic'), 'policy_map='),
    ('shared', (*PAIRS[1:], ('critic', '../evals')), "'../evals'")])
def test_an_ambiguous_map_is_refused(policies, pairs, words):
  with pytest.raises(errors.UserError) as error:
    policies_lib.make_policy_map(policies, ROLES, pairs)
  assert words in str(error.value)
