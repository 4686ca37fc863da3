"""The training loop on the echo game: resume, records, updates and failures.

Most tests compare a run with one that finished undisturbed.
"""

import dataclasses
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import main
from atgrpo_jax import train
from atgrpo_jax.algorithms import credit
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import signals
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import update
from atgrpo_jax.rollout import tree
from atgrpo_jax.rollout import tree as tree_lib
from configs import common
from environments import env_api
from tests import echo
from tests import specs

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Saves steps 2 and 4 and validates after step 3.
CHANGES = {
    'policies': 'per_role', 'environment.max_turns': 2, 'train.num_steps': 4,
    'train.checkpoint_every': 2, 'train.groups_every': 1,
    'evaluation.validate_every': 3}


@pytest.fixture(scope='module')
def finished(echo_folder, tmp_path_factory):
  """The workdir of an undisturbed run. Tests must not write to it."""
  workdir = tmp_path_factory.mktemp('finished')
  assert train.train(echo.experiment(echo_folder, **CHANGES), workdir)
  return workdir


@pytest.fixture(scope='module')
def experiment(echo_folder):
  """An experiment with one policy and one turn."""
  return echo.experiment(echo_folder)


@pytest.fixture(scope='module')
def groups(experiment):
  """The groups of step 0."""
  return tree.groups_of(_collect(experiment, experiment.initial_states(), 0, 0))


def _collect(experiment, states, step, tasks_of):
  """Plays the tasks of step `tasks_of` with the random keys of `step`."""
  return credit.collect(
      experiment.runner(
          config_lib.params_of(states), step=step, temperature=1.0,
          policy_map=experiment.policy_map),
      train.draw_tasks(experiment.tasks('train'), tasks_of, experiment),
      experiment.rollout, experiment.advantage)


def _bytes(tree):
  return jax.tree.map(lambda x: np.asarray(x).tobytes(), tree)


def _metrics(workdir):
  """Returns the lines of metrics.jsonl without measured quantities."""
  return [
      {name: value for name, value in json.loads(line).items()
       if not name.startswith(('time/', 'compile/', 'memory/'))}
      for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def _groups(workdir, step):
  """Returns the recorded groups of a step, merged with their nodes."""
  return [
      group | {'task_id': tree['task_id']} | {
          name: node[name] for name in ('turn', 'chosen', 'steps')}
      for tree in map(tree_lib.Tree.to_json, tree_lib.read(
          workdir / f'groups/{step:06d}.jsonl.gz'))
      for node in tree['nodes'] for group in node['groups']]


def _saved(experiment, workdir):
  """Returns the states and step of the newest checkpoint."""
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  restored = checkpoints.restore(experiment.state_template())
  checkpoints.close()
  return restored.state, restored.step


def _assert_same_run(workdir, finished, experiment):
  """Asserts equal metrics, groups, evaluations and parameters, bit for bit."""
  states, step = _saved(experiment, workdir)
  expected, expected_step = _saved(experiment, finished)
  assert step == expected_step == experiment.config.train.num_steps
  assert _bytes(states) == _bytes(expected)
  # Compared as text, which includes the order of names.
  assert json.dumps(_metrics(workdir)) == json.dumps(_metrics(finished))
  for pattern in ('groups/*', 'evals/*'):
    names = [path.name for path in sorted(finished.glob(pattern))]
    assert names == [path.name for path in sorted(workdir.glob(pattern))]
    for path in finished.glob(pattern):
      there = workdir / path.relative_to(finished)
      assert there.read_bytes() == path.read_bytes(), path.name


def _update(experiment, groups, state=None, reference=None):
  """Runs `update_policy` from the initial state, or from `state`."""
  if state is None:
    state = experiment.initial_states()['shared']
  state, found = update.update_policy(
      experiment.policies['shared'], state, groups, reference=reference,
      num_updates=experiment.config.train.updates_per_rollout, order='mixed',
      buckets=experiment.buckets, frozen_params=None)
  return state, found.metrics('Step 1, shared')


def _with_candidate(group, index, **changes):
  candidates = list(group.candidates)
  candidates[index] = dataclasses.replace(candidates[index], **changes)
  return dataclasses.replace(group, candidates=tuple(candidates))


# Stop and resume.


def _command(echo_folder, workdir):
  return [
      sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
      f'--config.model.folder={echo_folder}', f'--workdir={workdir}',
      *(f'--config.{name}={value}' for name, value in CHANGES.items())]


def _wait_for(condition, child):
  deadline = time.monotonic() + 300
  while not condition():
    assert child.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)


def _signalled_in_step(step, number, command, workdir, other_trainer):
  """Signals a training process within a step; returns exit status and output.

  The groups of the step are written to a small pipe, which blocks the run in
  the middle of the step until the test reads them.
  """
  groups = workdir / f'groups/{step - 1:06d}.jsonl.gz'
  pipe = files.unfinished(groups)
  child = subprocess.Popen(
      command, start_new_session=True, cwd=ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  try:
    _wait_for((workdir / 'config.json').exists, child)
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    _wait_for(lambda: select.select([reader], [], [], 0)[0], child)
    with pytest.raises(errors.UserError, match='Another process trains in'):
      train.train(other_trainer, workdir)
      # Ctrl-C and timeout(1) signal the whole process group, too.
    os.killpg(child.pid, number)
    os.set_blocking(reader, True)
    with open(reader, 'rb') as file:
      content = file.read()
    out, _ = child.communicate(timeout=300)
  finally:
    child.kill()
  # A killed run has not renamed the pipe.
  (pipe if pipe.exists() else groups).unlink()
  groups.write_bytes(content)
  return child.returncode, out


def test_a_killed_and_then_stopped_run_resumes_bit_for_bit(
    finished, echo_folder, tmp_path, capsys):
  workdir = tmp_path / 'run'
  experiment = echo.experiment(echo_folder, **CHANGES)
  command = _command(echo_folder, workdir)
  status, out = _signalled_in_step(
      3, signal.SIGKILL, command, workdir, experiment)
  assert status == -signal.SIGKILL, out

  (workdir / 'groups/000002.jsonl.gz').unlink()
  status, out = _signalled_in_step(
      4, signal.SIGTERM, command, workdir, experiment)
  assert status == main.STOPPED == 42, out
  assert 'resumes after step 2' in out
  assert 'stopped by SIGTERM after step 4; the same command resumes' in out
  assert not (workdir / 'evals/after.json').exists()
  # The compilation cache serves the resumed run; restoring adds 7 programs.
  lines = [
      json.loads(line)
      for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines] == [1, 2, 3, 4]
  compiled, cached = (
      sum(line[f'compile/{name}'] for line in lines[2:])
      for name in ('count', 'from_cache'))
  assert compiled < 10 < cached

  # The second start finds a finished run and prints its result again.
  for _ in range(2):
    assert train.train(experiment, workdir)
    out = capsys.readouterr().out
    assert 'resumes after step 4' in out
    assert 'held-out success: before' in out
    assert f'report: {workdir}/report.html' in out
    _assert_same_run(workdir, finished, experiment)


@pytest.mark.parametrize('step', [1, 3], ids=['rollout', 'validation'])
def test_an_interrupted_rollout_or_validation_is_repeated(
    finished, echo_folder, tmp_path, capsys, monkeypatch, step):
  stop, make_runner = signals.StopFlag(), config_lib.Experiment.runner

  def runner(*args, **kwargs):
    if kwargs['step'] == step:
      stop.name = 'SIGTERM'
    return make_runner(*args, **kwargs)

  experiment = echo.experiment(echo_folder, **CHANGES)
  with monkeypatch.context() as patched:
    patched.setattr(config_lib.Experiment, 'runner', runner)
    assert not train.train(experiment, tmp_path, stop)
  assert f'stopped by SIGTERM after step {step};' in capsys.readouterr().out
  # The line of step 3 is missing until its validation is done.
  assert [line['step'] for line in _metrics(tmp_path)] == [1, 2][:step]
  assert train.train(experiment, tmp_path)
  _assert_same_run(tmp_path, finished, experiment)


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
  assert [line['step'] for line in _metrics(tmp_path / 'later')] == [1, 2]


def test_a_deleted_workdir_ends_the_run(
    echo_folder, tmp_path, monkeypatch):
  collect_ = credit.collect

  def vanish(*args):
    workdir.rename(tmp_path / 'elsewhere')
    return collect_(*args)

  # Nothing is written before the end of the run.
  changes = CHANGES | dict.fromkeys((
      'train.checkpoint_every', 'train.groups_every',
      'evaluation.validate_every'), 100)
  workdir = tmp_path / 'run'
  assert train.train(echo.experiment(
      echo_folder, **changes | {'train.num_steps': 1}), workdir)
  monkeypatch.setattr(credit, 'collect', vanish)
  with pytest.raises(
      errors.LostWorkdirError, match=f'{workdir}/config.json was deleted'):
    train.train(echo.experiment(echo_folder, **changes), workdir)
  assert [path.name for path in tmp_path.iterdir()] == ['elsewhere']


@pytest.mark.parametrize('is_emptied', [False, True])
def test_deleted_checkpoints_are_refused(
    is_emptied, finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'the run')
  shutil.rmtree(workdir / 'checkpoints')
  if is_emptied:
    (workdir / 'checkpoints').mkdir()
  with pytest.raises(errors.UserError) as error:
    train.train(echo.experiment(echo_folder, **CHANGES), workdir)
  assert f"start again after `rm -r '{workdir}'`" in str(error.value)
  assert _metrics(workdir) == _metrics(finished)


def test_a_run_killed_before_its_first_checkpoint_restarts(
    finished, tmp_path):
  text = (finished / 'metrics.jsonl').read_text()
  (tmp_path / 'checkpoints').mkdir()
  # The run was killed between writing metrics and saving the checkpoint.
  (tmp_path / 'metrics.jsonl').write_text(
      ''.join(text.splitlines(keepends=True)[:2]))
  workdir_lib.check_checkpoints(tmp_path, CHANGES['train.checkpoint_every'])


@pytest.mark.parametrize('system', [
    common.MAAC | {'critic.gae_lambda': 0.5}, common.IAC])
def test_critics_resume(system, echo_folder, tmp_path):
  changes = CHANGES | common.MAGRPO | system | {
      'environment.max_turns': 1, 'rollout.num_tasks': 4,
      'rollout.group_size': 2, 'critic.prompt_buckets': (4, 12),
      'critic.learning_rate': 1e-2, 'optimizer.learning_rate': 5e-3}
  finished, stopped = tmp_path / 'finished', tmp_path / 'stopped'
  experiment = echo.experiment(echo_folder, **changes)
  assert train.train(experiment, finished)
  for num_steps in (2, 4):
    assert train.train(echo.experiment(
        echo_folder, **changes | {'train.num_steps': num_steps}), stopped)
  states, _ = _saved(experiment, stopped)
  assert _bytes(states) == _bytes(_saved(experiment, finished)[0])
  assert states.keys() > {'first', 'second'}
  lines = _metrics(finished)
  assert json.dumps(lines) == json.dumps(_metrics(stopped))
  for name in experiment.critics:
    values = [line[f'{name}/value_mean'] for line in lines]
    assert values[0] == 0 != values[-1]
    assert lines[-1][f'{name}/num_updates'] == 4
  record, *_ = _groups(finished, 3)
  for candidate in record['candidates']:
    assert candidate['advantage'] == pytest.approx(
        candidate['return'] - record['value'])
  params, _ = experiment.trained_params(finished)
  assert params.keys() == {'first', 'second'}
  evaluate.evaluate_run(experiment, finished)


def test_a_damaged_checkpoint_falls_back_to_the_older_one(
    finished, echo_folder, tmp_path, caplog, capsys):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  for path in (workdir / 'checkpoints/4').rglob('*'):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
  experiment = echo.experiment(echo_folder, **CHANGES)
  assert train.train(experiment, workdir)
  assert 'resumes after step 2' in capsys.readouterr().out
  warning, = [m for m in caplog.messages if 'checkpoint' in m]
  assert 'checkpoint step 4: ' in warning and 'using step 2' in warning
  assert (workdir / 'checkpoints/4.corrupt').is_dir()
  _assert_same_run(workdir, finished, experiment)


def test_the_best_checkpoint_is_kept(
    echo_folder, tmp_path, monkeypatch):
  # The test before, validations at steps 0 to 4, and the test after.
  successes = iter([0.0, 0.99, 0.5, 0.9, 0.3, 0.9, 0.0])
  evaluate_ = evaluate.evaluate
  monkeypatch.setattr(evaluate, 'evaluate', lambda *args: evaluate_(*args) | {
      'success': next(successes), 'mean_turns_to_solve': 1.0})
  changes = CHANGES | {
      'train.checkpoint_every': 1, 'evaluation.validate_every': 1}
  experiment = echo.experiment(echo_folder, **changes)
  assert train.train(experiment, tmp_path)
  kept = sorted(path.name for path in (tmp_path / 'checkpoints').iterdir())
  assert kept == ['2', '3', '4']
  for name, step in (('best', 2), ('3', 3), ('latest', 4)):
    assert experiment.trained_params(tmp_path, name)[1] == step
  for name in ('1', 'newest'):
    with pytest.raises(errors.CheckpointError, match=(
        f"no checkpoint '{name}' .*one of ..latest., .best., 2, 3, 4.")):
      experiment.trained_params(tmp_path, name)

  # A resumed run remembers the best success.
  successes = iter([0.7, 0.0])
  experiment = echo.experiment(
      echo_folder, **changes | {'train.num_steps': 5})
  assert train.train(experiment, tmp_path)
  assert experiment.trained_params(tmp_path, 'best')[1] == 2


def test_the_token_limit_ends_a_run(echo_folder, tmp_path, capsys):
  """The run ends at the step closest to the limit."""
  changes = {'train.num_steps': 1, 'train.checkpoint_every': 1}
  assert train.train(echo.experiment(echo_folder, **changes), tmp_path)
  step_tokens = _metrics(tmp_path)[0]['budget/completion_tokens']
  for share, num_steps in ((1.3, 1), (1.7, 2)):
    capsys.readouterr()
    assert train.train(echo.experiment(echo_folder, **changes | {
        'train.num_steps': 0,
        'train.completion_tokens': int(share * step_tokens)}), tmp_path)
    assert len(_metrics(tmp_path)) == num_steps
    assert f' tokens in {num_steps} steps, ' in capsys.readouterr().out


def test_diagnosis_changes_nothing(finished, echo_folder, tmp_path):
  experiment = echo.experiment(
      echo_folder, **CHANGES | {'train.diagnose_every': 2})
  assert train.train(experiment, tmp_path)
  assert _bytes(_saved(experiment, tmp_path)[0]) == _bytes(
      _saved(experiment, finished)[0])
  lines = _metrics(tmp_path)
  found = [
      {name: line.pop(name) for name in list(line)
       if name.startswith('diagnosis/')} for line in lines]
  assert lines == _metrics(finished)
  assert not found[1] and not found[3]
  for role in ('first', 'second'):
    assert abs(found[0][f'diagnosis/{role}/kl_to_start']) < 1e-6
    assert found[2][f'diagnosis/{role}/kl_to_start'] > 1e-6
    # Each role has its own policy in this run.
    assert found[0][f'diagnosis/{role}/grad_norm'] == pytest.approx(
        lines[0][f'{role}/grad_norm'], rel=1e-4)


# Refused runs.


@pytest.mark.parametrize('changes, words', [
    ({'seed': 1, 'loss.clip_high': 0.3},
     'loss.clip_high was 0.2, is now 0.3; seed was 0, is now 1'),
    # Evaluations of different tasks must not be compared.
    ({'evaluation.test': 'validation'}, "evals/before.json.*split 'test'"),
    ({'evaluation.temperature': 0.5}, 'evaluation.temperature=0.5')])
def test_a_run_of_another_config_does_not_resume(
    changes, words, finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  with pytest.raises(errors.UserError, match=words):
    train.train(echo.experiment(echo_folder, **CHANGES | changes), workdir)
  for name in ('config.json', 'evals/after.json', 'metrics.jsonl'):
    assert (workdir / name).read_bytes() == (finished / name).read_bytes()


# Updates.


def test_repeated_nonfinite_gradients_stop_the_run(
    echo_folder, tmp_path, monkeypatch):
  def with_infinity(groups, *args, make_batches=batching.make_batches):
    return make_batches([
        _with_candidate(group, 0, advantage=np.inf) for group in groups], *args)

  monkeypatch.setattr(batching, 'make_batches', with_infinity)
  with pytest.raises(
      errors.UserError, match='Step 5, shared: .* 5 .* embedding, '):
    train.train(echo.experiment(echo_folder), tmp_path)
  assert len(_metrics(tmp_path)) == 4


def _tokens(groups):
  return sum(len(c.completion) for group in groups for c in group.candidates)


def _zero_advantage(groups):
  return [
      dataclasses.replace(group, candidates=tuple(
          dataclasses.replace(candidate, advantage=0.0)
          for candidate in group.candidates)) for group in groups]


def test_loss_is_the_mean_over_all_candidates(experiment, groups, caplog):
  with_signal = [g for g in groups if len(set(g.returns)) > 1]
  assert 0 < len(with_signal) < len(groups) == 32
  state, metrics = _update(experiment, groups)
  assert metrics['groups'] == 32
  assert metrics['groups_zero_advantage'] == 32 - len(with_signal)
  # Groups with zero advantage are skipped.
  assert metrics['tokens'] == _tokens(with_signal)
  _, alone = _update(experiment, with_signal)
  share = _tokens(with_signal) / _tokens(groups)
  assert share < 0.9
  for name in ('loss', 'grad_norm'):
    assert metrics[name] == pytest.approx(share * alone[name], rel=1e-4)
  assert metrics['entropy'] == pytest.approx(alone['entropy'], rel=1e-5)

  assert not caplog.messages
  first = experiment.initial_states()['shared']
  state, metrics = _update(experiment, _zero_advantage(groups), first)
  assert state is first
  assert metrics == {'groups': 32, 'groups_zero_advantage': 32}
  message, = caplog.messages
  assert 'Step 1, shared' in message


def test_kl_penalty_applies_to_groups_with_zero_advantage(
    experiment, groups, echo_folder):
  penalised = echo.experiment(
      echo_folder, **{'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.5})
  reference = penalised.policies['shared'].load_params('float32')
  _, plain = _update(experiment, groups)
  _, same = _update(penalised, groups, reference=reference)
  # k3 and its gradient are 0 where policy and reference agree.
  for name in ('loss', 'grad_norm'):
    assert same[name] == pytest.approx(plain[name], abs=1e-5), name
  other = jax.tree.map(lambda x: 1.5 * x, reference)
  _, far = _update(penalised, groups, reference=other)
  assert far['loss'] > same['loss'] + 0.01

  # Groups with zero advantage still have a penalty.
  state, metrics = _update(penalised, _zero_advantage(groups), reference=other)
  assert metrics['tokens'] == _tokens(groups)
  assert metrics['groups_zero_advantage'] == 32
  assert state.num_updates == 1 and metrics['grad_norm'] > 1e-4
  assert specs.loss(entropy_coefficient=0.1).has_penalty


def test_invalid_candidates_have_no_gradient(experiment, groups):
  index, group = next(
      (i, g) for i, g in enumerate(groups) if g.returns[0] < max(g.returns))
  params = []
  for completion in (group.candidates[0].completion, np.array([5, 6])):
    broken = _with_candidate(
        group, 0, return_=np.nan, advantage=1.0, completion=completion,
        behavior_logprobs=np.zeros(len(completion), np.float32))
    state, _ = _update(
        experiment, [*groups[:index], broken, *groups[index + 1:]])
    params.append(_bytes(state.params))
  assert params[0] == params[1]


class _Unreliable(echo.Echo):
  """Fails with an infrastructure error for actions that contain `a`."""

  def step(self, state, actions):
    result = super().step(state, actions)
    (role, action), = actions.items()
    if 'a' in action:
      return dataclasses.replace(
          result, outcomes={role: env_api.Outcome.INFRASTRUCTURE})
    return result


def test_infrastructure_failures_are_masked_and_counted(
    echo_folder, tmp_path, monkeypatch):
  monkeypatch.setattr(evaluate, 'MAX_FAILED_FRACTION', 0.9)
  experiment = dataclasses.replace(
      echo.experiment(
          echo_folder, **{'train.num_steps': 1, 'train.groups_every': 1}),
      environment=_Unreliable(max_turns=1))
  experiment.executor.take_counts = lambda: {'server_restarts': 2}
  assert train.train(experiment, tmp_path)
  candidates = [c for g in _groups(tmp_path, 0) for c in g['candidates']]
  invalid = [c for c in candidates if c['return'] is None]
  assert invalid and all('a' in c['text'] for c in invalid)
  assert all(c['reward'] is None and c['advantage'] == 0 for c in invalid)
  metrics, = _metrics(tmp_path)
  assert metrics['return/invalid'] == len(invalid)
  assert metrics['budget/infrastructure_failures'] == len(invalid)
  assert metrics['workers/server_restarts'] == 2
  assert 0 <= metrics['return/mean'] <= 2


def test_several_updates_of_one_rollout(experiment, groups, echo_folder):
  twice = echo.experiment(echo_folder, **{'train.updates_per_rollout': 2})
  state, metrics = _update(experiment, groups)
  assert state.num_updates == 1
  assert metrics['approx_kl'] == 0

  state_twice, metrics_twice = _update(twice, groups)
  assert state_twice.num_updates == 2
  # The second update is compared with the policy before the first.
  assert metrics_twice['approx_kl'] > 0
  # Metrics are means over both updates, each of half of the groups.
  assert metrics_twice['tokens'] == metrics['tokens'] / 2
  halves = [
      _update(experiment, groups[i::2])[1]['entropy'] for i in (0, 1)]
  assert halves[0] != pytest.approx(halves[1], rel=1e-4)
  assert metrics_twice['entropy'] < max(halves)

  # One group is enough for one update only.
  group = next(group for group in groups if np.any(group.advantages))
  state, _ = _update(twice, [group])
  assert state.num_updates == 1


# Tasks.


def test_epochs_visit_tasks_once_in_different_orders(experiment, echo_folder):
  tasks = experiment.tasks('train')
  experiment = echo.experiment(echo_folder, **{'rollout.num_tasks': 20})

  def draw(step):
    drawn = train.draw_tasks(tasks, step, experiment)
    return [task['task_id'] for task in drawn]

  epochs = [draw(2 * epoch) + draw(2 * epoch + 1) for epoch in range(4)]
  for epoch in epochs:
    assert len(epoch) == len(set(epoch)) == 40  # 8 of 48 do not fill a step.
  assert len({tuple(epoch) for epoch in epochs}) == 4
  # Other epochs visit the remaining tasks.
  assert len(set().union(*epochs)) == 48
  assert draw(5) == epochs[2][20:]

  other = echo.experiment(echo_folder, seed=1, **{'rollout.num_tasks': 20})
  assert train.draw_tasks(tasks, 0, other) != train.draw_tasks(
      tasks, 0, experiment)


# Records.


def test_metrics_are_consistent(finished):
  lines = _metrics(finished)
  assert [line['step'] for line in lines] == [1, 2, 3, 4]
  for line in lines:
    for name in ('rollout/success', 'validation/success', 'first/outcome/ok'):
      assert 0 <= line[name] <= 1, name
    assert line['budget/environment_steps'] == line['budget/model_calls']
    assert line['budget/model_calls'] == 16 * (
        line['first/groups'] + line['second/groups'])
    for role in ('first', 'second'):
      # Each group with an advantage has mean 0 and deviation 1.
      assert line[f'{role}/advantage_mean'] == pytest.approx(0, abs=1e-6)
      assert line[f'{role}/advantage_std'] ** 2 == pytest.approx(
          1 - line[f'{role}/zero_advantage'], abs=1e-5)
  # Steps 1 and 2 repeat the validation of step 0; 3 and 4 show that of step 3.
  assert [line['validation/step'] for line in lines] == [0, 0, 3, 3]


def test_every_group_is_recorded(finished, echo_folder):
  tokenizer = echo.experiment(echo_folder).policies['shared'].tokenizer
  for step, line in enumerate(_metrics(finished)):
    groups = _groups(finished, step)
    assert len(groups) == line['first/groups'] + line['second/groups']
    keys = [
        tuple(group[name] for name in ('task_id', 'role', 'turn', 'branch'))
        for group in groups]
    assert len(set(keys)) == len(keys)
    for group in groups:
      candidates = group['candidates']
      assert len(candidates) == 16
      for candidate in candidates:
        assert candidate['text'] == tokenizer.decode(candidate['ids'])
        assert len(candidate['logprobs']) == len(candidate['ids'])
      rewards = [candidate['reward'] for candidate in candidates]
      assert rewards[group['chosen']] == max(rewards)
      assert any(c['advantage'] for c in candidates) == (len(set(rewards)) > 1)
