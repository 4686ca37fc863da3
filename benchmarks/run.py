"""Times atgrpo_jax against its peers and the limits of the machine.

  python -m benchmarks.run NAME [--against PEER --peer_python PEER=PATH]
      [--repeats N] [--out FOLDER]

NAME is one of (with its peer)

  sampling     prompts to completions and log-probabilities,   tunix
               and decoding alone
  step         GRPO step: rollout, gradient, Adam              tunix
  magrpo_step  MAGRPO step of two agents with one model each   comlrl
  update       gradient and Adam alone
  scaling      sampling over group size, prompt, new tokens, budget and turns;
               steps over agents
  uneven       completions of geometric lengths, compared with lockstep
  environment  environment steps that run programs

Weights are random and float32. Stop tokens exist only in `uneven` and for the
budgets of `scaling`. A peer runs in the environment of the interpreter given by
--peer_python. Contestants are timed in turn, after a call that compiles.
Results go to FOLDER/NAME.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import sys

from atgrpo_jax import errors
from benchmarks import cases as cases_lib
from benchmarks import machine
from benchmarks import peer as peer_lib
from benchmarks import timing

_RESULTS = pathlib.Path('benchmarks/results')


class _Parser(argparse.ArgumentParser):

  def error(self, message):
    raise errors.UserError(f'{message}; see --help.')


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """Parses `name`, `peer`, `python` (its interpreter), `repeats` and `out`.

  `peer` is '' without --against. `command` is the command line without paths,
  for the results.
  """
  parser = _Parser(
      prog='python -m benchmarks.run', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('name', metavar='NAME', choices=cases_lib.BENCHMARKS)
  parser.add_argument('--against', default='', metavar='PEER')
  parser.add_argument('--peer_python', default='', metavar='PEER=PATH')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--out', type=pathlib.Path, default=_RESULTS)
  args = parser.parse_args(argv)
  if args.repeats < 1:
    raise errors.UserError(
        f'--repeats={args.repeats}: expected at least 1.')
  args.peer, (name, _, python) = args.against, args.peer_python.partition('=')
  if args.peer and args.peer != cases_lib.RIVALS.get(args.name):
    rivals = ', '.join(
        f'{peer} in {name}' for name, peer in cases_lib.RIVALS.items())
    raise errors.UserError(
        f'--against={args.peer} is not a peer of {args.name}; expected '
        f'{rivals}.')
  if name != args.peer or bool(python) != bool(args.peer):
    install = (
        f' after `pip install {peer_lib.PEERS[args.peer].install}`'
        if args.peer else '')
    raise errors.UserError(
        f'--peer_python={args.peer_python!r} with --against={args.peer!r}: '
        'expected --against PEER --peer_python PEER=PATH, the interpreter of '
        f'an environment{install}.')
  args.python = os.path.abspath(python)
  args.command = (
      f'python -m benchmarks.run {args.name} --repeats {args.repeats}')
  if args.peer:
    args.command += f' --against {args.peer}'
  return args


def run(options: argparse.Namespace, sizes: cases_lib.Sizes) -> dict:
  """Runs and prints a benchmark and returns its result."""
  name = options.name
  load_before = os.getloadavg()[0]
  with contextlib.ExitStack() as stack:
    peers = {}
    if options.peer:
      peers[options.peer] = stack.enter_context(peer_lib.Process(
          options.peer, peer_lib.PEERS[options.peer], options.python))
    setup = cases_lib.Setup(sizes, peers, stack)
    cases = cases_lib.BENCHMARKS[name](setup)
    seconds = timing.run(cases, options.repeats)
  rates = None
  if any(case.min_work for case in cases):
    rates = machine.rates(cases, seconds)
  result = {
      'benchmark': name, 'command': options.command,
      'repeats': options.repeats, 'machine': machine.describe(),
      'load_average': [load_before, os.getloadavg()[0]],
      'peers': {peer: process.versions for peer, process in peers.items()},
      'cases': [
          timing.summarise(case, times, rates)
          for case, times in zip(cases, seconds)]}
  print(f'\n{name}: {options.repeats} repeats, load average before and after '
        f'{result["load_average"]}')
  for case in result['cases']:
    print(timing.describe(case))
  return result


def main(argv: Sequence[str]) -> int:
  try:
    options = parse(argv)
    result = run(options, cases_lib.Sizes())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f'{options.name}.json').write_text(
        json.dumps(result, indent=2) + '\n')
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
