"""Times atgrpo_jax against other libraries or another checkout.

  python -m benchmarks.run NAME [--tunix PYTHON] [--comlrl PYTHON]
      [--peft PYTHON] [--repeats N] [--out FOLDER]
  python -m benchmarks.run NAME --checkout FOLDER [--repeats N]

NAME is one of (with its peer)

  sampling     prompts to completions and log-probabilities,   tunix
               and decoding alone
  step         GRPO step: rollout, gradient, Adam              tunix
  magrpo_step  MAGRPO step of two agents with one model each   comlrl
  real_size    sampling, and the update of an adapter, with       peft
               the dimensions of SmolLM2-135M and
               Qwen2.5-Coder-0.5B, all in the CPU's fastest dtype
  scaling      sampling over group size, prompt and new tokens;
               steps over agents

or a part of `benchmarks.accelerator`. Weights are random and, unless stated,
float32, and no token stops a completion. A peer runs in the environment of the
given Python interpreter. Contestants are timed in turn, after a call that
compiles. Results go to FOLDER/NAME.json.

--checkout runs the benchmark of the current folder and that of FOLDER in turn,
each --repeats times in a new process, and prints the ratio of the best times.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import datetime
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jaxlib

from atgrpo_jax import errors
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import files
from benchmarks import cases as cases_lib

_RESULTS = pathlib.Path('benchmarks/results')
_PEERS = pathlib.Path(__file__).resolve().parent / 'peers'

# Peer -> the benchmarks that it can run, and the packages that it needs.
PEERS = {
    'tunix': (('sampling', 'step'), ('google-tunix', 'jax', 'flax')),
    'comlrl': (('magrpo_step',), ('comlrl', 'torch', 'transformers')),
    'peft': (('real_size',), ('peft', 'torch', 'transformers'))}
_VERSIONS = '''
import importlib.metadata, json, sys
print(json.dumps({x: importlib.metadata.version(x) for x in sys.argv[1:]}))
'''
OURS = 'ours'

# The result of a case: {'error': text}, {'values': {name: number}} or
# {'contestants': {name: {...}}}, each with a 'name'.
Record = dict[str, Any]


def measure(
    case: cases_lib.Case | cases_lib.Check, repeats: int,
    peers: Mapping[str, 'Peer']) -> Record:
  """Measures a case.

  Other programs slow a shared machine down for a while, so each repeat times
  every contestant once, after a call that compiles.
  """
  if isinstance(case, cases_lib.Check):
    return {'values': case.measure()}
  contestants = {OURS: functools.partial(_seconds, case.make())}
  if case.request:
    contestants |= {
        name: functools.partial(peer.seconds, case.request)
        for name, peer in peers.items()}
  seconds = {name: [] for name in contestants}
  for _ in range(1 + repeats):
    for name, contestant in contestants.items():
      seconds[name].append(contestant())
      hosts.release_memory()  # A peer needs it.
  return {'contestants': {
      name: {
          'best': min(times), 'seconds': times, 'per_second': {
              unit: count / min(times) for unit, count in case.counts.items()}}
      for name, (_, *times) in seconds.items()}}


def _seconds(function: Callable[[], float | None]) -> float:
  start = time.perf_counter()
  seconds = function()
  return time.perf_counter() - start if seconds is None else seconds


def describe(record: Record) -> str:
  """The result of a case as text."""
  if 'error' in record:
    return f'failed: {record["error"]}'
  if 'values' in record:
    return _describe_numbers(record['values'])
  texts = []
  for name, row in record['contestants'].items():
    text = _describe_numbers({'s': row['best']} | {
        unit if unit.startswith('%') else f'{unit}/s': rate
        for unit, rate in row['per_second'].items()})
    if name != OURS:
      ratio = row['best'] / record['contestants'][OURS]['best']
      text = f'{name} {text}, ours x {ratio:.2f}'
    texts.append(text)
  return '; '.join(texts)


def _describe_numbers(values: Mapping[str, float]) -> str:
  return ', '.join(
      f'{value:,.0f} {name}' if value >= 1000 else f'{value:.3g} {name}'
      for name, value in values.items())


def describe_machine() -> dict[str, Any]:
  """The provenance that is stored with every result."""
  device = jax.devices()[0]
  kind = device.device_kind
  if device.platform == 'cpu':
    found = re.search(
        r'model name\s*:\s*(.+)', pathlib.Path('/proc/cpuinfo').read_text())
    kind = found[1] if found else kind
  return {
      'device': kind, 'num_devices': jax.device_count(),
      'platform': ' '.join(device.client.platform_version.split()),
      'cores': len(os.sched_getaffinity(0)), 'load': os.getloadavg()[0],
      'jax': jax.__version__, 'jaxlib': jaxlib.__version__,
      'python': sys.version.split()[0],
      'date': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds')}


class Peer(contextlib.AbstractContextManager):
  """A library that does the same work in a child process.

  The child reads one request per line and replies with the seconds of the work;
  see `benchmarks/peers/`.
  """

  def __init__(self, name: str, python: str):
    _, packages = PEERS[name]
    self.versions = json.loads(subprocess.check_output(
        [python, '-c', _VERSIONS, *packages], text=True))
    environment = dict(os.environ)
    environment.pop('JAX_NUM_CPU_DEVICES', None)  # Peers use all cores.
    self._process = subprocess.Popen(
        [python, _PEERS / f'{name}_peer.py'], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=environment)

  def seconds(self, request: Mapping) -> float:
    """Does the work of `request` once."""
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    for reply in self._process.stdout:
      if reply.startswith('{"seconds"'):  # Libraries print too.
        return json.loads(reply)['seconds']
    raise ChildProcessError('The peer exited without a reply.')

  def __exit__(self, *exception) -> None:
    self._process.kill()
    self._process.communicate()


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


def run(
    name: str, repeats: int, peers: Mapping[str, Peer],
    out: pathlib.Path) -> bool:
  """Runs and prints a benchmark; returns whether all cases succeeded.

  Each result is stored as soon as it is known.
  """
  command = ['python -m benchmarks.run', name, f'--repeats {repeats}']
  cases = list(cases_lib.BENCHMARKS[name]())
  records = [{'name': case.name, 'error': 'not reached'} for case in cases]
  result = {
      'benchmark': name,
      'command': ' '.join([*command, *(f'--{peer} PYTHON' for peer in peers)]),
      'repeats': repeats, 'machine': describe_machine(),
      'peers': {name: peer.versions for name, peer in peers.items()},
      'cases': records}
  out.mkdir(parents=True, exist_ok=True)

  def write() -> None:
    files.write_whole(
        out / f'{name}.json', json.dumps(result, indent=2) + '\n')

  write()
  for case, record in zip(cases, records):
    try:
      record |= measure(case, repeats, peers)
      del record['error']
    except (errors.UserError, RuntimeError) as error:  # The latter from XLA.
      record['error'] = errors.one_line(error)
    print(f'{case.name}: {describe(record)}', flush=True)
    write()
  return not any('error' in record for record in records)


def compare(name: str, checkout: pathlib.Path, repeats: int) -> None:
  """Runs a benchmark here and in `checkout` in turn and prints the ratios."""
  best = {}  # Case -> seconds here and there.
  for _ in range(repeats):
    for index, folder in enumerate((pathlib.Path.cwd(), checkout)):
      with tempfile.TemporaryDirectory() as out:
        subprocess.run(
            [sys.executable, '-m', 'benchmarks.run', name, '--repeats', '3',
             '--out', out],
            cwd=folder, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(pathlib.Path(out, f'{name}.json').read_text())
      for case in result['cases']:
        times = best.setdefault(case['name'], [[], []])
        times[index].append(case['contestants'][OURS]['best'])
  for case, (here, there) in best.items():
    print(f'{case}: {min(here):.4f} s here, {min(there):.4f} s there, '
          f'ratio {min(here) / min(there):.3f}')


def main(argv: Sequence[str]) -> int:
  """Returns 1 if a case failed."""
  args = parse(argv)
  if args.checkout:
    compare(args.name, args.checkout, args.repeats)
    return 0
  with contextlib.ExitStack() as stack:
    peers = {
        name: stack.enter_context(Peer(name, os.path.abspath(python)))
        for name in PEERS if (python := getattr(args, name))}
    return int(not run(args.name, args.repeats, peers, args.out))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
