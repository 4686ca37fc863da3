"""The examples in docs/environments.md and the notebooks."""

from concurrent import futures
import importlib
import json
import re
import shutil
import sys

import pytest

from atgrpo_jax import api
from atgrpo_jax import main
from atgrpo_jax import play
from atgrpo_jax.rollout import tree as tree_lib
from environments import datasets
from environments import env_api
from environments import text
from models import wheels
from tests import checkout
from tests import command_line

EXAMPLE = checkout.ROOT / 'docs/examples/sums.py'
MODEL = checkout.ROOT / 'models/nano'
# These overrides make the page's command small enough for a test.
SMALLER = (
    'environment.num_workers=1',
    'sandbox.level=none', 'rollout.num_tasks=1', 'rollout.group_size=2',
    'rollout.max_new_tokens=16', 'buckets.completion=(16,)',
    'buckets.groups=(4,)', 'train.num_steps=1',
    'evaluation.validation=validation[:2]', 'evaluation.test=test[:4]')
# Runs before each training of a notebook, which would take minutes otherwise.
SMALLER_CONFIG = '''
config.environment.max_turns = 1
config.rollout.num_tasks = 1
config.rollout.group_size = 2
config.buckets.completion = config.buckets.completion[-1:]
config.train.num_steps = 1
config.train.checkpoint_every = 1
config.evaluation.validate_every = 1
config.evaluation.validation = 'validation[:2]'
config.evaluation.test = 'test[:2]'
'''
TRAIN = 'with api.Run(config, workdir)'


@pytest.fixture
def sums(monkeypatch):
  monkeypatch.syspath_prepend(EXAMPLE.parent)
  return importlib.import_module('sums')


def test_the_page_opens_with_the_example():
  page = (checkout.ROOT / 'docs/environments.md').read_text()
  _, first, _ = page.split('```', 2)
  assert first == f'python\n{EXAMPLE.read_text()}'


def test_the_messages_of_the_page_have_calls_and_results():
  page = (checkout.ROOT / 'docs/environments.md').read_text()
  example, = [x for x in page.split('```') if x.startswith('python\nADD')]
  code = {'text': text}
  exec(example.removeprefix('python\n'), code)
  system, _, reply, result = code['call_tools'](
      code['start']('What is 2 + 3?'), 'I add.\n<tool_call>\n{"name": "add", '
      '"arguments": {"numbers": [2, 3]}}\n</tool_call>')
  assert system['tools'] == [code['ADD']]
  assert reply['content'] == 'I add.'
  assert [x['function']['name'] for x in reply['tool_calls']] == ['add']
  assert result == {'role': 'tool', 'content': '5'}


def test_a_right_sum_of_the_checker_solves_the_task(sums):
  assert datasets.load('sums', 'test[:1]') == [
      datasets.load('sums', 'test')[0]]
  splits = [datasets.load('sums', name) for name in (
      'train', 'validation', 'test')]
  assert [len(tasks) for tasks in splits] == [241, 40, 80]
  assert not datasets.num_common(splits[1] + splits[2], splits[0])
  environment = sums.make_environment()
  start = environment.reset({'task_id': 'a', 'a': 12, 'b': 30})
  wrong = environment.step(start, {'solver': 'I guess\n#### 41'})
  assert (wrong.team_reward, wrong.done, wrong.success) == (0.0, False, False)
  *_, prompt = environment.observe(wrong.state, 'checker')
  assert prompt['content'] == 'What is 12 + 30? Proposal: 41.'
  right = environment.step(wrong.state, {'checker': '#### 42'})
  assert (right.team_reward, right.done, right.success) == (1.0, True, True)
  unread = environment.step(start, {'solver': 'It is 42.'})
  assert unread.outcomes == {'solver': env_api.Outcome.PARSE_ERROR}


def test_the_judge_is_left_out_while_the_debaters_disagree(
    sums, tmp_path, capsys):
  del sums  # It puts the examples on the path.
  config = importlib.import_module('debate').get_config()
  replies = tmp_path / 'replies.txt'
  for answers, roles in (
      ('1 1 1', 'first second judge'),
      ('1 2 3 3 3', 'first second first second judge'),
      ('1 2 1 2 1 2 1', 'first second first second first second judge')):
    replies.write_text(''.join(f'"#### {x}"\n' for x in answers.split()))
    play.play(config, str(replies), 1)
    assert re.findall("reply of '(.*)'", capsys.readouterr().out) == (
        roles.split())


@pytest.mark.parametrize('name, roles', [
    ('sums', ['solver', 'checker']), ('debate', ['first', 'second', 'judge'])])
def test_the_examples_train(
    name, roles, sums, tmp_path, monkeypatch, capsys):
  del sums  # It puts the examples on the path.
  values = command_line.parse_main([
      f'--config={EXAMPLE.with_stem(name)}', f'--workdir={tmp_path}/run',
      f'--config.model.folder={MODEL}',
      '--config.buckets.prompt=(400,)',  # The tokenizer has few words.
      *(f'--config.{item}' for item in SMALLER)], monkeypatch)
  with futures.ThreadPoolExecutor(1) as executor, api.Run(
      values.config, values.workdir, executor=executor) as run:
    assert main.run_mode(values.mode, run) == 0
  tree, = tree_lib.read(tree_lib.groups_path(tmp_path / 'run', 0))
  assert {group.key.role for group in tree.groups()} == {*roles}
  result = json.loads((tmp_path / 'run/evals/after.json').read_text())
  assert (result['num_tasks'], result['step']) == (4, 1)
  assert values.config.environment.max_turns == 4
  assert result['max_turns'] == (1 if name == 'sums' else 3)
  printed = capsys.readouterr().out
  page = (tmp_path / 'run/report.html').read_text()
  for role in roles if name == 'sums' else ():
    assert f'warning: 4 of 4 answers of {role} before training are' in printed
    assert f'4 of 4 answers of {role} after step 1 are parse errors' in page


@pytest.mark.long
def test_the_notebooks_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('MPLBACKEND', 'agg')
  monkeypatch.setattr(sys, 'path', sys.path.copy())

  monkeypatch.setattr(
      wheels, 'make', lambda model, path: shutil.copytree(MODEL, path))

  def run(name, changes=''):
    """Runs the cells of a notebook and returns what each code cell prints."""
    path = checkout.ROOT / f'notebooks/{name}.ipynb'
    variables, printed = {}, []
    for cell in json.loads(path.read_text())['cells']:
      if cell['cell_type'] == 'code':
        source = ''.join(cell['source'])
        exec(source.replace(TRAIN, SMALLER_CONFIG + changes + TRAIN), variables)
        printed.append(capsys.readouterr().out)
    return printed

  *_, groups, group = run(
      'train_a_pretrained_model', 'config.buckets.prompt = (400,)\n')
  assert 'step 1, checker mean reward' in groups
  assert re.match('train/.*: What is', group)
  *_, tree = run('write_an_environment')
  assert 'turn 1, advisor: You are the advisor.' in tree
  _, _, train, _, completions = run('train_a_team')
  assert 'held-out success: before' in train
  assert completions.count('\n' + '-' * 40 + '\n') == 2
  _, _, tree, _, report = run('read_a_run')  # The run of the second notebook.
  assert 'turn 1, tool' in tree
  assert report == 'runs/notebook/report.html\n'
  assert (tmp_path / 'runs/notebook/report.html').exists()
  saved = (tmp_path / 'runs/notebook/config.json').read_text()
  assert '"models/nano"' in saved and str(checkout.ROOT) not in saved
