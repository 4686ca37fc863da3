"""Depot's measures are right, and its records follow from its jobs."""

import numpy as np
import pytest

from atgrpo_jax import api
from configs import depot as depot_config
from paper import depot
from paper import experiments
from paper import records
from paper import run
from tests import checkout

CURVE = {'choices': [0, 100, 300], 'returns': [0.2, 0.4, 0.8]}
STORED = records.read(checkout.ROOT / 'paper/results/nano').curves


@pytest.mark.parametrize('num_choices, value, area', [
    (50, 0.3, 0.25), (100, 0.4, 0.3), (200, 0.6, (0.3 + 0.5) / 2),
    (300, 0.8, (0.3 + 2 * 0.6) / 3),
    # The last return holds until the budget is used.
    (400, 0.8, (0.3 + 2 * 0.6 + 0.8) / 4)])
def test_returns_are_interpolated_and_averaged(num_choices, value, area):
  assert depot.return_at(CURVE, num_choices) == pytest.approx(value)
  assert depot.area(CURVE, num_choices) == pytest.approx(area)


def test_choices_until_a_return():
  found = [depot.choices_until(CURVE, x) for x in (0.4, 0.41, 0.9)]
  np.testing.assert_array_equal(found, [100, 300, np.nan])


def test_learning_rates_are_those_of_the_search():
  for reward, systems in depot.SEARCHED_SYSTEMS.items():
    for system in systems.values():
      config = depot_config.get_config(f'system={system},reward={reward}')
      if areas := depot.search_areas(STORED, reward, system):
        best = max(areas, key=areas.__getitem__)
        assert config.optimizer.learning_rate == float(best), (reward, system)
  assert depot.search_areas(STORED, 'mixed', 'at_grpo')
  # Without one of its runs, a search is incomplete.
  fewer = dict(STORED)
  del fewer[f'depot_search/mixed/at_grpo_1e-3/seed-{depot.SEARCH_SEEDS[0]}']
  assert not depot.search_areas(fewer, 'mixed', 'at_grpo')


def test_records_start_from_a_base_model_with_the_learning_rate():
  for path, curve in STORED.items():
    table, reward, row, _ = path.split('/')
    if table == 'depot':
      config = depot_config.get_config(f'system={row},reward={reward}')
      assert curve['learning_rate'] == config.optimizer.learning_rate
    if 'num_updates' in curve:  # The others are teams of trained policies.
      # No model knows more than the format. The maximum of `boost` is larger,
      # and `chain` has four items instead of eight.
      scale = {'boost': 10 / 6, 'chain': 0.5}.get(reward, 1)
      assert 0.1 < curve['returns'][0] * scale < 0.22


def test_a_cell_is_reproduced(tmp_path):
  """The first steps of a training, from the base model in models/."""
  path = 'depot_learning_rate/mixed/8e-3/seed-0'
  job, = run.choose(experiments.make_jobs('nano', 1), [path])
  config = depot_config.get_config(job.config.partition(':')[2])
  config.update_from_flattened_dict(job.overrides | {
      'model.folder': str(checkout.ROOT / 'models/depot'),
      'train.completion_tokens': 900, 'evaluation.test': 'test[:2]'})
  with api.Run(config, tmp_path / path) as training:
    training.train()
  curve = records.read_workdirs(tmp_path).curves[path]
  recorded = STORED[path]
  # Before training, and at the first validation.
  assert curve['choices'][:2] == recorded['choices'][:2] == [0, 768]
  # Another processor may round differently.
  np.testing.assert_allclose(
      curve['returns'][:2], recorded['returns'][:2], atol=0.05)
