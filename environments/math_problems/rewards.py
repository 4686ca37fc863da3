"""What a team is paid for in mathematics: reward terms and their weights.

Terms, all 0 or 1 (`reward_terms` logs them before weighting):

  name          role       value                                  sees
  solved        team       1 if the episode ends with a right     the checker
                           answer of the role that acts last
  boxed         reasoner   1 if there is a box that is not empty  the text
  right         reasoner   1 if that is right                     the checker
  ran           tool       1 if the program ended well and        the run
                           printed something
  printed       tool       1 if its last line is a number, or     the run
                           several
  output_right  tool       1 if that is the right answer          the checker

A term whose evidence is missing is 0: nothing is right without a box, and
nothing is printed by a program that failed. None of these is an oracle.

The *quality* of an action is the weighted sum of the terms of its role, from 0
to 1. A role is paid for its quality less that of its action in the turn before.
All candidates of a group share the turn before, so what AT-GRPO compares is the
quality, as in the paper (arXiv 2510.11062, its local rewards). Over an episode
the differences add up to the quality of the last action, so nothing is earned
by answering late or by disagreeing: an episode that ends at once with two right
answers pays the most that there is. An empty action has quality 0, the least.

The team's term is paid once, when the episode ends.

Presets (`REWARDS`):

  mixed    all of the table, with the weights of the paper
  outcome  none: nothing but the team's checker pays anybody. The step of the
           tool, and one after which the episode goes on, pay nothing at once;
           see environments/boards/rewards.py for return types that look further
"""

_REASONER = {'boxed': 0.2, 'right': 0.8}

# Preset -> role -> weights of its terms.
REWARDS = {
    'mixed': {
        'tool': {'ran': 0.1, 'printed': 0.1, 'output_right': 0.8},
        'reasoner': _REASONER, 'solo': _REASONER},
    'outcome': {'tool': {}, 'reasoner': {}, 'solo': {}},
}
