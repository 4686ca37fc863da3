"""Reward terms of coder and tester (arXiv 2510.11062, appendix).

`reward_terms` logs the terms before weighting:

  name         role    range    value                              computed from
  improvement  team    -1 to 1  fraction of golden tests passed    golden tests
                                by the program, minus that of the
                                previous program
  compiles     coder   0 or 1   no golden run ends with a syntax   golden inputs
                                or import error
  smoke        coder   0 or 1   the first 3 golden tests end       golden inputs
                                without an error, whatever they
                                print
  golden       coder   0 to 1   fraction of golden tests passed    golden tests
  valid        tester  0 to 1   fraction of cases on which the     reference
                                reference gives the same output
                                twice
  correct      tester  0 to 1   fraction of cases whose expected   reference
                                output the reference gives

All terms are oracles: no agent sees golden tests or the reference.

The team's rewards of an episode add up to the fraction of golden tests that the
last program passes. Candidates tried from one state share the previous program,
so their differences are those of the paper's team reward.

Doing nothing earns nothing. A reply without a program submits an empty one,
which passes nothing. `compiles` and `smoke` are 0 for a program that prints
nothing or returns None. A case counts as wrong if the empty program passes it,
or if it repeats another case with different spacing. A coder's terms are paid
for the submitted program in every turn, even if it is unchanged; the team is
paid for improvements only. Without a reference solution the tester's terms are
unknown: they are not logged and pay 0.

Presets (`REWARDS`), with the weights of the local terms:

  mixed    coder 0.1, 0.1 and 0.8, tester 0.2 and 0.8, as in the paper
  outcome  only golden tests pay, and they pay the team. A tester's step has no
           immediate reward, so it has no signal with the return `immediate`
"""

REWARDS = {
    'mixed': {
        'compiles': 0.1, 'smoke': 0.1, 'golden': 0.8, 'valid': 0.2,
        'correct': 0.8},
    'outcome': {},
}
SMOKE_TESTS = 3
