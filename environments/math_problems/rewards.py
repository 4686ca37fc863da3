"""Reward terms of the mathematics environment and their weights.

All terms are 0 or 1. `reward_terms` logs them before weighting:

  name          role       1 if                                   computed from
  solved        team       the episode ends with a correct        the checker
                           answer of the role that acts last
  boxed         reasoner   there is a box that is not empty       the text
  right         reasoner   the boxed answer is correct            the checker
  ran           tool       the program ended without an error     the run
                           and printed something
  printed       tool       the last printed line is a number or   the run
                           several numbers
  output_right  tool       the last printed line is correct       the checker

A term without evidence is 0: without a box nothing is `right`. No term is an
oracle.

The *quality* of an action, from 0 to 1, is the weighted sum of its role's
terms. A role is paid the difference to the quality of its action in the
previous turn. All candidates of a group share the previous turn, so AT-GRPO
compares the quality, which is the local reward of arXiv 2510.11062. Over an
episode the differences add up to the quality of the last action, so late
answers and disagreement earn nothing, and an empty action has the minimum, 0.

The team's term is paid once, when the episode ends.

Presets (`REWARDS`):

  mixed    all terms above, with the weights of the paper
  outcome  only the team's checker pays. A step of the tool, and a step that
           does not end the episode, have no immediate reward;
           environments/boards/board_game.py lists return types that look
           further
"""

_REASONER = {'boxed': 0.2, 'right': 0.8}

# Preset -> role -> weights of its terms.
REWARDS = {
    'mixed': {
        'tool': {'ran': 0.1, 'printed': 0.1, 'output_right': 0.8},
        'reasoner': _REASONER, 'solo': _REASONER},
    'outcome': {'tool': {}, 'reasoner': {}, 'solo': {}},
}
