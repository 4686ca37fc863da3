"""Times atgrpo_jax against other libraries or another checkout.

  python -m benchmarks.run NAME [--tunix PYTHON] [--comlrl PYTHON]
      [--repeats N] [--out FOLDER]
  python -m benchmarks.run NAME --checkout FOLDER [--repeats N]

NAME is one of (with its peer)

  sampling     prompts to completions and log-probabilities,   tunix
               and decoding alone
  step         GRPO step: rollout, gradient, Adam              tunix
  magrpo_step  MAGRPO step of two agents with one model each   comlrl
  update       gradient and Adam alone
  scaling      sampling over group size, prompt and new tokens;
               steps over agents

Weights are random and float32, and no token stops a completion. A peer runs in
the environment of the given Python interpreter. Contestants are timed in turn,
after a call that compiles. Results go to FOLDER/NAME.json.

--checkout runs the benchmark of the current folder and that of FOLDER in turn,
each --repeats times in a new process, and prints the ratio of the best times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from atgrpo_jax import errors
from benchmarks import cases as cases_lib
from benchmarks import timing

_RESULTS = pathlib.Path('benchmarks/results')
_PEERS = pathlib.Path(__file__).resolve().parent / 'peers'

# Peer -> the benchmarks that it can run, and the packages that it needs.
PEERS = {
    'tunix': (('sampling', 'step'), {
        'google-tunix': '0.1.7', 'jax': '', 'flax': ''}),
    'comlrl': (('magrpo_step',), {
        'comlrl': '1.4.3', 'torch': '2.13.0', 'transformers': ''}),
}
_VERSIONS = '''
import importlib.metadata, json, sys
print(json.dumps({x: importlib.metadata.version(x) for x in sys.argv[1:]}))
'''


class Peer(contextlib.AbstractContextManager):
  """A library that does the same work in a child process.

  The child reads one request per line and replies with the seconds of the work;
  see `benchmarks/peers/`.
  """

  def __init__(self, name: str, python: str):
    self.versions = _versions(name, python)
    self._name = name
    self._log = tempfile.TemporaryFile('w+')
    environment = dict(os.environ)
    environment.pop('JAX_NUM_CPU_DEVICES', None)  # Peers use all cores.
    self._process = subprocess.Popen(
        [python, _PEERS / f'{name}_peer.py'], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)

  def contestant(self, request: Mapping) -> Callable[[], float]:
    """Does the work of `request` once and returns the peer's seconds."""
    return lambda: self._ask(json.dumps(request))

  def _ask(self, line: str) -> float:
    # The log of a dead peer is reported below.
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.write(line + '\n')
      self._process.stdin.flush()
    for reply in self._process.stdout:
      if reply.startswith('{"seconds"'):  # Libraries print too.
        return json.loads(reply)['seconds']
    self._log.seek(0)
    raise RuntimeError(
        f'The peer {self._name} exited without a reply; last output:\n'
        + ''.join(self._log.readlines()[-20:]))

  def __exit__(self, *exception) -> None:
    self._process.kill()
    self._process.communicate()
    self._log.close()


def _versions(name: str, python: str) -> dict[str, str]:
  """The versions of a peer's packages; UserError if one is missing."""
  _, packages = PEERS[name]
  try:
    return json.loads(subprocess.run(
        [python, '-c', _VERSIONS, *packages], check=True,
        stdout=subprocess.PIPE, text=True).stdout)
  except (OSError, subprocess.CalledProcessError) as error:
    wanted = ' '.join(
        f'{package}=={version}' if version else package
        for package, version in packages.items())
    raise errors.UserError(
        f'--{name}={python}: expected a Python interpreter with the packages '
        f'{", ".join(packages)}; install them with `pip install {wanted}`.'
    ) from error


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.run', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('name', metavar='NAME', choices=cases_lib.BENCHMARKS)
  for peer in PEERS:
    parser.add_argument(f'--{peer}', default='', metavar='PYTHON')
  parser.add_argument('--checkout', type=pathlib.Path, metavar='FOLDER')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--out', type=pathlib.Path, default=_RESULTS)
  args = parser.parse_args(argv)
  if args.repeats < 1:
    parser.error(f'--repeats={args.repeats}: expected at least 1.')
  for peer, (names, _) in PEERS.items():
    if getattr(args, peer) and args.name not in names:
      parser.error(f'--{peer} with {args.name}: expected {" or ".join(names)}.')
  return args


def run(args: argparse.Namespace, sizes: cases_lib.Sizes) -> dict:
  """Runs and prints a benchmark and returns its result."""
  load_before = os.getloadavg()[0]
  with contextlib.ExitStack() as stack:
    peers = {
        name: stack.enter_context(Peer(name, os.path.abspath(python)))
        for name in PEERS if (python := getattr(args, name))}
    cases = cases_lib.BENCHMARKS[args.name](
        sizes, {name: peer.contestant for name, peer in peers.items()})
    seconds = timing.run(cases, args.repeats)
  command = ['python -m benchmarks.run', args.name, f'--repeats {args.repeats}']
  result = {
      'benchmark': args.name,
      'command': ' '.join([*command, *(f'--{name} PYTHON' for name in peers)]),
      'repeats': args.repeats, 'machine': timing.describe_machine(),
      'load_average': [load_before, os.getloadavg()[0]],
      'peers': {name: peer.versions for name, peer in peers.items()},
      'cases': [
          timing.summarise(case, times)
          for case, times in zip(cases, seconds)]}
  print(f'\n{args.name}: {args.repeats} repeats, load average before and after '
        f'{result["load_average"]}')
  for case in result['cases']:
    print(timing.describe(case))
  return result


def compare(name: str, checkout: pathlib.Path, repeats: int) -> None:
  """Runs a benchmark here and in `checkout` in turn and prints the ratios."""
  best = {}  # Case -> seconds here and there.
  folders = (pathlib.Path.cwd(), checkout)
  for _ in range(repeats):
    for index, folder in enumerate(folders):
      with tempfile.TemporaryDirectory() as out:
        subprocess.run(
            [sys.executable, '-m', 'benchmarks.run', name, '--repeats', '3',
             '--out', out],
            cwd=folder, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(pathlib.Path(out, f'{name}.json').read_text())
      for case in result['cases']:
        times = best.setdefault(case['name'], [float('inf'), float('inf')])
        seconds = case['contestants'][timing.OURS]['best']
        times[index] = min(times[index], seconds)
  for case, (here, there) in best.items():
    if max(here, there) < float('inf'):
      print(f'{case}: {here:.4f} s here, {there:.4f} s there, '
            f'ratio {here / there:.3f}')


def main(argv: Sequence[str]) -> int:
  args = parse(argv)
  try:
    if args.checkout:
      compare(args.name, args.checkout, args.repeats)
      return 0
    result = run(args, cases_lib.Sizes())
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / f'{args.name}.json').write_text(
      json.dumps(result, indent=2) + '\n')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
