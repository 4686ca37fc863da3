"""cells.py: cells that can be run, in an order in which they can be run."""

import fnmatch
import importlib
import pathlib

import pytest

from atgrpo_jax import builders
from atgrpo_jax import errors
from atgrpo_jax import experiment
from atgrpo_jax.algorithms import collect
from atgrpo_jax.algorithms import spec as spec_lib
from paper import cell as cell_lib
from paper import cells as cells_lib
from paper import game_cells
from tests.paper import finished_runs

CELLS = cells_lib.make_cells('nano', 2)


@pytest.mark.parametrize('scale', ['nano', '1.7b', '8b'])
def test_cells_are_valid_configs(scale):
  for cell in cells_lib.make_cells(scale, 1):
    file, _, arg = cell.config.partition(':')
    module = importlib.import_module(
        file.removesuffix('.py').replace('/', '.'))
    config = module.get_config(arg)
    # Keys that do not exist, and values of another type, are refused.
    config.update_from_flattened_dict(dict(cell.overrides))
    rollout = experiment.rollout_spec(config)
    spec_lib.check_critic(
        spec_lib.CriticSpec(**config.critic), rollout,
        spec_lib.AdvantageSpec(**config.advantage))
    environment = builders.make_environment(config, None)
    collect.check(environment, rollout)
    if config.per_policy:
      builders._policy_configs(config, environment.roles)


def test_each_cell_comes_once_and_behind_those_it_needs():
  before = set()
  for cell in CELLS:
    assert cell.key not in before
    assert before.issuperset(cells_lib.needed(cell)), cell
    before.add(cell.key)


@pytest.mark.parametrize('scale, size', [('nano', '8'), ('8b', '4')])
def test_rows_that_are_at_grpo_itself_are_left_out(scale, size):
  sizes = {
      cell.path.split('/')[2] for cell in cells_lib.make_cells(scale, 1)
      if cell.path.startswith('group_size/')}
  assert sizes == {'2', '4', '8', '16'} - {size}


def test_what_is_compared_has_the_same_budget_and_tasks():
  for cell in CELLS:
    timed = cell.result == 'evals/timed.json'
    assert cell.overrides['evaluation.test'] == (
        'test[:50]' if timed else 'test')
    if cell.mode != 'train':
      assert not cell.budget_of
      continue
    table, task, row, seed = cell.path.split('/')
    first = {
        'writing': f'writing/{task}/magrpo/{seed}',
        'functions': f'functions/{task}/magrpo/{seed}',
        'problems': f'problems/{task}/at_grpo/{seed}',
    }.get(table, f'main/{task}/at_grpo/{seed}')
    assert cell.budget_of == ('' if cell.path == first else first)
    share = 1 / 3 if table in (*game_cells.SWITCHES, 'unchanged') else 1.0
    assert cell.budget_share == (0.5 if row.startswith('only_') else share)


def test_rows_are_compared_with_one_of_as_many_updates():
  cells = {cell.path: cell for cell in CELLS}
  for row, other in game_cells.SAME_STEPS.items():
    pairs = [
        (cell, cells[path.replace(f'/{row}/', f'/{other}/')])
        for path, cell in cells.items() if f'/{row}/' in path]
    assert pairs
    for cell, baseline in pairs:
      for name in ('rollout.num_tasks', 'train.updates_per_rollout'):
        assert cell.overrides.get(name) == baseline.overrides.get(name)
      assert cell.budget_of == baseline.budget_of


@pytest.mark.parametrize('only, also', [
    ('roles/plan_path/combined/*', [
        'main/plan_path/at_grpo', 'main/plan_path/at_grpo_per_role',
        'roles/plan_path/only_tool', 'roles/plan_path/only_planner']),
    ('rollout/plan_path/parallel_immediate/*', [
        'main/plan_path/at_grpo', 'unchanged/plan_path/at_grpo',
        'rollout/plan_path/tree_immediate']),
    ('writing/posts/sa_grpo/*', ['writing/posts/magrpo'])])
def test_cells_come_with_those_they_need(only, also, tmp_path):
  chosen = [cell for cell in CELLS if fnmatch.fnmatch(cell.path, only)]
  cells = cells_lib.with_needed(chosen, CELLS, tmp_path, {})
  assert cells == [cell for cell in CELLS if cell in cells]
  assert {cell.path.rpartition('/')[0] for cell in cells} == {
      only.removesuffix('/*'), *also}

  # What is there is not needed again, nor what only that needed.
  for cell in cells:
    if cell not in chosen:
      result = tmp_path / cell.path / cell.result
      result.parent.mkdir(parents=True, exist_ok=True)
      result.touch()
  assert cells_lib.with_needed(chosen, CELLS, tmp_path, {}) == chosen


@pytest.mark.parametrize('only, also', [
    ('main/plan_path/at_grpo/*', []),
    ('main/plan_path/mas_grpo/*', ['main/plan_path/mas_grpo']),
    # An export, and an evaluation of a checkpoint, need the training itself.
    ('roles/plan_path/swapped/*', [
        'main/plan_path/at_grpo_per_role', 'roles/plan_path/swapped'])])
def test_what_is_kept_is_not_run_again(only, also, tmp_path):
  kept = {
      cell.path: finished_runs.run(before=1, after=2) for cell in CELLS
      if cell.path.split('/')[2] in ('at_grpo', 'at_grpo_per_role')}
  chosen = [cell for cell in CELLS if fnmatch.fnmatch(cell.path, only)]
  cells = cells_lib.with_needed(chosen, CELLS, tmp_path, kept)
  assert {cell.path.rpartition('/')[0] for cell in cells} == set(also)


def test_a_pattern_that_fits_no_cell_is_named():
  chosen = cells_lib.choose(CELLS, ['agents/*/seed-0', 'turns/*'])
  assert {cell.path.split('/')[0] for cell in chosen} == {'agents', 'turns'}
  for patterns, named in ((['turns/*', 'agent/*'], "'agent/.'"), ([], "''")):
    with pytest.raises(errors.UserError, match=f'fits {named}.*dry_run'):
      cells_lib.choose(CELLS, patterns)


def test_all_cells_run_at_one_sandbox_level():
  cells = cells_lib.make_cells('nano', 1, 'kernel')
  assert len(cells) == len(cells_lib.make_cells('nano', 1))
  assert all(
      '--config.sandbox.level=kernel' in cell_lib.command(
          cell, pathlib.Path('out'), 1) for cell in cells)
