"""Wrong launches are refused before a machine of the cloud is used.

The scripts run against a Python that records the arguments of the check and
lets it fail. Then the check runs with these arguments, for all launches in one
process.
"""

import shlex

import pytest

from tests import checkout as checkout_lib
from tests import command_line

CONFIG = 'configs/plan_path.py:size=1.7b'
SCRIPTS = {
    'gpu.sh': '',
    'slurm.sh': '--nodes 2',
    'tpu_pod.sh': '--name pod --zone us-west4-a'}

# Answers the probes of the scripts, and fails in the check.
PYTHON = """#!/bin/sh
case "$2 $3" in
  *ensurepip*|*'import pip'*) echo {version} ;;
  'venv --clear') mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  'pip install') ;;
  'atgrpo_jax.main --check')
    shift 2
    printf '%s\\n' "$@" > {checked}
    exit 2 ;;
  'atgrpo_jax.main '*) touch {started} ;;
  *) echo installed ;;
esac
"""


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
  folder = tmp_path_factory.mktemp('launches')
  checkout = checkout_lib.Checkout(folder)
  checkout.write_python(PYTHON.format(
      version='3.11', checked=shlex.quote(str(folder / 'checked')),
      started=shlex.quote(str(folder / 'started'))))
  for name in ('gcloud', 'sbatch'):
    checkout.write_program(
        name, f'open({str(folder / "started")!r}, "w").close()')
  return checkout


# Wrong launches: script, options, and words of the message. A config and a
# workdir are added if they are missing.
LAUNCHES = [
    ('slurm.sh', '--config configs/plan_path.py:siz=8b', ["'siz'", "'size'"]),
    ('gpu.sh', '--config configs/plan_path.py:team=pairs',
     ["'pairs'", "'pair'"]),
    ('tpu_pod.sh', '--config configs/pod.py:topology=v5e-16',
     ["'v5e-16'", "did you mean 'v5litepod-16'"]),
    ('tpu_pod.sh', '--config configs/pod.py:topology=v5p-24',
     ["'v5p-24'", 'v5litepod-16']),
    ('tpu_pod.sh', '-- --config.optimizer.learning_rat=1e-6',
     ["'learning_rat'", '"learning_rate"']),
    ('slurm.sh', '-- --config.optimiser.learning_rate=1e-6',
     ["'optimiser'", '"optimizer"']),
    ('tpu_pod.sh', '-- --learning_rate=1e-6', ["'learning_rate'"]),
    ('gpu.sh', '-- --config.optimizer.learning_rate=nan',
     ['learning_rate=nan']),
    ('slurm.sh', '-- --config.policies=lora_per_role --config.lora.rank=0',
     ['rank=0']),
    ('gpu.sh', '-- --config.sandbox.level=bwarp',
     ["sandbox.level='bwarp'", "'bwrap'"]),
    ('tpu_pod.sh', '--workdir runs/x', ["'runs/x'", 'gs://']),
    ('tpu_pod.sh', '--workdir {home}/runs/x', ['{home}/runs/x', 'gs://']),
    ('slurm.sh', '--workdir /tmp/x', ["'/tmp/x'", 'gs://']),
    ('gpu.sh', '--workdir gs:/bucket/x', ["'gs:/bucket/x'", 'gs://']),
]


# Launches that the check accepts.
VALID = [
    ('gpu.sh', '--config configs/maths.py --workdir runs/x'),
    ('slurm.sh', '--mode evaluate -- --config.policies=lora_per_role '
     '--checkpoint=best'),
    ('tpu_pod.sh', '--config configs/pod.py:topology=v5litepod-16'),
]


@pytest.fixture(scope='module')
def results(checkout, tmp_path_factory):
  """Exit status and stderr of each launch."""
  launched, cases = [], []
  for script, options in (*(x[:2] for x in LAUNCHES), *VALID):
    options = options.format(home=checkout.folder)
    for option in (f'--config {CONFIG}', '--workdir gs://bucket/runs/x'):
      if option.split()[0] + ' ' not in options:
        options = f'{option} {options}'
    launch = checkout.run(script, *shlex.split(f'{SCRIPTS[script]} {options}'))
    launched.append((launch.returncode, launch.stderr))
    checked = checkout.folder / 'checked'
    # An empty case is a launch that the script itself refused.
    cases.append(checked.read_text().splitlines() if checked.exists() else [])
    checked.unlink(missing_ok=True)
  assert not (checkout.folder / 'started').exists()
  checks = command_line.run_main(cases, tmp_path_factory.mktemp('stderr'))
  return [
      check if case else launch
      for launch, case, check in zip(launched, cases, checks)]


@pytest.mark.parametrize('number', range(len(LAUNCHES)))
def test_wrong_launch_is_refused(checkout, results, number):
  status, stderr = results[number]
  assert status in (1, 2)
  assert stderr.count('\n') == 1, stderr
  for word in LAUNCHES[number][2]:
    assert word.format(home=checkout.folder) in stderr


def test_valid_launches_pass_the_check(results):
  assert results[len(LAUNCHES):] == [(0, '')] * len(VALID)
