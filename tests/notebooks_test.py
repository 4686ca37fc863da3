"""The notebooks run from their first cell to their last."""

import json
import sys

from tests import checkout

# Runs before each training, which would take minutes otherwise.
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


def run(name, capsys):
  """Runs the cells in this process and returns what each code cell prints."""
  cells = json.loads(
      (checkout.ROOT / f'notebooks/{name}.ipynb').read_text())['cells']
  variables, printed = {}, []
  for cell in cells:
    if cell['cell_type'] == 'code':
      source = ''.join(cell['source'])
      exec(source.replace(TRAIN, SMALLER_CONFIG + TRAIN), variables)
      printed.append(capsys.readouterr().out)
  return printed


def test_notebooks_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('MPLBACKEND', 'agg')
  monkeypatch.setattr(sys, 'path', sys.path.copy())
  _, _, train, _, completions = run('train_a_team', capsys)
  assert 'held-out success: before' in train
  assert completions.count('\n' + '-' * 40 + '\n') == 2
  # This notebook reads the run of the first one.
  _, _, tree, _, report = run('read_a_run', capsys)
  assert 'turn 1, tool' in tree
  assert report == 'runs/notebook/report.html\n'
  assert (tmp_path / 'runs/notebook/report.html').exists()
  saved = (tmp_path / 'runs/notebook/config.json').read_text()
  assert '"models/nano"' in saved and str(checkout.ROOT) not in saved
  *_, tree = run('write_an_environment', capsys)
  assert 'turn 1, advisor: You are the advisor.' in tree
