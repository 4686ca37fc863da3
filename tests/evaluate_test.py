"""Evaluations: episodes, measures and files."""

import dataclasses
import json
import types

import pytest

from atgrpo_jax import errors
from atgrpo_jax import evaluate
from atgrpo_jax import statistics
from atgrpo_jax import train
from atgrpo_jax.io import workdir as workdir_lib
from environments import datasets
from tests import echo
from tests.rollout import scripted

TASKS = [{'task_id': name, 'goal': goal} for name, goal in (
    ('A', 5), ('B', 2), ('C', 9), ('D', 1))]


def test_exact_result(monkeypatch, capsys):
  """A failure of the sandbox in task C is excluded from all means."""
  monkeypatch.setattr(evaluate, 'MAX_FAILED_FRACTION', 0.25)
  scripted.follow_scripts(monkeypatch)
  one = {  # Plays role a.
      'A/a turn 0 total 0': ['1'], 'A/a turn 1 total 3': ['2'],
      'B/a turn 0 total 0': ['2'],
      'C/a turn 0 total 0': ['x'], 'C/a turn 1 total 1': ['4 broken'],
      'D/a turn 0 total 0': ['0']}
  two = {  # Plays role b.
      'A/b turn 0 total 1': ['2'],
      'C/b turn 0 total 0': ['1'],
      'D/b turn 0 total 0': ['1']}
  runner = scripted.make_runner(
      {'one': one, 'two': two}, {'a': 'one', 'b': 'two'}, seed=3,
      train_step=7)
  result = evaluate.evaluate(runner, TASKS)
  assert result == {
      'num_tasks': 4,
      'num_left_out': 1,
      'success': 1.0,
      'finished_success': 1.0,
      'successes': '11-1',
      'clusters': [0, 1, 2, 3],
      'interval': statistics.wilson_interval(1.0, 3),
      'mean_return': 1.0,
      'returns': [1.0, 1.0, None, 1.0],
      'reward_terms': {'total': (5 + 2 + 1) / 3},
      'terms': {'total': [5.0, 2.0, None, 1.0]},
      'mean_turns': (2 + 1 + 1) / 3,
      'mean_turns_to_solve': (2 + 1 + 1) / 3,
      'truncated': 0.0,
      'outcomes': {
          'a': {'ok': 4, 'parse_error': 1, 'infrastructure': 1},
          'b': {'ok': 3}},
      'budget': runner.usage.counts(),
      'policy_map': {'a': 'one', 'b': 'two'},
      'split_hash': datasets.split_hash(TASKS),
      'seed': 3,
      'step': 7,
      'sampling': {
          'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'max_new_tokens': 12},
  }
  assert result['budget']['model_calls'] == len(one) + len(two)
  assert result['budget']['environment_steps'] == len(one) + len(two)
  assert capsys.readouterr().out == (
      '1 of 4 tasks failed for reasons outside the model and are excluded\n')


def test_right_answers_that_were_cut_off_are_reported(monkeypatch):
  scripted.follow_scripts(monkeypatch)
  long = '2' + ' ' * 11  # Twelve tokens without a stop token.
  runner = scripted.make_runner({
      'one': {f'{name}/a turn 0 total 0': ['2' if name == 'B' else long]
              for name in 'BFG'}, 'two': {}})
  result = evaluate.evaluate(
      runner, [{'task_id': name, 'goal': 2} for name in 'BFG'])
  assert (result['success'], result['finished_success']) == (1, 1 / 3)
  problem, = evaluate.find_problems(result)
  assert '100.0 % of the tasks' in problem and 'only 33.3 %' in problem
  result |= {'finished_success': 0.5}
  assert not evaluate.find_problems(result)
  result['outcomes']['a'] = {'parse_error': 3}
  result['budget'] |= {'overlong_prompts': 2, 'cut_completions': 9}
  too_long, not_parsed = evaluate.find_problems(result)
  assert '2 of 3 episodes before training ended' in too_long
  assert 'errors: most answers were cut off at rollout' in not_parsed


def test_response_time(monkeypatch):
  """A phase takes as long as its slowest role; the first task is repeated."""
  scripted.follow_scripts(monkeypatch)
  clock = [0.0]
  monkeypatch.setattr(evaluate.time, 'perf_counter', lambda: clock[0])

  class Slow(scripted.Dice):
    """Role a takes 1 s, role b 3 s, and the first call 100 s more."""

    asked = []

    def __getitem__(self, prompt):
      clock[0] += 1 if '/a ' in prompt else 3
      clock[0] += 0 if self.asked else 100
      self.asked.append(prompt)
      return ['1']

  for phases, seconds in (((('a',), ('b',)), 8.0), ((('a', 'b'),), 6.0)):
    Slow.asked.clear()
    runner = scripted.make_runner(
        {'one': Slow(), 'two': Slow()},
        environment=scripted.Counting(phases, max_turns=2))
    tasks = [{'task_id': name, 'goal': 9} for name in 'xy']
    assert evaluate.response_time(runner, tasks) == {
        'response_seconds': seconds, 'num_timed': 2,
        # Each role writes a digit and the end in each of two turns.
        'tokens_per_second': 8 / seconds}
    assert [prompt[0] for prompt in Slow.asked] == [*'xxxx' * 2, *'yyyy']


def test_pass_at_k():
  # Task 2 failed in one round, task 3 in one.
  rounds = ['0110', '010-', '01-1', '011-']
  tasks = [{'task_id': f'T{i}', 'goal': 1} for i in range(4)]

  class Played:

    def reset(self, task):
      return task

    def play(self, episodes):
      return [
          [types.SimpleNamespace(
              failed=lambda j, x=x: x == '-',
              steps=[types.SimpleNamespace(success=x == '1')])]
          for x in ''.join(rounds[1:])[:len(episodes)]]

  found = evaluate.pass_at_k(Played(), tasks, rounds[0], [0, 1, 2, 3], 4)
  assert found['num_samples'] == 4 and found['samples'] == rounds
  # Solved of known: 0 of 4, 4 of 4, 2 of 3, 1 of 2.
  assert found['pass_at_k'] == pytest.approx({
      '1': (0 + 1 + 2 / 3 + 1 / 2) / 4, '2': (0 + 1 + 1 + 1) / 4,
      '4': (0 + 1) / 2})
  for k, (low, high) in found['pass_at_k_interval'].items():
    assert 0 <= low < found['pass_at_k'][k] < high <= 1
  # The bootstrap draws tasks of one kind together.
  alike = evaluate.pass_at_k(Played(), tasks, rounds[0], [0, 0, 0, 0], 4)
  assert alike['pass_at_k_interval']['1'] == pytest.approx(
      [found['pass_at_k']['1']] * 2)


def test_evaluate_run_writes_its_result(echo_folder, tmp_path, capsys):
  experiment = echo.experiment(
      echo_folder, policies='per_role', **{
          'evaluation.policy_map': (('first', 'second'), ('second', 'first')),
          'evaluation.name': 'swapped', 'evaluation.temperature': 0.0,
          'evaluation.test': 'validation', 'environment.max_turns': 2,
          'evaluation.num_timed': 3, 'evaluation.num_samples': 3})
  with pytest.raises(errors.UserError, match='num_samples=3.*equal episodes'):
    evaluate.evaluate_run(experiment, tmp_path)
  experiment.config.evaluation.temperature = 0.5
  evaluate.evaluate_run(experiment, tmp_path)
  path = tmp_path / 'evals/swapped.json'
  result = json.loads(path.read_text())
  assert result == evaluate.read(tmp_path, 'swapped')
  assert result.items() >= {
      'task': 'tests.echo', 'team': 'pair', 'split': 'validation',
      'max_turns': 2, 'num_tasks': 16, 'success': 0.0, 'mean_turns': 2.0,
      'mean_turns_to_solve': None, 'truncated': 1.0, 'step': 0,
      'num_timed': 3,
      'config_hash': workdir_lib.config_hash(experiment.config.to_dict()),
      'policy_map': {'first': 'second', 'second': 'first'},
      'sampling': {
          'temperature': 0.5, 'top_k': 0, 'top_p': 1.0,
          'max_new_tokens': 2}}.items()
  printed = capsys.readouterr().out
  for words in str(path), 'swapped', '0.0 %', '3 tasks', 'avg@3 ', 'pass@3 ':
    assert words in printed
  assert 0 < result['response_seconds'] < 60
  first, *others = result['samples']
  assert first == result['successes'] and len(others) == 2


def test_too_many_failed_tasks_write_no_evaluation(echo_folder, tmp_path):
  experiment = dataclasses.replace(
      echo.experiment(echo_folder), environment=echo.Unreliable(
          1, lambda state, action: state.letter == 'a'))
  with pytest.raises(errors.InfrastructureError, match='8 of 48 tasks .*1%'):
    train.train(experiment, tmp_path)
  assert not (tmp_path / 'evals').exists()
  with pytest.raises(errors.InfrastructureError, match='echo/test/0. failed'):
    evaluate.response_time(
        experiment.runner(
            experiment.trained_params(tmp_path)[0], step=0, temperature=1.0),
        experiment.tasks('test'))


@pytest.mark.parametrize('text, words', [
    (None, 'No such file.*after.json'),
    *((text, 'after.json is missing or damaged') for text in (
        '[]',
        '{"successes": "01", "num_tasks": 3, "clusters": [0, 1, 2]}',
        '{"successes": "011", "num_tasks": 3, "clusters": [0, 1, 2], '
        '"success": 0.3}'))])
def test_damaged_evaluation_is_refused(text, words, tmp_path):
  (tmp_path / 'evals').mkdir()
  if text is not None:
    (tmp_path / 'evals/after.json').write_text(text)
  with pytest.raises(errors.UserError, match=words):
    evaluate.read(tmp_path, 'after')
