"""The training loop on the echo game: resuming, records, and what goes wrong.

Most tests look at one finished run, or compare another one with it.
"""

import dataclasses
import fcntl
import functools
import gc
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import main
from atgrpo_jax import train
from atgrpo_jax.algorithms import collect
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import policies as policies_lib
from atgrpo_jax.learner import train_step
from atgrpo_jax.learner import update
from atgrpo_jax.rollout import records
from atgrpo_jax.rollout import tree
from atgrpo_jax.runtime import checkpoints as checkpoints_lib
from atgrpo_jax.runtime import digests
from environments import env_api
from tests import echo

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Steps 4 and 8 are saved; from step 5 on the log shows a new validation.
CHANGES = {
    'policies': 'per_role', 'environment.max_turns': 2, 'train.num_steps': 8,
    'train.checkpoint_every': 4, 'train.groups_every': 1,
    'evaluation.validate_every': 5}


@pytest.fixture(scope='module')
def finished(echo_folder, tmp_path_factory):
  """The workdir of an undisturbed run; never written to."""
  workdir = tmp_path_factory.mktemp('finished')
  assert train.train(echo.experiment(echo_folder, **CHANGES), workdir)
  return workdir


@pytest.fixture(scope='module')
def experiment(echo_folder):
  """One policy and one turn."""
  return echo.experiment(echo_folder)


@pytest.fixture(scope='module')
def groups(experiment):
  """The groups of a first step."""
  return tree.groups_of(_collect(experiment, experiment.initial_states(), 0, 0))


def _collect(experiment, states, step, tasks_of):
  """The trees of a step with the tasks of another one."""
  return collect.collect(
      experiment.runner(
          experiment_lib.params_of(states), step=step, temperature=1.0,
          policy_map=experiment.policy_map),
      train.draw_tasks(experiment.tasks('train'), tasks_of, experiment),
      experiment.rollout, experiment.advantage)


def _bytes(tree):
  return jax.tree.map(lambda x: np.asarray(x).tobytes(), tree)


def _metrics(workdir):
  """The lines of the log in order, without what a clock says."""
  return [
      {name: value for name, value in json.loads(line).items()
       if not name.startswith(('time/', 'compile/', 'memory/'))}
      for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def _saved(experiment, workdir):
  """The states of the newest checkpoint, and its step."""
  checkpoints = checkpoints_lib.Checkpoints(workdir / 'checkpoints')
  restored = checkpoints.restore(experiment.state_template())
  checkpoints.close()
  return restored.state, restored.step


def _assert_same_run(workdir, finished, experiment):
  """Equal log, groups, evaluations, and final state to the last bit."""
  states, step = _saved(experiment, workdir)
  expected, expected_step = _saved(experiment, finished)
  assert step == expected_step == experiment.config.train.num_steps
  assert _bytes(states) == _bytes(expected)
  # As text, since the order of the names counts.
  assert json.dumps(_metrics(workdir)) == json.dumps(_metrics(finished))
  for pattern in ('groups/*.jsonl', 'evals/*.json'):
    names = [path.name for path in sorted(finished.glob(pattern))]
    assert names == [path.name for path in sorted(workdir.glob(pattern))]
    for path in finished.glob(pattern):
      there = workdir / path.relative_to(finished)
      assert there.read_bytes() == path.read_bytes(), path.name


def _files(folder):
  return {
      path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def _update(experiment, groups, state=None, reference=None):
  """`update_policy` from the first state, or from `state`."""
  if state is None:
    state = experiment.initial_states()['shared']
  state, found = update.update_policy(
      experiment.policies['shared'], state, groups, reference=reference,
      num_updates=experiment.config.train.updates_per_rollout, order='mixed',
      buckets=experiment.buckets, frozen_params=None)
  return state, update.update_metrics('shared', found)


def _with_candidate(group, index, **changes):
  candidates = list(group.candidates)
  candidates[index] = dataclasses.replace(candidates[index], **changes)
  return dataclasses.replace(group, candidates=tuple(candidates))


# A run that goes on.


def test_resumed_run_is_the_same_run(
    finished, echo_folder, tmp_path, monkeypatch, capsys):
  write_groups = records.write_groups

  def write_and_stop(folder, step, *args):
    write_groups(folder, step, *args)
    if step == 5:
      os.kill(os.getpid(), signal.SIGTERM)

  experiment = echo.experiment(echo_folder, **CHANGES)
  with monkeypatch.context() as patch:
    patch.setattr(records, 'write_groups', write_and_stop)
    assert not train.train(experiment, tmp_path)
  out = capsys.readouterr().out
  assert 'stopped by SIGTERM after step 6; the same command resumes' in out
  assert [line['step'] for line in _metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
  assert not (tmp_path / 'evals/after.json').exists()

  assert train.train(experiment, tmp_path)
  assert 'resumes after step 6' in capsys.readouterr().out
  _assert_same_run(tmp_path, finished, experiment)


def test_finished_run_prints_its_result_again(
    finished, echo_folder, tmp_path, capsys):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  experiment = echo.experiment(echo_folder, **CHANGES)
  assert train.train(experiment, workdir)
  assert 'held-out success: before' in capsys.readouterr().out
  _assert_same_run(workdir, finished, experiment)


def _wait_for(condition, child):
  deadline = time.monotonic() + 300
  while not condition():
    assert child.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)


@pytest.mark.parametrize('number, status, steps', [
    (signal.SIGTERM, main.STOPPED, 5), (signal.SIGKILL, -signal.SIGKILL, 4)])
def test_a_program_that_is_stopped_or_killed_goes_on(
    number, status, steps, finished, echo_folder, tmp_path):
  workdir = tmp_path / 'run'
  command = [
      sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
      f'--config.model.folder={echo_folder}', f'--workdir={workdir}',
      *(f'--config.{name}={value}' for name, value in CHANGES.items())]
  kwargs = dict(
      cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

  # The groups of the fifth step go into a small pipe, so the run stands still
  # in the middle of that step until they are read.
  pipe = workdir / 'groups/000004.jsonl'
  child = subprocess.Popen(command, start_new_session=True, **kwargs)
  try:
    _wait_for((workdir / 'config.json').exists, child)
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    _wait_for(lambda: select.select([reader], [], [], 0)[0], child)
    experiment = echo.experiment(echo_folder, **CHANGES)
    with pytest.raises(errors.UserError, match='Another process trains in'):
      train.train(experiment, workdir)
    # To the whole group, as Ctrl-C and timeout(1) do: the validation at the
    # end of the step still needs the workers.
    os.killpg(child.pid, number)
    os.set_blocking(reader, True)
    with open(reader) as file:
      groups = file.read()
    out, _ = child.communicate(timeout=300)
  finally:
    child.kill()
  assert child.returncode == status and main.STOPPED == 42, out
  assert ('stopped by SIGTERM after step 5' in out) == (steps == 5)
  pipe.unlink()
  pipe.write_text(groups)

  again = subprocess.run(command, timeout=300, **kwargs)
  assert again.returncode == 0, again.stdout
  assert f'resumes after step {steps}' in again.stdout
  _assert_same_run(workdir, finished, experiment)
  # The first start has kept its programs; to restore takes 7 others.
  last = json.loads((workdir / 'metrics.jsonl').read_text().splitlines()[-1])
  assert last['compile/count'] < 10 < last['compile/from_cache']


def test_evaluation_reads_the_parameters_alone(
    finished, echo_folder, tmp_path, monkeypatch):
  """It says what the run said, and never holds an optimiser."""
  # Bite: states that are restored, or made, and of which only the parameters
  # are taken.
  def of_leaves(leaves, digest_fn=digests.of_leaves):
    assert _num_live_bytes() - before == size
    return digest_fn(leaves)

  def initial_state(policy):
    raise AssertionError(f'{policy.name}: evaluation made an optimiser')

  monkeypatch.setattr(digests, 'of_leaves', of_leaves)
  monkeypatch.setattr(policies_lib.Policy, 'initial_state', initial_state)
  experiment = echo.experiment(echo_folder, **CHANGES)
  size = sum(
      x.size * x.dtype.itemsize for state in
      experiment.state_template().values()
      for x in jax.tree.leaves(state.params))
  for workdir, expected_step in ((finished, 8), (tmp_path / 'new', 0)):
    before = _num_live_bytes()
    params, step = experiment.trained_params(workdir)
    assert step == expected_step
    assert _num_live_bytes() - before == size
    del params

  before = _num_live_bytes()
  workdir = shutil.copytree(finished, tmp_path / 'copy')
  evaluate.evaluate_run(experiment, workdir)
  after, again = (
      (workdir / 'evals' / f'{name}.json').read_text()
      for name in ('after', experiment.config.evaluation.name))
  assert again == after


def _num_live_bytes():
  gc.collect()
  return sum(x.nbytes for x in jax.live_arrays())


def test_step_is_replayed_alone(finished, echo_folder, tmp_path):
  experiment = echo.experiment(echo_folder, **CHANGES)
  checkpoints = checkpoints_lib.Checkpoints(
      shutil.copytree(finished / 'checkpoints', tmp_path / 'checkpoints'))
  states = checkpoints.restore(experiment.state_template(), step=4).state
  checkpoints.close()

  def replay(step):
    records.write_groups(
        tmp_path, step, _collect(experiment, states, step, 4))
    return (tmp_path / f'{step:06d}.jsonl').read_text()

  recorded = (finished / 'groups/000004.jsonl').read_text()
  assert replay(4) == recorded
  assert replay(5) != recorded


# Plain GRPO on the team: whole episodes, compared with those of their task.
PARALLEL = CHANGES | {
    'train.num_steps': 2, 'rollout.mode': 'parallel',
    'rollout.selection': 'all',
    'rollout.return_type': 'episode_return', 'advantage.group_key': 'env'}


def test_parallel_episodes_train(echo_folder, tmp_path, monkeypatch):
  shapes, accumulate = set(), train_step.accumulate

  def spy(params, sums, batch, **static):
    shapes.add(batch.completions.shape)
    return accumulate(params, sums, batch, **static)

  monkeypatch.setattr(train_step, 'accumulate', spy)
  experiment = echo.experiment(echo_folder, **PARALLEL)
  assert train.train(experiment, tmp_path / 'run')
  # Groups of one and of 16 take a program each, of 600 tokens at most.
  assert shapes == {(16, 16, 2), (100, 1, 2)}

  # Stopped after a step, it goes on as the same run.
  for num_steps in (1, 2):
    assert train.train(
        echo.experiment(
            echo_folder, **PARALLEL | {'train.num_steps': num_steps}),
        tmp_path / 'again')
  _assert_same_run(tmp_path / 'again', tmp_path / 'run', experiment)

  lines = _metrics(tmp_path / 'run')
  assert [line['step'] for line in lines] == [1, 2]
  for step, line in enumerate(lines):
    text = (tmp_path / f'run/groups/{step:06d}.jsonl').read_text()
    episodes, returns, tokens = {}, {}, dict.fromkeys(('first', 'second'), 0)
    signal_of = set()
    groups = [json.loads(line) for line in text.splitlines()]
    for group in groups:
      task_id, role, turn, branch = group['key'].values()
      shared = (role, turn) == ('first', 0)
      assert len(group['candidates']) == (16 if shared else 1)
      assert group['chosen'] is None
      for i, candidate in enumerate(group['candidates']):
        episodes.setdefault((task_id, branch + i), []).append(candidate)
        returns.setdefault((task_id, branch + i, role), set()).add(
            (candidate['return'], candidate['advantage']))
        if candidate['advantage']:
          signal_of.add(task_id)
    assert 0 < len(signal_of) <= 16 and len(episodes) == 16 * 16
    assert line['first/without_signal'] == 1 - len(signal_of) / 16
    # All actions of a role in an episode share a return and an advantage.
    assert len(returns) == 2 * len(episodes)
    assert {len(shared) for shared in returns.values()} == {1}
    # Who has no advantage adds nothing.
    for group in groups:
      if any(candidate['advantage'] for candidate in group['candidates']):
        tokens[group['policy']] += sum(
            len(c['ids']) for c in group['candidates'])
    assert tokens == {role: line[f'{role}/tokens'] for role in tokens}
    success = [
        actions[-1]['terms']['success'] for actions in episodes.values()]
    assert line['rollout/success'] == np.mean(success)
    assert line['budget/model_calls'] == sum(map(len, episodes.values()))


def test_many_microbatches_on_two_devices(echo_folder, tmp_path):
  """More programs than XLA's CPU client can hold are not given to it."""
  changes = PARALLEL | {
      'train.num_steps': 1, 'environment.max_turns': 1, 'policies': 'shared',
      'rollout.group_size': 32, 'buckets.microbatch_tokens': 1}
  done = subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main', '--config=tests/echo.py',
       f'--config.model.folder={echo_folder}', f'--workdir={tmp_path}',
       *(f'--config.{name}={value}' for name, value in changes.items())],
      cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      env=os.environ | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '2'})
  assert done.returncode == 0, done.stdout
  metrics, = _metrics(tmp_path)
  # Of one group for each device.
  assert metrics['shared/groups'] - metrics['shared/groups_without_signal'] > (
      2 * 100)
  assert metrics['shared/num_updates'] == 1


@pytest.mark.parametrize('num_steps', [2.3, 2.7])
def test_a_number_of_tokens_ends_a_run(
    num_steps, echo_folder, tmp_path, capsys):
  """At the step that comes nearest; also one that was stopped in between."""
  changes = {'train.num_steps': 1, 'train.checkpoint_every': 1}
  assert train.train(echo.experiment(echo_folder, **changes), tmp_path)
  of_a_step = _metrics(tmp_path)[0]['budget/completion_tokens']
  limit = int(num_steps * of_a_step)
  experiment = echo.experiment(echo_folder, **changes | {
      'train.num_steps': 0, 'train.completion_tokens': limit})
  assert train.train(experiment, tmp_path)
  spent = np.cumsum([
      line['budget/completion_tokens'] for line in _metrics(tmp_path)])
  # Steps here differ by a few tokens.
  assert len(spent) == round(num_steps)
  assert _saved(experiment, tmp_path)[1] == len(spent)
  assert (f'generated {spent[-1]:.0f} tokens in {len(spent)} steps, '
          f'{100 * spent[-1] / limit:.1f} % of train.completion_tokens'
         ) in capsys.readouterr().out


@pytest.mark.parametrize('change, said', [
    ({'evaluation.test': 'validation'}, "made on the split 'test'"),
    ({'evaluation.temperature': 0.5}, 'evaluation.temperature is 0.5')])
def test_what_cannot_be_compared_is_refused(
    change, said, finished, echo_folder, tmp_path):
  # Bite: a resumed run that prints two evaluations of different tasks or
  # temperatures as one comparison.
  workdir = tmp_path / 'run'
  shutil.copytree(finished, workdir)
  with pytest.raises(errors.UserError, match=re.escape(said)):
    train.train(echo.experiment(echo_folder, **CHANGES | change), workdir)


@pytest.mark.parametrize('num_steps', [0, -1])
def test_a_run_needs_an_end(num_steps, echo_folder, tmp_path):
  with pytest.raises(errors.UserError, match='would never end'):
    train.train(
        echo.experiment(echo_folder, **{'train.num_steps': num_steps}),
        tmp_path)


@pytest.mark.parametrize('policies', ['shared', 'per_role'])
def test_diagnosis_changes_nothing(policies, echo_folder, tmp_path):
  changes = {
      'policies': policies, 'train.num_steps': 3, 'train.checkpoint_every': 3}
  lines, states = [], []
  for every in (0, 2):
    experiment = echo.experiment(
        echo_folder, **changes | {'train.diagnose_every': every})
    workdir = tmp_path / str(every)
    assert train.train(experiment, workdir)
    lines.append(_metrics(workdir))
    states.append(_bytes(_saved(experiment, workdir)[0]))
  assert states[0] == states[1]
  found = [
      {name: line.pop(name) for name in list(line)
       if name.startswith('diagnosis/')} for line in lines[1]]
  assert lines[0] == lines[1]
  first, second, third = found
  roles = echo.experiment(echo_folder).environment.roles
  assert not second
  assert first.keys() == third.keys() == {
      f'diagnosis/{role}/{metric}' for role in roles
      for metric in ('grad_norm', 'entropy', 'kl_to_start')} | (
          {f'diagnosis/cosine/{"+".join(roles)}'} if policies == 'shared'
          else set())
  for role in roles:
    assert abs(first[f'diagnosis/{role}/kl_to_start']) < 1e-6
    assert third[f'diagnosis/{role}/kl_to_start'] > 1e-6
    if policies == 'per_role':
      np.testing.assert_allclose(
          first[f'diagnosis/{role}/grad_norm'],
          lines[0][0][f'{role}/grad_norm'], rtol=1e-4)


# A run that must not go on.


def test_workdir_of_another_config_is_left_alone(
    finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  before = _files(workdir)
  other = echo.experiment(echo_folder, **CHANGES | {
      'seed': 1, 'loss.clip_high': 0.3})
  with pytest.raises(errors.UserError) as error:
    train.train(other, workdir)
  assert (
      '(loss.clip_high: there 0.2, now 0.3; seed: there 0, now 1)'
      in str(error.value))
  assert _files(workdir) == before


def test_foreign_folder_is_left_alone(experiment, tmp_path):
  (tmp_path / 'thesis.tex').write_text('mine')
  with pytest.raises(errors.UserError, match='holds no config.json'):
    train.train(experiment, tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.parametrize('changes, words', [
    ({'rollout.num_tasks': 49}, "num_tasks=49, but the split 'train' has 48"),
    ({'evaluation.validation': 'empty'}, "split 'empty' of echo has no tasks"),
    ({'evaluation.test': 'exam'}, "echo has no split 'exam'.*validation"),
])
def test_tasks_that_are_not_there_leave_no_workdir(
    changes, words, echo_folder, tmp_path):
  with pytest.raises(errors.UserError, match=words):
    train.train(echo.experiment(echo_folder, **changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


# Damaged checkpoints.


def _truncate(folder):
  for path in folder.rglob('*'):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def test_unreadable_checkpoint_falls_back_to_the_older(
    finished, echo_folder, tmp_path, caplog, capsys):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  _truncate(workdir / 'checkpoints/8')
  experiment = echo.experiment(echo_folder, **CHANGES)
  assert train.train(experiment, workdir)
  assert 'resumes after step 4' in capsys.readouterr().out
  warning, = [m for m in caplog.messages if 'checkpoint' in m]
  assert 'checkpoint step 8: ' in warning and 'using step 4' in warning
  assert (workdir / 'checkpoints/8.corrupt').is_dir()
  _assert_same_run(workdir, finished, experiment)


def test_no_readable_checkpoint_is_an_error(finished, echo_folder, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / 'run')
  _truncate(workdir / 'checkpoints')
  experiment = echo.experiment(echo_folder, **CHANGES)
  with pytest.raises(errors.UserError, match='no checkpoint in .* can be read'):
    train.train(experiment, workdir)
  assert _metrics(workdir) == _metrics(finished)


# Updates.


def _with_infinity(groups):
  return [_with_candidate(group, 0, advantage=np.inf) for group in groups]


def test_lasting_nonfinite_gradients_stop_the_run(
    echo_folder, tmp_path, monkeypatch):
  make_batches = batching.make_batches
  monkeypatch.setattr(
      batching, 'make_batches',
      lambda groups, *args: make_batches(_with_infinity(groups), *args))
  experiment = echo.experiment(echo_folder, policies='per_role')
  with pytest.raises(FloatingPointError) as error:
    train.train(experiment, tmp_path)
  message = str(error.value)
  assert message.startswith(
      "Policy 'first': the gradients of 5 updates in a row were not finite, "
      'last in embedding, layers/')
  assert '(13 of 13 leaves)' in message
  assert len(_metrics(tmp_path)) == 4


def test_one_nonfinite_gradient_changes_nothing(experiment, groups):
  first = experiment.initial_states()['shared']
  state, metrics = _update(experiment, _with_infinity(groups))
  assert metrics['nonfinite_in_a_row'] == 1
  assert state.num_updates == 0
  assert _bytes(state.params) == _bytes(first.params)

  # Nor does it stay in the optimiser.
  state, metrics = _update(experiment, groups, state)
  assert metrics['nonfinite_in_a_row'] == 0
  expected, _ = _update(experiment, groups)
  assert _bytes(state.params) == _bytes(expected.params)
  assert _bytes(state.params) != _bytes(first.params)


def _tokens(groups):
  return sum(len(c.completion) for group in groups for c in group.candidates)


def _without_signal(groups):
  return [
      functools.reduce(
          lambda group, i: _with_candidate(group, i, advantage=0.0),
          range(16), group) for group in groups]


def test_the_loss_is_the_mean_over_all_candidates(experiment, groups, caplog):
  # Bite: a mean over the groups that have a signal, whose gradient grows as
  # others lose theirs.
  with_signal = [g for g in groups if len(set(g.returns)) > 1]
  assert 0 < len(with_signal) < len(groups) == 32
  state, metrics = _update(experiment, groups)
  assert metrics['groups'] == 32
  assert metrics['groups_without_signal'] == 32 - len(with_signal)
  # The others add nothing, so they are not computed.
  assert metrics['tokens'] == _tokens(with_signal)
  _, alone = _update(experiment, with_signal)
  share = _tokens(with_signal) / _tokens(groups)
  assert share < 0.9
  for name in ('loss', 'grad_norm'):
    assert metrics[name] == pytest.approx(share * alone[name], rel=1e-4)
  assert metrics['entropy'] == pytest.approx(alone['entropy'], rel=1e-5)

  assert not caplog.messages
  first = experiment.initial_states()['shared']
  state, metrics = _update(experiment, _without_signal(groups), first)
  assert state is first
  assert metrics == {'groups': 32, 'groups_without_signal': 32}
  assert caplog.messages == ['policy shared: no group carries a signal']


@pytest.mark.parametrize('penalty', [
    {'loss.entropy_coefficient': 0.1},
    {'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.1}])
def test_a_penalty_reads_every_candidate(
    penalty, experiment, groups, echo_folder):
  # Bite: groups without a signal that are left out all the same.
  penalised = echo.experiment(echo_folder, **penalty)
  reference = jax.tree.map(
      lambda x: 1.5 * x, penalised.policies['shared'].load_params('float32'))
  first = experiment.initial_states()['shared']
  state, metrics = _update(
      penalised, _without_signal(groups), first, reference)
  assert metrics['tokens'] == _tokens(groups)
  assert metrics['groups_without_signal'] == 32
  assert state.num_updates == 1 and metrics['grad_norm'] > 1e-4


def test_invalid_candidates_have_no_tokens(experiment, groups):
  index, group = next(
      (i, g) for i, g in enumerate(groups) if g.returns[0] < max(g.returns))

  def update_with(completion):
    broken = _with_candidate(
        group, 0, return_=np.nan, advantage=0.0, completion=completion,
        behavior_logprobs=np.zeros(len(completion), np.float32))
    return _update(
        experiment, [*groups[:index], broken, *groups[index + 1:]])

  _, metrics = _update(experiment, groups)
  first = group.candidates[0].completion
  states = []
  for completion in (first, np.array([5, 6], np.int32)):
    state, changed = update_with(completion)
    assert changed['tokens'] == metrics['tokens'] - len(first)
    states.append(_bytes(state.params))
  assert states[0] == states[1]


class _Unreliable(echo.Echo):
  """Breaks down whenever it hears an `a`."""

  def step(self, state, actions):
    result = super().step(state, actions)
    (role, action), = actions.items()
    if 'a' in action:
      return dataclasses.replace(
          result, outcomes={role: env_api.Outcome.INFRASTRUCTURE})
    return result


def test_run_survives_an_environment_that_fails_at_times(
    echo_folder, tmp_path):
  experiment = dataclasses.replace(
      echo.experiment(
          echo_folder, **{'train.num_steps': 1, 'train.groups_every': 1}),
      environment=_Unreliable(max_turns=1))
  assert train.train(experiment, tmp_path)
  lines = (tmp_path / 'groups/000000.jsonl').read_text().splitlines()
  candidates = [c for line in lines for c in json.loads(line)['candidates']]
  invalid = [c for c in candidates if c['return'] is None]
  assert invalid and all('a' in c['text'] for c in invalid)
  assert all(c['reward'] is None and c['advantage'] == 0 for c in invalid)
  metrics, = _metrics(tmp_path)
  assert metrics['return/invalid'] == len(invalid)
  assert metrics['budget/infrastructure_failures'] == len(invalid)
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
  # Of both updates, not of the last alone: each has half of the groups.
  assert metrics_twice['tokens'] == metrics['tokens'] / 2
  halves = [
      _update(experiment, groups[i::2])[1] for i in (0, 1)]
  assert halves[0]['entropy'] != pytest.approx(halves[1]['entropy'], rel=1e-4)
  assert metrics_twice['entropy'] < max(half['entropy'] for half in halves)
  assert _bytes(state_twice.params) != _bytes(state.params)

  # One group cannot be shared among two updates.
  group = next(group for group in groups if np.any(group.advantages))
  state, _ = _update(twice, [group])
  assert state.num_updates == 1


def test_kl_penalty_pulls_towards_the_reference(
    experiment, groups, echo_folder):
  penalised = echo.experiment(
      echo_folder, **{'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.5})
  reference = penalised.policies['shared'].load_params('float32')
  _, plain = _update(experiment, groups)
  _, same = _update(penalised, groups, reference=reference)
  # k3 and its gradient vanish where policy and reference agree.
  for name in ('loss', 'grad_norm'):
    assert same[name] == pytest.approx(plain[name], abs=1e-5), name
  other = jax.tree.map(lambda x: 1.5 * x, reference)
  _, far = _update(penalised, groups, reference=other)
  assert far['loss'] > same['loss'] + 0.01


# Tasks.


def test_tasks_of_a_step(experiment, echo_folder):
  tasks = experiment.tasks('train')
  experiment = echo.experiment(echo_folder, **{'rollout.num_tasks': 20})

  def draw(step):
    return [t['task_id'] for t in train.draw_tasks(tasks, step, experiment)]

  epochs = [draw(2 * epoch) + draw(2 * epoch + 1) for epoch in range(4)]
  for epoch in epochs:
    assert len(epoch) == len(set(epoch)) == 40  # Of 48; 8 fill no step.
  assert len({tuple(epoch) for epoch in epochs}) == 4
  # What an epoch leaves out, others visit.
  assert len(set().union(*epochs)) == 48
  assert draw(5) == epochs[2][20:]

  other = echo.experiment(echo_folder, seed=1, **{'rollout.num_tasks': 20})
  assert train.draw_tasks(tasks, 0, other) != train.draw_tasks(
      tasks, 0, experiment)


# Records.


def test_metrics(finished):
  lines = _metrics(finished)
  assert [line['step'] for line in lines] == list(range(1, 9))
  for line in lines:
    for name in ('rollout/success', 'validation/success', 'first/outcome/ok'):
      assert 0 <= line[name] <= 1, name
    assert 1 <= line['rollout/turns'] <= 2
    # Nobody solved has no mean.
    assert ('validation/turns_to_solve' in line) == (
        line['validation/success'] > 0)
    assert 1 <= line.get('validation/turns_to_solve', 1) <= 2
    assert line['budget/environment_steps'] == line['budget/model_calls']
    assert line['budget/model_calls'] == 16 * (
        line['first/groups'] + line['second/groups'])
    # In this run each role has a policy of its own.
    assert all(
        line[f'{role}/num_updates'] == line['step']
        for role in ('first', 'second'))
    for role in ('first', 'second'):
      assert line[f'{role}/without_signal'] == pytest.approx(
          line[f'{role}/groups_without_signal'] / line[f'{role}/groups'])
      # Each group with a signal has mean 0 and deviation 1.
      assert line[f'{role}/advantage_mean'] == pytest.approx(0, abs=1e-6)
      assert line[f'{role}/advantage_std'] ** 2 == pytest.approx(
          1 - line[f'{role}/without_signal'], abs=1e-5)
  # Steps 1 to 4 show the validation before the first, the others that of 5.
  k1 = [line['validation/success'] for line in lines]
  assert k1[:4] == k1[:1] * 4 and k1[4:] == k1[4:5] * 4 and k1[0] != k1[4]
  assert (finished / 'tensorboard').is_dir()


def test_groups_are_all_recorded(finished, echo_folder):
  tokenizer = echo.experiment(echo_folder).policies['shared'].tokenizer
  letters = {
      task['task_id']: task['letter']
      for task in echo.Builder(
          data_dir=None, file_format='').as_data_source('train')}
  for step, line in enumerate(_metrics(finished)):
    text = (finished / f'groups/{step:06d}.jsonl').read_text()
    groups = [json.loads(line) for line in text.splitlines()]
    assert len(groups) == line['first/groups'] + line['second/groups']
    keys = [tuple(group['key'].values()) for group in groups]
    assert len(set(keys)) == len(keys)
    assert set(groups[0]['key']) == {'task_id', 'role', 'turn', 'branch'}
    for group in groups:
      assert group['policy'] == group['key']['role']
      prompt = tokenizer.decode(group['prompt_ids'])
      if group['policy'] == 'first':
        assert prompt == f'first {letters[group["key"]["task_id"]]} say'
      candidates = group['candidates']
      assert len(candidates) == 16
      for candidate in candidates:
        assert candidate['text'] == tokenizer.decode(candidate['ids'])
        assert len(candidate['logprobs']) == len(candidate['ids'])
        assert candidate['outcome'] in ('ok', 'parse_error')
        assert candidate['terms'].keys() == {'right', 'success'}
      rewards = [candidate['reward'] for candidate in candidates]
      assert rewards[group['chosen']] == max(rewards)
      advantages = [candidate['advantage'] for candidate in candidates]
      assert sum(advantages) == pytest.approx(0, abs=1e-4)
      assert any(advantages) == (len(set(rewards)) > 1)


def test_evaluations(finished):
  paths = sorted((finished / 'evals').iterdir())
  assert [path.name for path in paths] == ['after.json', 'before.json']
  after, before = (json.loads(path.read_text()) for path in paths)
  assert (before['step'], after['step']) == (0, 8)
  assert before.keys() == after.keys() == {
      'task', 'team', 'split', 'max_turns', 'config_hash', 'num_tasks',
      'success', 'successes', 'clusters', 'interval', 'mean_turns',
      'mean_turns_to_solve', 'truncated', 'outcomes', 'budget', 'policy_map',
      'split_hash', 'seed', 'step', 'sampling'}
  assert before['split_hash'] == after['split_hash']
  assert after['policy_map'] == {'first': 'first', 'second': 'second'}
  config = json.loads((finished / 'config.json').read_text())
  assert after['config_hash'] == config['hash']
