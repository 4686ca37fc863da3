"""Takes the machines of a run away, and compares it with an undisturbed one.

  python -m benchmarks.rehearsal --preemptions=10

launch/tpu_pod.sh runs a small training on a stand-in for gcloud,
tests/gcloud.py, whose workers are folders and processes of this machine, with a
CPU device each. Twice there is no TPU VM to be had, and one connection breaks.
The TPU VMs are taken away at random moments, while they are installed, while
the run starts or goes on; half of the time with a notice of 30 seconds. In the
end metrics, groups, evaluations and parameters must be those of an undisturbed
run, bit for bit, but for times, memory and what `workers/` counts.

Prints a line for each shape, as in 2x2: slices x workers of each; ends with
status 1 unless all are equal and had as many preemptions as asked for.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from atgrpo_jax import errors
from benchmarks import harm
from tests import checkout as checkout_lib
from tests import echo
from tests import gcloud
from tests import tpu_checkout

# What a worker needs of the checkout, beside what a stand-in has.
_COPIED = 'atgrpo_jax', 'environments', 'models/nano', 'tests'
_NAME = 'pods'
_NOTICE = 30.0  # Seconds.
_POLL = 0.2
_PASSED_ON = 'TFDS_DATA_DIR', 'GLIBC_TUNABLES', 'TMPDIR'
_COMMON = {
    'rollout.num_tasks': 4, 'rollout.group_size': 4, 'train.groups_every': 1,
    'train.checkpoint_every': 2, 'evaluation.validate_every': 4}
# What is trained -> its config, and what is changed.
_GAMES = {
    'plan_path': ('configs/plan_path.py:size=nano', {
        'evaluation.validation': 'validation[:16]',
        'evaluation.test': 'test[:40]', 'train.diagnose_every': 0}),
    'echo': ('tests/echo.py', {}),
}
# In the place of what a TPU tells its workers.
_TRAINER = """
import os, pathlib, sys
home = pathlib.Path(os.environ['HOME'])
index = int(home.name[7:])
if home.parent.name != {name!r}:
  index += {num_workers} * int(home.parent.name[{prefix}:])
os.execv(sys.executable, [
    sys.executable, '-m', 'atgrpo_jax.main', *sys.argv[1:],
    '--coordinator_address=127.0.0.1:{port}',
    '--num_processes={num_processes}', f'--process_id={{index}}'])
"""


class Rehearsal:
  """Runs of one shape, in a folder."""

  def __init__(
      self, folder: pathlib.Path, num_slices: int, num_workers: int, game: str,
      changes: dict[str, object]):
    folder.mkdir()
    self._checkout = tpu_checkout.TpuCheckout(folder)
    self._num_slices = num_slices
    self._num_workers = num_workers
    self._game = game
    self._changes = changes
    for name in _COPIED:
      shutil.copytree(
          checkout_lib.ROOT / name, self._checkout.root / name,
          ignore=shutil.ignore_patterns('__pycache__'))
    self._nodes = [_NAME] if num_slices == 1 else [
        f'{_NAME}-{i}' for i in range(num_slices)]

  def start(self, name: str, retries: int) -> subprocess.Popen:
    """Starts the script; its output is in `name`.log."""
    checkout, num_slices = self._checkout, self._num_slices
    checkout.write_program('trainer', _TRAINER.format(
        name=_NAME, prefix=len(_NAME) + 1, num_workers=self._num_workers,
        num_processes=num_slices * self._num_workers,
        port=_free_port()))
    config, changes = _GAMES[self._game]
    env = {
        'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '1',
        # Of all TPU VMs; each would have to compile.
        'JAX_COMPILATION_CACHE_DIR': str(checkout.folder / 'jax')}
    slices = ['--queued', f'--num-slices={num_slices}'] * (num_slices > 1)
    with (checkout.folder / f'{name}.log').open('w') as log:
      return subprocess.Popen(
          ['bash', checkout.root / 'launch/tpu_pod.sh', f'--name={_NAME}',
           '--zone=z', f'--accelerator-type=v5litepod-{8 * self._num_workers}',
           *slices, '--spot', '--delete', f'--retries={retries}',
           f'--poll-seconds={_POLL}', f'--collect={checkout.folder / name}',
           f'--config={config}', f'--workdir={self.workdir(name)}', '--', *(
               f'--config.{key}={value}' for key, value in (
                   _COMMON | changes | self._changes).items())],
          env=checkout.env() | env | {
              key: os.environ[key] for key in _PASSED_ON if key in os.environ},
          cwd=checkout.folder, stdout=log, stderr=log)

  def workdir(self, name: str) -> pathlib.Path:
    return self._checkout.shared / name

  def undisturbed(self) -> dict[str, str]:
    """What it leaves."""
    return self._wait(self.start('undisturbed', retries=0), 'undisturbed')

  def _wait(self, process, name):
    if process.wait():
      log = (self._checkout.folder / f'{name}.log').read_text()
      sys.exit(f'error: the run ended with status {process.returncode}:\n'
               f'{log[-4000:]}')
    return harm.results(self.workdir(name), newest_only=True)

  def disturbed(
      self, preemptions: int, rng: random.Random,
  ) -> tuple[dict[str, str], int, list[float], str]:
    """What it leaves, how often it was preempted, and what is printed.

    The list has the seconds that processes took to end after each notice.
    """
    cloud = self._checkout.cloud
    for _ in range(2):
      cloud.add_fault(
          ' create ',
          '{"code": 8, "message": "There is no more capacity in the zone"}')
    cloud.add_fault(' follow', after=rng.uniform(0.0, 10.0))
    process = self.start('disturbed', retries=preemptions + 10)
    num_done, seconds = 0, []
    to_first_step = 10.0
    while num_done < preemptions and process.poll() is None:
      if not all(map(self._is_ready, self._nodes)):
        time.sleep(_POLL)
        continue
      # Before its next step, or within that.
      if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, to_first_step))
      else:
        start, num_steps = time.monotonic(), self._num_steps()
        while process.poll() is None and self._num_steps() <= num_steps:
          time.sleep(_POLL)
        to_first_step = time.monotonic() - start
        time.sleep(rng.uniform(0.0, 1.0))
      notice = rng.choice([0.0, _NOTICE])
      if process.poll() is None and all(map(self._is_ready, self._nodes)):
        taken = cloud.preempt(rng.choice(self._nodes), notice)
        num_done += 1
        seconds += [taken] if notice else []
    found = self._wait(process, 'disturbed')
    log = (self._checkout.folder / 'disturbed.log').read_text()
    return found, num_done, seconds, re.search(
        r'^attempt  .*', log, re.MULTILINE | re.DOTALL)[0]

  def _num_steps(self):
    path = self.workdir('disturbed') / 'metrics.jsonl'
    return path.read_bytes().count(b'\n') if path.exists() else 0

  def _is_ready(self, node):
    try:
      return self._checkout.cloud.state(node) == 'READY'
    except gcloud.GcloudError:
      return False


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


def rehearse(
    shape: str, game: str, steps: int, preemptions: int, seed: int,
    folder: pathlib.Path) -> bool:
  """Prints what came of it; whether it is as it should be."""
  rng = random.Random(f'{seed} {shape}')
  changes = {'train.num_steps': steps}
  if game == 'echo':
    changes['model.folder'] = echo.write_model(folder / f'model-{shape}')
  rehearsal = Rehearsal(
      folder / shape, *map(int, shape.split('x')), game, changes)
  expected = rehearsal.undisturbed()
  found, num_done, seconds, table = rehearsal.disturbed(preemptions, rng)
  unlike = [name for name in expected if found[name] != expected[name]]
  print(table)
  print(
      f'{shape}: {num_done} preemptions, {len(seconds)} with a notice, after '
      f'which it ended within {max(seconds, default=0.0):.1f} seconds: '
      f'{"differs in " + ", ".join(unlike) if unlike else "equal"}', flush=True)
  return not unlike and num_done == preemptions


def main(argv: list[str]) -> int:
  errors.refuse_arguments(argv)
  given = flags.FLAGS
  for shape in given.shapes:
    if not re.fullmatch('[1-9]x[1-9]', shape):
      raise errors.UserError(
          f'--shapes: {shape!r} must be slices x workers, such as 2x2.')
  with tempfile.TemporaryDirectory() as folder:
    results = [
        rehearse(
            shape, given.game, given.steps, given.preemptions, given.seed,
            pathlib.Path(folder)) for shape in given.shapes]
  return int(not all(results))


if __name__ == '__main__':
  flags.DEFINE_list('shapes', ['1x1', '2x2'], 'Slices x workers of each.')
  flags.DEFINE_enum('game', 'plan_path', list(_GAMES), 'What is trained.')
  flags.DEFINE_integer(
      'preemptions', 10, 'Of each shape.', lower_bound=0)
  flags.DEFINE_integer('steps', 40, 'Of each training.', lower_bound=1)
  flags.DEFINE_integer('seed', 0, 'Of the moments.')
  app.run(main)
