"""What dies or stops is replaced, and no result tells that it was."""

from concurrent import futures
import dataclasses
import os
import pathlib
import signal
import time

import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax.io import signals
from atgrpo_jax.rollout import workers as workers_lib
from environments import env_api
from environments.sandbox import launcher
from environments.sandbox import processes
from tests.rollout import programs
from tests.rollout import scripted

OUTCOME = env_api.Outcome
# Where programs can reach the server.
UNSAFE = 'unsafe_rlimit'
GOALS = {'A': 3, 'B': 5}


@pytest.fixture(scope='module')
def workers():
  """The same for most tests: they must survive them."""
  with workers_lib.Workers(2, 2, UNSAFE) as running:
    yield running


class _Script:
  """Every prompt of the game has the same answers."""

  def __init__(self, *texts):
    self._texts = texts

  def __getitem__(self, prompt):
    return self._texts


@pytest.fixture
def play(workers, tmp_path, monkeypatch):
  """Makes a runner whose only agent says one of some texts."""
  scripted.follow_scripts(monkeypatch)

  def make(*texts, max_turns=2):
    return scripted.make_runner(
        {'one': _Script(*texts)}, {'a': 'one'},
        environment=programs.Programs(
            workers.sandbox, str(tmp_path / 'mark'), max_turns),
        max_new_tokens=16, executor=workers)

  make.mark = tmp_path / 'mark'
  return make


def _wait_until(condition_fn):
  deadline = time.monotonic() + 60
  while not condition_fn():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def _step(runner, *texts):
  state = runner.environment.reset(scripted.task('A', 3))
  return scripted.wait_for(runner, runner.step_environments(
      [state] * len(texts), [{'a': text} for text in texts]))


def test_who_waits_for_steps_is_told_of_a_signal(workers, play, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(workers, '_is_stopped', lambda: True)
    with pytest.raises(signals.Stopped):
      _step(play('slow'), 'slow')


# Harm -> whom it hits, and what is replaced for it.


def _server(workers):
  return [workers._server.pid]


def _supervisors(workers):
  pid, = _server(workers)
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(child) for child in path.read_text().split()]


def _processes(workers):
  return [process.pid for process in workers._context.started]


HARMS = {
    f'{name} {number.name}': (victims_fn, number, replaced)
    for name, victims_fn, replaced in (
        ('server', _server, 'server_restarts'),
        ('supervisor', lambda workers: _supervisors(workers)[:1], None),
        ('worker', lambda workers: _processes(workers)[:1], 'pool_restarts'))
    for number in (signal.SIGKILL, signal.SIGSTOP)}
HARMS['server and supervisors SIGSTOP'] = (
    lambda workers: _server(workers) + _supervisors(workers), signal.SIGSTOP,
    'server_restarts')


def _harm(workers, mark, name):
  """Once a program runs."""
  victims_fn, number, _ = HARMS[name]
  _wait_until(mark.exists)
  for pid in victims_fn(workers):
    os.kill(pid, number)


@pytest.fixture(scope='module')
def undisturbed():
  """Number of the work -> what came of it when nothing happened."""
  return {}


@pytest.mark.parametrize('name', HARMS)
def test_a_rollout_and_an_evaluation_are_as_if_nothing_had_been(
    name, play, workers, undisturbed):
  tasks = [scripted.task(*pair) for pair in GOALS.items()]
  works = (
      lambda: list(map(dataclasses.asdict, scripted.collect(
          play('slow', 'one', 'slow', 'two'), GOALS, group_size=4))),
      lambda: evaluate.evaluate(play('slow'), tasks))
  workers.take_counts()
  for index, work in enumerate(works):
    if index not in undisturbed:
      undisturbed[index] = work()
      assert not any(workers.take_counts().values())
      play.mark.unlink()
    expected = undisturbed[index]
    with futures.ThreadPoolExecutor(1) as pool:
      harm = pool.submit(_harm, workers, play.mark, name)
      np.testing.assert_equal(work(), expected)
      harm.result()
    play.mark.unlink()
    counts = workers.take_counts()
    for kind in ('server_restarts', 'pool_restarts'):
      assert counts[kind] == (kind == HARMS[name][2]), counts
  assert expected['num_left_out'] == 0 and expected['success'] == 0.5


def test_what_is_harmed_between_two_calls_is_replaced(play, workers):
  runner = play()
  _step(runner, 'one')  # There are processes to harm.
  workers.take_counts()
  for victims_fn, number, replaced in HARMS.values():
    victims = victims_fn(workers)
    for pid in victims:
      os.kill(pid, number)
    steps = _step(runner, 'one', 'two')
    assert [step.state.total for step in steps] == [1, 2]
    counts = workers.take_counts()
    assert replaced is None or counts[replaced] == 1, counts
    _wait_until(lambda victims=victims: not any(
        map(processes.is_stopped, victims)))


def test_a_program_that_ends_its_supervisor_is_penalised(play, workers):
  # Bite: it leaves its group, or its task an evaluation.
  workers.take_counts()
  runner = play('end supervisor', 'one', 'two', max_turns=1)
  tree, = scripted.collect(runner, {'A': 2}, group_size=3)
  group, = tree.nodes[0].groups
  assert [candidate.outcome for candidate in group.candidates] == [
      OUTCOME.PROGRAM_ERROR, OUTCOME.OK, OUTCOME.OK]
  assert group.valid.all() and group.advantages[0] < 0
  result = evaluate.evaluate(
      play('end supervisor', max_turns=1), [scripted.task('A', 2)])
  assert (result['successes'], result['num_left_out']) == ('0', 0)
  assert not any(workers.take_counts().values())


def test_a_program_that_ends_the_server_harms_no_other(play, workers):
  texts = ['one', 'end server', 'two', 'slow', 'end server', 'one', 'two']
  steps = _step(play(), *texts)
  failed = [step.outcomes['a'] is OUTCOME.INFRASTRUCTURE for step in steps]
  assert failed == [text == 'end server' for text in texts]
  assert [s.state.total for s in steps] == [1, 0, 2, 3, 0, 1, 2]
  assert workers.take_counts()['server_restarts'] > 1
  step, = _step(play(), 'one')
  assert step.state.total == 1


@pytest.mark.parametrize('share, text', [(0.5, '01-'), (0.3, None)])
def test_an_evaluation_leaves_out_what_ends_the_server(
    share, text, play, monkeypatch):
  monkeypatch.setattr(evaluate, 'MAX_FAILED_FRACTION', share)
  tasks = [scripted.task(*pair) for pair in (('A', 9), ('B', 1), ('C', 2))]
  runner = play(max_turns=1)
  _step(runner, 'one')  # What other tests have ended counts no longer.

  class ByTask:
    def __getitem__(self, prompt):
      return ['end server' if prompt.startswith('C') else 'one']

  runner.policies['one'] = dataclasses.replace(
      runner.policies['one'], model=dataclasses.replace(
          runner.policies['one'].model, params=ByTask()))
  if text is None:
    with pytest.raises(errors.InfrastructureError, match='1 of 3 tasks'):
      evaluate.evaluate(runner, tasks)
    return
  result = evaluate.evaluate(runner, tasks)
  assert (result['successes'], result['success']) == (text, 0.5)
  assert (result['num_tasks'], result['num_left_out']) == (3, 1)


@pytest.mark.parametrize('what, words', [
    ('server', 'The sandbox server failed again after 2 replacements'),
    ('worker', 'The worker processes failed again after 2 replacements')])
def test_what_persists_is_said_in_one_sentence(
    what, words, play, tmp_path, monkeypatch):
  monkeypatch.setattr(workers_lib, 'MAX_IN_A_ROW', 2)
  with workers_lib.Workers(1, 1, 'auto') as running:
    runner = dataclasses.replace(play(), executor=running, environment=(
        programs.Programs(running.sandbox, str(tmp_path / 'mark'))))
    if what == 'server':
      monkeypatch.setattr(launcher, '_START_SERVER', '1 / 0')
      os.kill(*_server(running), signal.SIGKILL)
    with pytest.raises(errors.InfrastructureError) as caught:
      _step(runner, 'end worker' if what == 'worker' else 'one')
  message = str(caught.value)
  assert words in message and '\n' not in message
  assert message.endswith('then run the same command again.')


def test_nothing_hangs_at_the_end(monkeypatch):
  monkeypatch.setattr(workers_lib, '_END_SECONDS', 0.5)
  with workers_lib.Workers(1, 1, 'auto') as running:
    running.submit(env_api.step_all, None, [], []).result()
    pids = _server(running) + _processes(running)
    for pid in pids:
      os.kill(pid, signal.SIGSTOP)
  for pid in pids:
    with pytest.raises(ProcessLookupError):
      os.kill(pid, 0)


def test_without_programs_there_is_no_server():
  with workers_lib.Workers(1, 1, 'none') as running:
    assert running.sandbox is None and running.level == 'none'
    call = running.submit(env_api.step_all, None, [], [])
    running.finish()
    assert call.steps == []


def test_a_machine_without_a_sandbox_is_refused(monkeypatch):
  # Bite: it slides to the level without walls, or exits as if to be resumed.
  monkeypatch.setattr(launcher, '_missing', lambda level: 'nothing')
  with pytest.raises(errors.UserError, match='set sandbox.level=unsafe_rlimit'):
    workers_lib.Workers(1, 1, 'auto').__enter__()
