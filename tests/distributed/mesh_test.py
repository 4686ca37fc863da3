"""Shardings of all leaves; meshes over slices and pools."""

import dataclasses

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec
import pytest

from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.model import config as config_lib
from tests import specs
from tests.rl import tiny

MESH = AbstractMesh((2, 2, 2), mesh_lib.AXES)
RULES = mesh_lib.param_rules(tied_head=True)


@pytest.fixture(scope='module')
def shapes():
  return model.param_shapes(tiny.CONFIG)


def _specs(tree, rules=RULES, mesh=MESH):
  return jax.tree.map(
      lambda x: x.spec, mesh_lib.tree_shardings(tree, mesh, rules))


def test_moments_are_sharded_like_parameters(shapes):
  spec = specs.optimizer(learning_rate=1.0)
  placed = _specs(jax.eval_shape(
      lambda p: policy_lib.TrainState.create(p, spec), shapes))
  assert placed.params['embedding'] == PartitionSpec('tensor', 'fsdp')
  moments = placed.opt_state.inner_state[1][0]
  assert moments.mu == moments.nu == placed.params == _specs(shapes)
  assert moments.count == placed.num_updates == PartitionSpec()


def test_decoding_gathers_no_parameters(shapes):
  specs = jax.tree.leaves(_specs(shapes, mesh_lib.decoding_rules(True)))
  assert not any('fsdp' in spec for spec in specs)
  assert any('tensor' in spec for spec in specs)


@pytest.mark.parametrize('model_type', config_lib.FAMILIES)
def test_rules_cover_all_families(model_type):
  config = dataclasses.replace(tiny.CONFIG, model_type=model_type)
  attention = _specs(model.param_shapes(config))['layers']['attention']
  assert ('bias' in attention['q']) == (model_type == 'qwen2')


def test_leaves_and_rules_match_one_to_one(shapes):
  with pytest.raises(ValueError, match=r"match no leaf: \['head'\]"):
    _specs(shapes, mesh_lib.param_rules(tied_head=False))
  with pytest.raises(ValueError, match='head matches 0 sharding rules'):
    _specs(shapes | {'head': shapes['embedding']})
  with pytest.raises(
      errors.UserError, match='mesh.tensor=3 .* 32 of embedding'):
    _specs(shapes, mesh=AbstractMesh((1, 1, 3), mesh_lib.AXES))


@dataclasses.dataclass(frozen=True)
class _Device:
  """The attributes that jax reads to build a mesh."""

  id: int
  slice_index: int
  platform: str
  coords: tuple[int, int, int]
  process_index: int = 0
  device_kind: str = 'of some kind'
  core_on_chip: int = 0


def _slices(num_slices, size, platform='tpu'):
  """Devices that are not ordered by slice; each slice is a process."""
  return [
      _Device(index * size + i, index, platform, (i % 2, i // 2, 0), index)
      for i in range(size) for index in range(num_slices)]


@pytest.mark.parametrize('sizes, words', [
    ({'fsdp': 3}, 'mesh.fsdp=3 times mesh.tensor=1 does not divide the 8'),
    ({'pools': (('a', 0, 4),)}, 'mesh.pools='),
    ({'pools': (('a', 0, 5), ('b', 4, 8))}, 'mesh.pools=.*disjoint'),
    ({'pools': (('a', 0, 3), ('b', 3, 8))}, 'mesh.pools: .* 3 chips'),
    ({'fsdp': 8}, 'devices of each slice, 4, 4')])
def test_impossible_meshes_are_refused(sizes, words):
  with pytest.raises(errors.UserError, match=words):
    mesh_lib.make_meshes(['a', 'b'], _slices(2, 4), **sizes)


@pytest.mark.parametrize('platform, num_slices, sizes', [
    ('tpu', 3, {'fsdp': 2}), ('gpu', 2, {})])
def test_only_data_is_split_over_slices(platform, num_slices, sizes):
  devices = _slices(num_slices, 4, platform)
  mesh = mesh_lib.make_meshes(['a'], devices, **sizes)['a']
  inner = mesh.shape['data'] // num_slices, *mesh.devices.shape[1:]
  expected = mesh_utils.create_hybrid_device_mesh(
      inner, (num_slices, 1, 1), devices)
  assert mesh.devices.tolist() == expected.tolist()


def test_pools_number_devices_slice_by_slice():
  meshes = mesh_lib.make_meshes(
      ['a', 'b', 'c'], _slices(2, 4), fsdp=2,
      pools=(('a', 0, 2), ('b', 2, 8), ('c', 0, 2)))
  assert meshes['a'] is meshes['c']
  assert [
      [row[0, 0].slice_index for row in meshes[name].devices]
      for name in 'ab'] == [[0], [0, 1, 1]]


def test_gpus_share_parameters_across_nodes():
  devices = mesh_lib.make_meshes(
      ['a'], _slices(2, 4, 'gpu'), fsdp=8)['a'].devices
  assert [device.slice_index for device in devices.flat] == [0] * 4 + [1] * 4
