"""paper.py: cells that can be run, in an order in which they can be run."""

import importlib
import json
import pathlib
import re
import subprocess

import pytest

from atgrpo_jax import paper
from atgrpo_jax import policies
from atgrpo_jax.rollout import at_grpo
from environments import games

CELLS = paper.make_cells('nano', 2)


@pytest.mark.parametrize('scale', ['nano', '1.7b', '8b'])
def test_cells_are_valid_configs(scale):
  for cell in paper.make_cells(scale, 1):
    file, _, arg = cell.config.partition(':')
    module = importlib.import_module(
        file.removesuffix('.py').replace('/', '.'))
    config = module.get_config(arg)
    # Keys that do not exist, and values of another type, are refused.
    config.update_from_flattened_dict(dict(cell.overrides))
    roles = games.TEAMS[config.environment.team]
    at_grpo.RolloutSpec(**{
        name: config.rollout[name] for name in (
            'rollout', 'selection', 'target')})
    if config.per_policy:
      policies._policy_configs(config, roles)


def test_no_cell_comes_twice():
  places = [(cell.path, cell.result) for cell in CELLS]
  assert len(set(places)) == len(places)
  # Two trainings in one place would be one that is refused.
  trained = [cell.path for cell in CELLS if cell.mode == 'train']
  assert len(set(trained)) == len(trained)


def test_every_cell_stands_behind_those_it_needs():
  seen = {'train': set(), 'export': set(), 'evaluate': set()}
  for cell in CELLS:
    if cell.budget_of:
      assert cell.budget_of in seen['train'], cell
    if cell.mode == 'export':
      assert cell.path in seen['train'], cell
    folders = re.findall(
        r'{out}/([^;]*)/export/[a-z]+', cell.overrides.get('per_policy', ''))
    assert len(folders) == (2 if cell.mode == 'evaluate' else 0)
    assert set(folders) <= seen['export'], cell
    seen[cell.mode].add(cell.path)


def test_what_is_compared_has_one_budget():
  for cell in CELLS:
    if cell.mode == 'train' and not cell.path.startswith('main/'):
      assert cell.budget_of.startswith('main/'), cell
    if '/at_grpo/' in cell.path:
      assert not cell.budget_of
    elif cell.mode == 'train':
      task, seed = cell.path.split('/')[1], cell.path.split('/')[-1]
      assert cell.budget_of == f'main/{task}/at_grpo/{seed}'


class _Trainer:
  """Stands for the processes: writes what a cell would."""

  def __init__(self, monkeypatch):
    self.commands = []
    self.status = 0
    monkeypatch.setattr(subprocess, 'run', self._run)

  def _run(self, command, stdout, stderr):
    del stderr
    self.commands.append(command[1:])
    stdout.write('said\n')
    if not self.status:
      mode, workdir = (
          command[command.index(name) + 1] for name in ('--mode', '--workdir'))
      results = {
          'train': ['evals/after.json'], 'evaluate': ['evals/evaluation.json'],
          'export': [f'export/{role}/config.json' for role in (
              'tool', 'planner')]}[mode]
      for result in results:
        path = pathlib.Path(workdir) / result
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{}')
      if mode == 'train':
        (pathlib.Path(workdir) / 'metrics.jsonl').write_text(''.join(
            json.dumps({'budget/completion_tokens': x}) + '\n'
            for x in (100.0, 23.0)))
    return subprocess.CompletedProcess(command, self.status)


def test_cells_run_once(tmp_path, monkeypatch, capsys):
  trainer = _Trainer(monkeypatch)
  assert paper.run_cells(CELLS, tmp_path, dry_run=False) == 0
  assert len(trainer.commands) == len(CELLS)
  printed = capsys.readouterr().out
  assert f'[{len(CELLS)}/{len(CELLS)}] python -m atgrpo_jax.main' in printed
  limits = {
      argument for command in trainer.commands for argument in command
      if argument.startswith('--config.train.completion_tokens')}
  assert limits == {'--config.train.completion_tokens=123'}
  assert '{out}' not in printed
  assert (tmp_path / 'logs/main/sudoku/at_grpo/seed-1.train').read_text() == (
      'said\n')
  # The folders of the cells hold nothing but what the cells wrote.
  assert {p.name for p in (tmp_path / CELLS[0].path).iterdir()} == {
      'evals', 'metrics.jsonl'}

  trainer.commands.clear()
  assert paper.run_cells(CELLS, tmp_path, dry_run=False) == 0
  assert not trainer.commands
  (tmp_path / CELLS[4].path / 'evals/after.json').unlink()
  assert paper.run_cells(CELLS, tmp_path, dry_run=False) == 0
  assert len(trainer.commands) == 1


def test_a_cell_that_fails_stops_the_run(tmp_path, monkeypatch, capsys):
  trainer = _Trainer(monkeypatch)
  trainer.status = 42
  assert paper.run_cells(CELLS, tmp_path, dry_run=False) == 42
  assert len(trainer.commands) == 1
  said = capsys.readouterr().err
  assert 'status 42' in said and f'{CELLS[0].path}.train' in said


def test_a_budget_must_be_known(tmp_path, monkeypatch, capsys):
  trainer = _Trainer(monkeypatch)
  assert paper.run_cells(CELLS[1:2], tmp_path, dry_run=False) == 2
  assert not trainer.commands
  assert 'main/plan_path/at_grpo/seed-0, which has not been run' in (
      capsys.readouterr().err)


def test_dry_run_runs_nothing(tmp_path, monkeypatch, capsys):
  trainer = _Trainer(monkeypatch)
  assert paper.run_cells(CELLS, tmp_path, dry_run=True) == 0
  assert not trainer.commands and not list(tmp_path.iterdir())
  assert capsys.readouterr().out.count('atgrpo_jax.main') == len(CELLS)
