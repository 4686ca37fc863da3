"""The training loop on the echo game: resume, records and failures.

Most tests compare a run with one that finished undisturbed.
"""

import dataclasses
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import main
from atgrpo_jax import rehearsal
from atgrpo_jax import rules
from atgrpo_jax import train
from atgrpo_jax.distributed import hosts
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from configs import common
from configs import plan_path
from tests import checkout
from tests import commands
from tests import echo
from tests import fault_injection

# Saves steps 2 and 4 and validates after step 3.
CHANGES = {
    'policies': 'per_role', 'environment.max_turns': 2, 'train.num_steps': 4,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 3,
    'per_policy': (('first', 'rollout.stop', ('e',)),)}


@pytest.fixture(scope='module')
def finished(echo_folder, tmp_path_factory):
  """The workdir of an undisturbed run. Tests must not write to it."""
  workdir = tmp_path_factory.mktemp('finished')
  assert train.train(echo.experiment(echo_folder, **CHANGES), workdir)
  return workdir


def _nodes(workdir, step):
  """Returns the recorded nodes of a step."""
  path = tree_lib.groups_path(workdir, step)
  return [node for tree in tree_lib.read(path) for node in tree.nodes]


# Stop and resume.


def _signalled(condition_fn, number, command):
  """Signals a training process; returns its exit status and output."""
  child = subprocess.Popen(
      command, start_new_session=True, cwd=checkout.ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  deadline = time.monotonic() + 300
  try:
    while not condition_fn():
      assert child.poll() is None and time.monotonic() < deadline
      time.sleep(0.01)
    # Ctrl-C and timeout(1) signal the whole process group, too.
    for _ in range(3):  # As Slurm and Kubernetes do.
      os.killpg(child.pid, number)
    out, _ = child.communicate(timeout=300)
  finally:
    child.kill()
  return child.returncode, out


def test_a_killed_and_then_stopped_run_resumes_bit_for_bit(
    finished, echo_folder, tmp_path, capsys):
  workdir = tmp_path / 'run'
  experiment = echo.experiment(echo_folder, **CHANGES)
  command = commands.train(
      'tests/echo.py', workdir, {'model.folder': echo_folder} | CHANGES)
  status, out = _signalled(
      (workdir / 'checkpoints/2').exists, signal.SIGKILL, command)
  assert status == -signal.SIGKILL, out

  # The groups are written between the rollout and the update of a step.
  groups = tree_lib.groups_path(workdir, 2)
  groups.unlink(missing_ok=True)
  status, out = _signalled(groups.exists, signal.SIGTERM, command)
  assert status == main.STOPPED == 42, out
  assert 'resumes after step 2' in out
  assert 'stopped by SIGTERM after step 3; the same command resumes' in out
  assert not (workdir / 'evals/after.json').exists()
  # The compilation cache serves the resumed run; restoring adds 7 programs.
  *_, line = (workdir / 'metrics.jsonl').read_text().splitlines()
  line = json.loads(line)
  assert line['step'] == 3
  assert line['compile/count'] < 10 < line['compile/from_cache']

  # The second start finds a finished run and prints its result again.
  for step in (3, 4):
    assert train.train(experiment, workdir)
    out = capsys.readouterr().out
    assert f'resumes after step {step}' in out
    assert 'held-out success: before' in out
    assert 'held-out return: before' in out
    assert f'report: {workdir}/report.html' in out
    assert fault_injection.results(workdir) == fault_injection.results(finished)


def test_a_rollout_is_repeated_and_a_validation_finished(
    finished, echo_folder, tmp_path, capsys, monkeypatch):
  make_runner = experiment_lib.Experiment.runner
  experiment = echo.experiment(echo_folder, **CHANGES)
  for stopped_at in (1, 3):  # A rollout, then a validation.
    stop = signals.StopFlag()

    def runner(*args, **kwargs):
      if kwargs['step'] == stopped_at:
        stop.name = 'SIGTERM'
      return make_runner(*args, **kwargs)

    with monkeypatch.context() as patched:
      patched.setattr(experiment_lib.Experiment, 'runner', runner)
      assert not train.train(experiment, tmp_path, stop)
    out = capsys.readouterr().out
    assert f'stopped by SIGTERM after step {stopped_at};' in out
    assert len(fault_injection.steps(tmp_path)) == stopped_at
  assert train.train(experiment, tmp_path)
  assert fault_injection.results(tmp_path) == fault_injection.results(finished)


def test_critics_resume(echo_folder, tmp_path):
  changes = CHANGES | common.MAGRPO | common.MAAC | {
      'environment.max_turns': 1, 'rollout.num_tasks': 4,
      'rollout.group_size': 2, 'critic.prompt_buckets': (4, 12),
      'train.checkpoint_every': 1}
  finished, stopped = tmp_path / 'finished', tmp_path / 'stopped'
  for workdir, num_steps in ((finished, 2), (stopped, 1), (stopped, 2)):
    experiment = echo.experiment(
        echo_folder, **changes | {'train.num_steps': num_steps})
    assert train.train(experiment, workdir)
  assert fault_injection.results(stopped) == fault_injection.results(finished)
  name, = experiment.critics
  values = [
      line[f'{name}/value_mean'] for line in fault_injection.steps(finished)]
  assert values[0] == 0 != values[-1]
  group = _nodes(finished, 1)[0].groups[0]
  np.testing.assert_allclose(
      group.advantages, group.returns - group.value, rtol=1e-5)


def test_the_best_checkpoint_is_kept(
    echo_folder, tmp_path, monkeypatch):
  # The test before, validations at steps 0 to 4, and the test after.
  successes = iter([0.0, 0.99, 0.5, 0.9, 0.3, 0.9, 0.0])
  evaluate_ = evaluate.evaluate
  monkeypatch.setattr(evaluate, 'evaluate', lambda *args: evaluate_(*args) | {
      'success': next(successes), 'mean_turns_to_solve': 1.0})
  changes = CHANGES | {
      'policies': 'shared', 'per_policy': (), 'environment.max_turns': 1,
      'rollout.num_tasks': 4, 'train.checkpoint_every': 1,
      'evaluation.validate_every': 1}
  experiment = echo.experiment(echo_folder, **changes)
  assert train.train(experiment, tmp_path)
  kept = sorted(path.name for path in (tmp_path / 'checkpoints').iterdir())
  assert kept == ['2', '3', '4']
  for name, step in (('best', 2), ('3', 3), ('latest', 4)):
    assert experiment.trained_params(tmp_path, name)[1] == step
  with pytest.raises(errors.UserError, match="'1' .*2, 3, 4"):
    experiment.trained_params(tmp_path, '1')

  # A resumed run remembers the best success.
  successes = iter([0.7, 0.0])
  experiment = echo.experiment(
      echo_folder, **changes | {'train.num_steps': 5})
  assert train.train(experiment, tmp_path)
  assert experiment.trained_params(tmp_path, 'best')[1] == 2

  # On other tasks, less may be the best.
  successes = iter([0.1, 0.0])
  experiment = echo.experiment(echo_folder, **changes | {
      'train.num_steps': 6, 'evaluation.validation': 'validation[:2]'})
  assert train.train(experiment, tmp_path)
  assert experiment.trained_params(tmp_path, 'best')[1] == 6


def test_the_token_limit_ends_a_run(echo_folder, tmp_path):
  """The run ends at the step closest to the limit."""
  changes = {'train.num_steps': 1, 'train.checkpoint_every': 1}
  assert train.train(echo.experiment(echo_folder, **changes), tmp_path)
  step_tokens = fault_injection.steps(tmp_path)[0]['budget/completion_tokens']
  for fraction, num_steps in ((1.3, 1), (1.7, 2)):
    assert train.train(echo.experiment(echo_folder, **changes | {
        'train.num_steps': 0,
        'train.completion_tokens': int(fraction * step_tokens)}), tmp_path)
    assert len(fault_injection.steps(tmp_path)) == num_steps


# Tasks of a function.


def test_tasks_of_a_function_resume_and_must_not_change(
    echo_folder, tmp_path, monkeypatch, capsys):
  (tmp_path / 'given.py').write_text(
      'def tasks(split):\n'
      "  return [{'letter': x} for x in 'abcde'[:4 + (split == 'test')]]\n")
  monkeypatch.syspath_prepend(tmp_path)
  changes = CHANGES | {
      'dataset.builder': 'given', 'dataset.train': 'train[:3]',
      'rollout.num_tasks': 2, 'train.checkpoint_every': 1}
  finished, stopped = tmp_path / 'finished', tmp_path / 'stopped'
  for workdir, num_steps in ((finished, 2), (stopped, 1), (stopped, 2)):
    assert train.train(echo.experiment(
        echo_folder, **changes | {'train.num_steps': num_steps}), workdir)
  assert fault_injection.results(stopped) == fault_injection.results(finished)
  out = capsys.readouterr().out
  assert "3 of 4 tasks of evaluation.validation='validation' are also in" in out
  assert "warning: 3 of 5 tasks of evaluation.test='test' are also in" in out

  monkeypatch.setattr('given.tasks', lambda split: [
      {'letter': x} for x in (echo.LETTERS[::-1], 'abcde')[split == 'test']])
  with pytest.raises(errors.UserError, match="dataset.train='train.:3.' has "):
    train.train(echo.experiment(echo_folder, **changes), stopped)
  monkeypatch.setattr(hosts, 'exchange', lambda value: [value, 'another'])
  with pytest.raises(errors.UserError, match="different tasks .*'train.:3.'"):
    train.train(echo.experiment(echo_folder, **changes), tmp_path / 'new')


def test_a_run_resumes_only_with_the_same_code(
    echo_folder, tmp_path, monkeypatch):
  module, workdir = tmp_path / 'own_code.py', tmp_path / 'run'
  module.write_text(
      'from tests.echo import make_environment, tasks\n\n'
      'def last(returns, *_):\n  return len(returns) - 1\n')
  monkeypatch.syspath_prepend(tmp_path)
  changes = CHANGES | {
      'rollout.selection': 'own_code:last', 'environment.module': 'own_code',
      'dataset.builder': 'own_code', 'rollout.num_tasks': 4,
      'train.checkpoint_every': 1}
  for num_steps in (1, 2):
    assert train.train(echo.experiment(
        echo_folder, **changes | {'train.num_steps': num_steps}), workdir)
  digest = rules.module_digest('environment.module', 'own_code')
  for name in ('config.json', 'evals/after.json'):
    recorded = json.loads((workdir / name).read_text())['code']
    assert recorded == {'own_code:last': digest, 'own_code': digest}
  module.write_text(module.read_text().replace('- 1', '- 2'))
  # Rules go on as imported, and records have their digest.
  assert rules.module_digest('environment.module', 'own_code') == digest
  with pytest.raises(errors.UserError, match='own_code.py has changed'):
    echo.experiment(echo_folder, **changes)
  importlib.reload(sys.modules['own_code'])  # As in another process.
  with pytest.raises(errors.UserError, match="used another 'own_code:last': "):
    train.train(echo.experiment(echo_folder, **changes), workdir)
  # The code of this repository has no digest.
  experiment = echo.experiment(echo_folder)
  assert list(experiment.code_digests) == ['tests.echo']
  config = plan_path.get_config('size=nano')
  assert not dataclasses.replace(experiment, config=config).code_digests


# Disk and workdir.


def test_a_full_disk_is_detected_before_work_starts(
    echo_folder, tmp_path, monkeypatch):
  experiment = echo.experiment(echo_folder, **CHANGES)
  free = []
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: types.SimpleNamespace(
      free=free.pop(0)))
  for name, free[:] in (('before', [0]), ('later', [1 << 40, 0])):
    workdir = tmp_path / name
    with pytest.raises(errors.UserError, match=f'{workdir} has 0 bytes free'):
      train.train(experiment, workdir)
  assert not (tmp_path / 'before/evals').exists()
  assert not list(tmp_path.glob('later/checkpoints/*'))
  assert len(fault_injection.steps(tmp_path / 'later')) == 2


def test_a_deleted_workdir_ends_the_run(
    finished, echo_folder, tmp_path, monkeypatch):
  def rename(executor):
    del executor
    workdir.rename(tmp_path / 'elsewhere')
    return {}

  workdir = shutil.copytree(finished, tmp_path / 'run')
  monkeypatch.setattr(runner_lib, 'worker_metrics', rename)
  with pytest.raises(
      errors.LostWorkdirError, match=f'{workdir}/config.json was deleted'):
    train.train(
        echo.experiment(echo_folder, **CHANGES | {'train.num_steps': 5}),
        workdir)
  assert not workdir.exists()


def test_deleted_checkpoints_are_refused(finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'the run')
  shutil.rmtree(workdir / 'checkpoints')
  with pytest.raises(errors.UserError, match=f"rm -r '{workdir}'"):
    train.train(echo.experiment(echo_folder, **CHANGES), workdir)
  assert fault_injection.steps(workdir) == fault_injection.steps(finished)


@pytest.mark.parametrize('changes, words', [
    ({'seed': 1, 'loss.clip_high': 0.3},
     'loss.clip_high was 0.2, is now 0.3; seed was 0, is now 1'),
    # Evaluations of different tasks must not be compared.
    ({'evaluation.test': 'validation'}, "evals/before.json.*split 'test'"),
    ({'evaluation.top_k': 3}, 'evaluation.top_k=3')])
def test_a_run_of_another_config_does_not_resume(
    changes, words, finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  with pytest.raises(errors.UserError, match=words):
    train.train(echo.experiment(echo_folder, **CHANGES | changes), workdir)
  for name in ('config.json', 'evals/after.json', 'metrics.jsonl'):
    assert (workdir / name).read_bytes() == (finished / name).read_bytes()


# Failures of the environment.


def test_infrastructure_failures_are_masked_and_counted(
    echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(evaluate, 'MAX_FAILED_FRACTION', 0.9)
  experiment = dataclasses.replace(
      echo.experiment(
          echo_folder, **{'train.num_steps': 1, 'rollout.num_tasks': 4}),
      environment=echo.Unreliable(1, lambda state, action: 'a' in action))
  assert train.train(experiment, tmp_path)
  invalid = [
      candidate for node in _nodes(tmp_path, 0) for group in node.groups
      for candidate in group.candidates if not candidate.valid]
  assert invalid and all('a' in c.text for c in invalid)
  assert all(np.isnan(c.reward) and c.advantage == 0 for c in invalid)
  metrics, = fault_injection.steps(tmp_path)
  assert metrics['return/invalid'] == len(invalid)
  assert metrics['budget/infrastructure_failures'] == len(invalid)
  assert 0 <= metrics['return/mean'] <= 2


@dataclasses.dataclass(frozen=True)
class _Delayed(echo.Echo):
  """`first` earns nothing at once."""

  def step(self, state, actions):
    result = super().step(state, actions)
    if 'first' not in actions:
      return result
    return dataclasses.replace(result, local_rewards={'first': 0.0})


def test_a_role_without_any_advantage_is_named(
    finished, echo_folder, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(rehearsal, 'CHECKED_STEPS', 2)
  changes = {'train.num_steps': 2, 'rollout.num_tasks': 4}
  experiment = dataclasses.replace(
      echo.experiment(echo_folder, **changes), environment=_Delayed(1))
  assert train.train(experiment, tmp_path)
  message = 'warning: first had no advantage in 2 steps'
  assert message in capsys.readouterr().out
  rehearsal.warn_of_first_steps(experiment, finished)
  assert capsys.readouterr().out == ''
  monkeypatch.setattr(rehearsal.metrics_lib, 'read', lambda _: [
      {'budget/overlong_prompts': count} for count in (1.0, 3.0)])
  rehearsal.warn_of_first_steps(experiment, finished)
  assert 'Raise the largest of buckets.prompt=(4,)' in capsys.readouterr().out


# Tasks and records.


def test_epochs_visit_tasks_once_in_different_orders(echo_folder):
  experiment = echo.experiment(echo_folder, **{'rollout.num_tasks': 20})
  tasks = experiment.tasks('train')

  def draw(step):
    return [
        task['task_id'] for task in train.draw_tasks(tasks, step, experiment)]

  epochs = [draw(2 * epoch) + draw(2 * epoch + 1) for epoch in range(4)]
  for epoch in epochs:
    assert len(epoch) == len(set(epoch)) == 40  # 8 of 48 do not fill a step.
  # Other epochs visit the remaining tasks, in another order.
  assert len({tuple(epoch) for epoch in epochs}) == 4
  assert len(set().union(*epochs)) == 48
  experiment = echo.experiment(echo_folder, seed=1, **{'rollout.num_tasks': 20})
  assert draw(0) != epochs[0][:20]


def test_diagnosis_changes_nothing(finished, echo_folder, tmp_path):
  experiment = echo.experiment(
      echo_folder, **CHANGES | {'train.diagnose_every': 2})
  assert train.train(experiment, tmp_path)
  found, expected = map(fault_injection.results, (tmp_path, finished))
  assert found['parameters'] == expected['parameters']
  for step, (line, expected) in enumerate(zip(
      *map(fault_injection.steps, (tmp_path, finished)), strict=True)):
    added = {name: line.pop(name) for name in line.keys() - expected.keys()}
    assert line == expected and bool(added) == (step in (0, 2))
    if added:
      assert (added['diagnosis/first/kl_to_start'] > 1e-6) == (step == 2)
      # Each role has a separate policy in this run.
      assert added['diagnosis/first/grad_norm'] == pytest.approx(
          line['first/grad_norm'], rel=1e-4)
