"""The chosen mesh and the estimate behind it."""

import dataclasses

import jax
import pytest

from atgrpo_jax import config as config_lib
from atgrpo_jax import model
from atgrpo_jax.distributed import fit
from configs import pod

GIB = 2**30
SHAPES = fit.Shapes(
    prompt=8192, completion=4096, group_size=4, microbatch_tokens=24576,
    groups=(4, 8, 16, 32, 64, 128))  # The defaults of configs/common.py.


def _learner(size, trained='all', **changes):
  config = model.ModelConfig(**pod.dimensions(size))
  return fit.Learner(config, trained, itemsize=2, **changes)


def _choose(learners, chip, num_devices, num_slices=1, **kwargs):
  return fit.choose(
      [fit.Pool(num_devices, num_slices, learners)], SHAPES,
      (fit.TPUS | fit.GPUS)[chip], **kwargs)


@pytest.mark.parametrize('size, expected', [
    # Reported by transformers for the models on the hub.
    ('0.6b', 596_049_920), ('1.7b', 1_720_574_976), ('4b', 4_022_468_096),
    ('8b', 8_190_735_360)])
def test_number_of_parameters(size, expected):
  config = model.ModelConfig(**pod.dimensions(size))
  assert expected == sum(
      x.size for x in jax.tree.leaves(model.param_shapes(config)))
  norms = config.hidden_size * (2 * config.num_layers + 1) + (
      2 * config.num_layers * config.head_dim)
  assert fit.count_params(config) == expected - norms


# GiB per device that the TPU compiler left free on 4x4 chips with fsdp=4,
# tensor=4 and 16 concurrent groups.
@pytest.mark.parametrize('size, trained, chip, spare', [
    ('1.7b', 'all', 'v5e', 9.57), ('1.7b', 'lora', 'v5e', 10.25),
    ('8b', 'all', 'v5e', 1.27), ('8b', 'lora', 'v6e', 20.27)])
def test_estimate_is_close_to_the_compiler(size, trained, chip, spare):
  needed = fit.estimate(
      [fit.Pool(16, 1, [_learner(size, trained)])], SHAPES, fsdp=4, tensor=4,
      num_groups=16, num_rows=64).num_bytes
  assert abs((fit.TPUS[chip].memory - needed) / GIB - spare) < 1.2


# `mesh` is (fsdp, tensor, groups, completions).
@pytest.mark.parametrize('sizes, chip, num_devices, mesh', [
    ('1.7b', 'v5e', 8, (1, 4, 16, 64)),
    ('8b', 'v5e', 64, (8, 4, 64, 256)),
    ('4b', 'v6e', 16, (4, 4, 64, 256)),
    ('1.7b', 'v5p', 8, (1, 4, 128, 512)),
    # Collectives would take longer than reading 0.6B parameters.
    ('0.6b', 'h100', 8, (1, 1, 128, 256)),
    ('1.7b', 'h100', 8, (1, 4, 64, 256)),
    ('0.6b', 'h100', 1, (1, 1, 16, 32)),
    ('1.7b 1.7b', 'v6e', 16, (2, 4, 64, 128)),
    ('8b 8b', 'h100', 8, (2, 4, 16, 64))])
def test_choices(sizes, chip, num_devices, mesh):
  chosen = _choose(
      [_learner(size) for size in sizes.split()], chip, num_devices)
  assert (
      chosen.fsdp, chosen.tensor, chosen.num_groups, chosen.num_rows) == mesh
  assert chosen.num_bytes < (fit.TPUS | fit.GPUS)[chip].memory


def test_given_sizes_are_kept_and_may_not_fit():
  learners = [_learner('1.7b')]
  assert _choose(learners, 'v5e', 16, fsdp=8).fsdp == 8
  assert _choose(learners, 'v5e', 16, tensor=2).tensor == 2
  with pytest.raises(fit.DoesNotFit, match='mesh.fsdp=1, mesh.tensor=1'):
    _choose(learners, 'v5e', 16, fsdp=1, tensor=1)
  with pytest.raises(fit.DoesNotFit, match='15.75 GiB'):
    _choose([_learner('8b')], 'v5e', 8)
  # Parameters are not sharded across slices.
  with pytest.raises(fit.DoesNotFit):
    _choose([_learner('4b')], 'v5e', 16, num_slices=4)


def test_adapters_over_one_model_hold_it_once():
  adapter = _learner('1.7b', 'lora', lora_rank=16)
  one, two = (
      _choose(learners, 'v6e', 16, fsdp=4, tensor=4) for learners in (
          [adapter], [adapter, dataclasses.replace(
              adapter, shares_model=True)]))
  assert one.num_groups == two.num_groups
  assert 0 < two.num_bytes - one.num_bytes < 0.01 * one.num_bytes


def test_config_gets_the_mesh_and_the_groups_that_fit(capsys):
  config = pod.get_config('size=1.7b,policies=per_role,topology=v6e:4x4')
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  policies = config_lib.read_policies(
      config, {'tool': 'tool', 'planner': 'planner'},
      lambda folder, thinking: (folder, dimensions, None))
  chosen = config_lib.choose_mesh(
      config, policies, [object()] * 16, fit.TPUS['v6e'])
  assert (chosen.mesh.fsdp, chosen.mesh.tensor) == (2, 4)
  assert chosen.buckets.groups == (4, 8, 16, 32, 64)
  assert chosen.buckets.rows == 128
  assert 'mesh.fsdp=2, mesh.tensor=4' in capsys.readouterr().out
  assert (config.mesh.fsdp, config.mesh.tensor) == (0, 0)
