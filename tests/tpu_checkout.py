"""A checkout beside a stand-in for gcloud, with trainers that are stand-ins."""

import json
import pathlib

from tests import checkout as checkout_lib
from tests import gcloud


class TpuCheckout(checkout_lib.Checkout):
  """A checkout, and a cloud whose shared folder outlives all TPU VMs."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder)
    self.cloud = gcloud.Cloud(folder)
    self.shared = folder / 'shared'
    self.shared.mkdir()
    self.write_program('gcloud', pathlib.Path(gcloud.__file__).read_text())
    self.write_program('hostname', r"""
import os, pathlib
print('-'.join(pathlib.Path(os.environ['HOME']).parts[-2:]))
""")
    # One disk for each TPU VM, and another one that they share.
    self.write_program('stat', r"""
import sys
print(int('/shared/' in sys.argv[-1]) if '--format=%d' in sys.argv else 'nfs')
""")
    self.write_program('trainer', checkout_lib.TRAINER)

  def notes(self) -> list[list[str]]:
    """What was asked of gcloud."""
    path = self.folder / 'notes'
    if not path.exists():
      return []
    return [json.loads(line) for line in path.read_text().splitlines()]

  def verbs(self, *left_out: str) -> list[str]:
    """The same in one word: for ssh, the last word of the worker's action."""
    verbs = []
    for _, _, _, group, verb, *rest in self.notes():
      command = rest[-1].partition('_tpu_worker.sh ')[2]
      verbs.append(command.split(' ')[0] or (
          f'queue-{verb}' if group == 'queued-resources' else verb))
    return [verb for verb in verbs if verb not in left_out]

  def attempts(self) -> list[dict[str, str]]:
    """The log of attempts."""
    header, *rows = (
        line.split('\t') for line in (
            self.root / 'runs/mine/attempts.tsv').read_text().splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]
