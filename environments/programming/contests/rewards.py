"""What a coder and a tester are paid for (arXiv 2510.11062, appendix).

Terms (`reward_terms` logs them before weighting):

  name         role    range      value                              sees
  improvement  team    -1 to 1    share of the golden tests that     golden
                                  the coder's program passes, less   tests
                                  that of its last program
  compiles     coder   0 or 1     no golden run ended with an error  golden
                                  of syntax or of an import          inputs
  smoke        coder   0 or 1     the first 3 golden tests end well, golden
                                  whatever is printed                inputs
  golden       coder   0 to 1     share of the golden tests passed   golden
                                                                     tests
  valid        tester  0 to 1     share of the cases that the        reference
                                  reference solution can run, twice
                                  with the same output
  correct      tester  0 to 1     share of the cases whose expected  reference
                                  output the reference gives

All are oracles: no agent is shown golden tests or the reference.

The team's rewards of an episode add up to the share of the golden tests that
its last program passes. Candidates that are tried from one state have the same
last program, so that of their differences is the paper's team reward.

Nothing is paid for nothing: a reply without a program hands in an empty one,
which passes nothing; `compiles` and `smoke` are 0 for a program that prints
nothing, or returns None; a case that the empty program passes, and one that is
there twice, however it is spaced, count as wrong. A coder's local terms are of
the program that it hands in, also if that is its last one again: who keeps to a
program is paid for it in each turn, and the team is not. Where the data has no
reference solution, the tester's terms cannot be known, are not logged and pay
0.

Presets, each with the weights of the local terms:

  mixed    the paper's: coder 0.1, 0.1 and 0.8, tester 0.2 and 0.8
  outcome  none: nothing but the golden tests pays, and them the team. The
           tester's step pays nothing at once, so with the return `immediate`
           it has no signal
"""

REWARDS = {
    'mixed': {
        'compiles': 0.1, 'smoke': 0.1, 'golden': 0.8, 'valid': 0.2,
        'correct': 0.8},
    'outcome': {},
}
SMOKE_TESTS = 3
