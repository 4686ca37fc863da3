"""Other libraries that do the same work, each in a separate environment.

A peer is a child process of a Python interpreter with its packages. It reads
one request per line and replies with the seconds of the work; see
`benchmarks/peers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

from atgrpo_jax import errors

_SCRIPTS = pathlib.Path(__file__).resolve().parent / 'peers'
_VERSIONS = '''
import importlib.metadata, json, sys
try:
  print(json.dumps({x: importlib.metadata.version(x) for x in sys.argv[1:]}))
except importlib.metadata.PackageNotFoundError as error:
  print(json.dumps(str(error.name)))
'''


@dataclasses.dataclass(frozen=True)
class Peer:
  """How to start a peer.

  Attributes:
    script: the program.
    packages: packages whose versions are part of a result.
    install: arguments of `pip install`.
  """

  script: pathlib.Path
  packages: tuple[str, ...]
  install: str


PEERS = {
    'tunix': Peer(
        _SCRIPTS / 'tunix_peer.py', ('google-tunix', 'jax', 'flax'),
        'google-tunix==0.1.7'),
    'comlrl': Peer(
        _SCRIPTS / 'comlrl_peer.py', ('comlrl', 'torch', 'transformers'),
        'comlrl==1.4.3 torch==2.13.0 transformers'),
}


class Process:
  """A running peer; a context manager."""

  def __init__(self, name: str, peer: Peer, python: str):
    self.versions = versions(name, peer, python)
    self._name = name
    self._log = tempfile.TemporaryFile('w+')
    environment = dict(os.environ)
    environment.pop('JAX_NUM_CPU_DEVICES', None)  # Peers use all cores.
    self._process = subprocess.Popen(
        [python, peer.script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=self._log, text=True, env=environment)

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

  def __enter__(self) -> Process:
    return self

  def __exit__(self, *exception) -> None:
    self._process.kill()
    self._process.communicate()
    self._log.close()


def versions(name: str, peer: Peer, python: str) -> dict[str, str]:
  """The versions of a peer's packages; UserError if one is missing."""
  if not os.access(python, os.X_OK) or os.path.isdir(python):
    raise errors.UserError(
        f'--peer_python {name}={python}: no such program; give the Python '
        f'interpreter of an environment with {name}.')
  found = json.loads(subprocess.run(
      [python, '-c', _VERSIONS, *peer.packages], check=True,
      stdout=subprocess.PIPE, text=True).stdout)
  if isinstance(found, str):
    raise errors.UserError(
        f'--peer_python {name}={python} has no package {found}; install it '
        f'with `{python} -m pip install {peer.install}`.')
  return found
