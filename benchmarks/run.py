"""Times atgrpo_jax against its peers and the limits of the machine.

  python -m benchmarks.run NAME [--against tunix,comlrl]
      [--peer_python tunix=PATH,comlrl=PATH] [--repeats N] [--out FOLDER]

NAME is one of

  sampling     prompts to completions and log-probabilities,   tunix
               and decoding alone
  step         GRPO step: rollout, gradient, Adam              tunix
  magrpo_step  MAGRPO step of two agents with one model each   comlrl
  update       gradient and Adam alone
  scaling      sampling over group size, prompt, new tokens, budget and turns;
               steps over agents
  uneven       completions of geometric lengths, compared with lockstep
  environment  environment steps that run programs
  machine      matrix products and copies of this machine
  all          all of the above

Weights are random and float32. Stop tokens exist only in `uneven` and for the
budgets of `scaling`. Each peer runs in the environment of the interpreter given
by --peer_python. Contestants are timed in turn, after a call that compiles.
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
  """Parses `names`, `peers` (name -> interpreter), `repeats` and `out`.

  `command` is the command line without paths, for the results.
  """
  parser = _Parser(
      prog='python -m benchmarks.run', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('name', metavar='NAME')
  parser.add_argument('--against', default='', metavar='PEERS')
  parser.add_argument('--peer_python', default='', metavar='PEER=PATH')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--out', type=pathlib.Path, default=_RESULTS)
  args = parser.parse_args(argv)

  known = cases_lib.BENCHMARKS
  if args.name not in (*known, 'all'):
    raise errors.UserError(
        f'There is no benchmark {args.name!r}; expected one of '
        f'{", ".join(known)} or all.')
  if args.repeats < 1:
    raise errors.UserError(f'--repeats={args.repeats} must be at least 1.')
  names = tuple(known) if args.name == 'all' else (args.name,)
  pythons = {}
  for item in filter(None, args.peer_python.split(',')):
    peer, equals, path = item.partition('=')
    if not equals or peer not in peer_lib.PEERS:
      raise errors.UserError(
          f'--peer_python {item!r} must be PEER=PATH, where PEER is one of '
          f'{", ".join(peer_lib.PEERS)}.')
    pythons[peer] = os.path.abspath(path)
  against = tuple(filter(None, args.against.split(',')))
  for peer in against:
    if peer not in (cases_lib.RIVALS.get(name) for name in names):
      pairs = [f'{rival} in {name}'
               for name, rival in cases_lib.RIVALS.items()]
      raise errors.UserError(
          f'--against {peer}: not a peer of {args.name}; expected '
          f'{", ".join(pairs)}.')
    if peer not in pythons:
      raise errors.UserError(
          f'--against {peer} needs --peer_python {peer}=PATH, the interpreter '
          'of an environment after `pip install '
          f'{peer_lib.PEERS[peer].install}`.')
  if unused := ', '.join(pythons.keys() - set(against)):
    raise errors.UserError(
        f'--peer_python names {unused}, but --against does not.')
  args.names, args.peers = names, pythons
  args.command = (
      f'python -m benchmarks.run {args.name} --repeats {args.repeats}')
  if against:
    args.command += f' --against {",".join(against)}'
  return args


def run(
    name: str, options: argparse.Namespace, sizes: cases_lib.Sizes) -> dict:
  """Runs and prints one benchmark and returns its result."""
  load_before = os.getloadavg()[0]
  with contextlib.ExitStack() as stack:
    peers = {
        peer: stack.enter_context(
            peer_lib.Process(peer, peer_lib.PEERS[peer], python))
        for peer, python in options.peers.items()
        if peer == cases_lib.RIVALS.get(name)}
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
    for name, python in options.peers.items():  # Before anything is timed.
      peer_lib.versions(name, peer_lib.PEERS[name], python)
    for name in options.names:
      result = run(name, options, cases_lib.Sizes())
      options.out.mkdir(parents=True, exist_ok=True)
      (options.out / f'{name}.json').write_text(
          json.dumps(result, indent=2) + '\n')
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
