"""Times atgrpo_jax against other libraries or another checkout.

  python -m benchmarks.run NAME [--tunix PYTHON] [--comlrl PYTHON]
      [--peft PYTHON] [--repeats N] [--out FOLDER]
  python -m benchmarks.run NAME --checkout FOLDER [--repeats N]

NAME is one of (with its peer)

  sampling     prompts to completions and log-probabilities,   tunix
               and decoding alone
  step         GRPO step: rollout, gradient, Adam              tunix
  magrpo_step  MAGRPO step of two agents with one model each   comlrl
  update       gradient and Adam alone
  real_size    sampling, and the update of an adapter, with       peft
               the dimensions of SmolLM2-135M and
               Qwen2.5-Coder-0.5B, all in the CPU's fastest dtype
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
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import hosts
from benchmarks import ours
from benchmarks import workload
from configs import common
from configs import writing

_RESULTS = pathlib.Path('benchmarks/results')
_PEERS = pathlib.Path(__file__).resolve().parent / 'peers'

# Peer -> the benchmarks that it can run, and the packages that it needs.
PEERS = {
    'tunix': (('sampling', 'step'), {
        'google-tunix': '0.1.7', 'jax': '', 'flax': ''}),
    'comlrl': (('magrpo_step',), {
        'comlrl': '1.4.3', 'torch': '2.13.0', 'transformers': ''}),
    'peft': (('real_size',), {
        'peft': '', 'torch': '2.13.0', 'transformers': ''}),
}
_VERSIONS = '''
import importlib.metadata, json, sys
print(json.dumps({x: importlib.metadata.version(x) for x in sys.argv[1:]}))
'''
OURS = 'ours'


# Timing.


@dataclasses.dataclass(frozen=True)
class Case:
  """One task."""

  name: str
  # Name -> function that does the task and returns its seconds; `OURS` comes
  # first.
  contestants: Mapping[str, Callable[[], float]]
  # Unit -> number of units that the task produces, or that any program for it
  # must compute or move.
  counts: Mapping[str, float] = dataclasses.field(default_factory=dict)


def timed(function: Callable[[], Any]) -> Callable[[], float]:
  """A contestant that runs in this process."""
  def contestant() -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start

  return contestant


def measure(case: Case, repeats: int) -> dict[str, list[float]]:
  """Seconds of each contestant of a case, after a call that compiles.

  Other programs slow a shared machine down for a while, so each repeat times
  every contestant once.
  """
  calls = []
  for _ in range(1 + repeats):
    calls.append({})
    for name, contestant in case.contestants.items():
      calls[-1][name] = contestant()
      hosts.release_memory()  # A peer needs it.
  return {
      name: [times[name] for times in calls[1:]] for name in case.contestants}


def summarise(
    case: Case, seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
  """The result of a case."""
  contestants = {}
  for name, all_seconds in seconds.items():
    best, median = min(all_seconds), statistics.median(all_seconds)
    contestants[name] = {
        'best': best, 'median': median, 'seconds': list(all_seconds),
        'per_second': {
            unit: count / best for unit, count in case.counts.items()}}
    first = contestants[OURS]
    contestants[name]['times_ours'] = {
        'best': best / first['best'], 'median': median / first['median']}
  return {'name': case.name, 'contestants': contestants}


def describe(summary: Mapping[str, Any]) -> str:
  """The summary of a case as text."""
  lines = [summary['name']]
  for name, row in summary['contestants'].items():
    line = (f'  {name:17s} best {row["best"]:8.4f} s, '
            f'median {row["median"]:8.4f} s')
    for unit, rate in row['per_second'].items():
      line += f'{rate:10.1f} {unit}/s'
    if name != OURS:
      times = row['times_ours']
      line += f'   ours x {times["best"]:.2f} (best), {times["median"]:.2f}'
    lines.append(line)
  return '\n'.join(lines)


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
      'cores': len(os.sched_getaffinity(0)), 'jax': jax.__version__,
      'date': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'),
  }


# The cases.


# Configs with the loss and optimizer of a step.
_GRPO = common.game_config('plan_path', 'size=nano')
_MAGRPO = writing.get_config()
_ADAPTER = model.LoraSpec(**{
    name: value for name, value in _MAGRPO.lora.items() if name != 'folder'})


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the benchmarks; tests use tiny ones."""

  config: model.ModelConfig = workload.MODEL
  sampling: Sequence[workload.Load] = (
      workload.Load(8, 8, 128, 64), workload.Load(8, 8, 1024, 128))
  step: workload.Load = workload.Load(8, 8, 128, 64)
  agent: workload.Load = workload.Load(1, 8, 128, 64)  # Per agent of MAGRPO.
  scaling: Sequence[workload.Load] = (
      workload.Load(8, 1, 1024, 64), workload.Load(8, 8, 1024, 64),
      *(workload.Load(8, 8, 128, new) for new in (32, 64, 128)))
  agents: Sequence[int] = (1, 4)  # Each with the load of `step`.
  # Model -> its dimensions and load.
  real_size: Mapping[str, tuple[model.ModelConfig, workload.Load]] = (
      dataclasses.field(default_factory=lambda: {
          'SmolLM2-135M': (workload.SMOLLM2, workload.Load(4, 8, 150, 96)),
          'Qwen2.5-Coder-0.5B': (
              workload.CODER, workload.Load(4, 8, 200, 128))}))


# Returns a contestant that does the work of a request.
AskPeer = Callable[[Mapping], Callable[[], float]]


def sampling(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[Case]:
  """Prompts to completions and log-probabilities; then decoding alone."""
  cases = []
  for load in sizes.sampling:
    sample = ours.Sampling(ours.sampled_model(sizes.config), load)
    cases.append(Case(
        str(load), _contestants(sample, peers, workload.request(
            'sample', [load], sizes.config)),
        counts={'tokens': load.completion_tokens,
                **workload.sampling_work(sizes.config, load)}))
    new = load.new_tokens - sample.done
    cases.append(Case(
        f'decoding alone, the last {new} tokens of {load}',
        {OURS: sample.decode},
        counts={'tokens': load.num_prompts * load.group_size * new,
                **workload.sampling_work(sizes.config, load, sample.done)}))
  return cases


def step(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[Case]:
  """A GRPO step: rollout, reward on the host, gradient, Adam."""
  return [_step('GRPO step', sizes, peers, sizes.step, 1, _GRPO)]


def magrpo_step(
    sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[Case]:
  """A MAGRPO step of two agents: rollout, reward, gradients, AdamW."""
  return [_step(
      'MAGRPO step of 2 agents', sizes, peers, sizes.agent, 2, _MAGRPO)]


def update(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[Case]:
  """Gradient and Adam of one batch."""
  del peers
  trained = ours.Step(sizes.config, sizes.step, 1, _GRPO)
  groups = trained.rollout()
  return [Case(
      f'update, {sizes.step}', _contestants(lambda: trained.update(groups)),
      counts={'tokens': sizes.step.completion_tokens,
              **workload.update_work(sizes.config, sizes.step)})]


def real_size(
    sizes: Sizes, peers: Mapping[str, AskPeer]) -> Iterator[Case]:
  """Sampling, and gradient and Adam of an adapter; holds a model at a time."""
  dtype = model.fastest_dtype(jax.default_backend())

  def sample(config, load):
    return ours.Sampling(ours.sampled_model(config, dtype), load)

  def update(config, load):
    trained = ours.Step(config, load, 1, _MAGRPO, dtype, lora=_ADAPTER)
    return functools.partial(trained.update, trained.rollout())

  for name, (config, load) in sizes.real_size.items():
    for what, make, title in (
        ('sample', sample, 'sampling'),
        ('update', update, 'update of an adapter')):
      request = workload.request(what, [load], config) | {'dtype': dtype}
      yield Case(
          f'{name}, {title}, {load}',
          _contestants(make(config, load), peers, request),
          counts={'tokens': load.completion_tokens})


def scaling(sizes: Sizes, peers: Mapping[str, AskPeer]) -> list[Case]:
  """Sampling over group size, prompt and new tokens; steps over agents.

  Agents share the devices equally, or take turns if there are fewer devices
  than agents.
  """
  del peers
  return [
      Case(
          str(load), _contestants(
              ours.Sampling(ours.sampled_model(sizes.config), load)),
          counts={'tokens': load.completion_tokens})
      for load in sizes.scaling
  ] + [
      _step(f'GRPO step, agents: {agents}', sizes, {}, sizes.step, agents,
            _GRPO)
      for agents in sizes.agents]


# Name -> function that makes its cases.
BENCHMARKS = {
    'sampling': sampling, 'step': step, 'magrpo_step': magrpo_step,
    'update': update, 'scaling': scaling, 'real_size': real_size,
}


def _step(name, sizes, peers, load, num_agents, run_config):
  return Case(
      f'{name}, {load}',
      _contestants(
          ours.Step(sizes.config, load, num_agents, run_config), peers,
          workload.request('step', [load] * num_agents, sizes.config)),
      counts={'tokens': num_agents * load.completion_tokens})


def _contestants(function, peers=(), request=None):
  """Our function and the running peers as contestants."""
  return {OURS: timed(function)} | {
      name: peers[name](request) for name in peers}


# Peers and the command.


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
  parser.add_argument('name', metavar='NAME', choices=BENCHMARKS)
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


def run(args: argparse.Namespace, sizes: Sizes) -> dict:
  """Runs and prints a benchmark and returns its result."""
  load_before = os.getloadavg()[0]
  with contextlib.ExitStack() as stack:
    peers = {
        name: stack.enter_context(Peer(name, os.path.abspath(python)))
        for name in PEERS if (python := getattr(args, name))}
    cases = BENCHMARKS[args.name](
        sizes, {name: peer.contestant for name, peer in peers.items()})
    summaries = []
    for case in cases:
      summaries.append(summarise(case, measure(case, args.repeats)))
      print(describe(summaries[-1]), flush=True)
      del case  # The next one may need the memory.
  command = ['python -m benchmarks.run', args.name, f'--repeats {args.repeats}']
  result = {
      'benchmark': args.name,
      'command': ' '.join([*command, *(f'--{name} PYTHON' for name in peers)]),
      'repeats': args.repeats, 'machine': describe_machine(),
      'load_average': [load_before, os.getloadavg()[0]],
      'peers': {name: peer.versions for name, peer in peers.items()},
      'cases': summaries}
  print(f'\n{args.name}: {args.repeats} repeats, load average before and after '
        f'{result["load_average"]}')
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
        seconds = case['contestants'][OURS]['best']
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
    result = run(args, Sizes())
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / f'{args.name}.json').write_text(
      json.dumps(result, indent=2) + '\n')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
