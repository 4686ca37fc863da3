"""What a team is paid for in a board game: reward terms and their weights.

Terms, all in [-1, 1] (`reward_terms` logs them before weighting):

  name             role      value                              sees
  solved           team      1 when the board is solved         the checker
  progress         decides   what `Game.progress` says          the board
  idle             decides   -1 when a move leaves the board    the board
                             as it was
  illegal          decides   -1 x share of illegal parts of     the board
                             the move, up to the solution
  malformed        decides   -1 when no move is found           the text
  plan_solved      proposes  1 when the proposal solves a copy  the checker
  plan_progress    proposes  as progress, on the copy           the board
  plan_idle        proposes  as idle, on the copy               the board
  plan_illegal     proposes  as illegal, on the copy            the board
  plan_malformed   proposes  -1 when the program fails or no    the text, or
                             move is found                      the run

No term of these is an oracle. A game may add oracle terms of its own, with
weights in a preset of their own. Progress is undiscounted potential shaping,
so it telescopes: over the turns of an episode a circle pays nothing. A move
that leaves the board as it was pays less than a random one (`idle`). No move
pays less than a malformed answer, whose weight is that of the terms that may
fall together.

Presets, each with the weights of the local terms (`REWARDS`):

  mixed               all of the table
  outcome_and_plans   `plan_solved` alone: the checker pays whoever decides for
                      the board, and a proposer for its copy
  outcome             none: nothing but the team's checker pays anybody

With `outcome` a proposer's step pays nothing at once, so with the return
`immediate` proposers have no signal. Those that look further give them one:
`monte_carlo` in a tree, `return_to_go` and `episode_return` in parallel
episodes.
"""

# Weights of the local terms. The team's term has the weight alpha, which
# belongs to the algorithm. The first random move of an episode pays -0.14 to
# -0.01 on average, a legal one more, so `idle` is below both. `malformed` is
# what a move pays that loses all progress and is illegal in nearly all parts.
REWARDS = {
    'mixed': {
        'progress': 0.5, 'idle': 0.2, 'illegal': 0.2, 'malformed': 0.7,
        'plan_solved': 1.0, 'plan_progress': 0.5, 'plan_idle': 0.2,
        'plan_illegal': 0.2, 'plan_malformed': 0.7,
    },
    'outcome_and_plans': {'plan_solved': 1.0},
    'outcome': {},
}
