"""device_fit.py: the mesh that is chosen, and the estimate that decides."""

import contextlib
import dataclasses
import pathlib
import re

import jax
import pytest

from atgrpo_jax import builders
from atgrpo_jax import errors
from atgrpo_jax import main as main_lib
from atgrpo_jax import meshes
from atgrpo_jax import model
from atgrpo_jax.compile_check import targets
from atgrpo_jax.distributed import chips
from atgrpo_jax.learner import device_fit
from atgrpo_jax.learner import policy as policy_lib
from configs import common
from configs import plan_path
from configs import pod

GIB = 2**30
SHAPES = device_fit.Shapes(
    prompt=8192, completion=4096, group_size=4, microbatch_tokens=24576)
GROUPS = 4, 8, 16, 32, 64, 128  # Of configs/common.py.


def _load(size, trained='all', **changes):
  """Qwen3 of a size with its optimiser, or frozen with adapters of no size."""
  config = model.ModelConfig(
      **pod.get_config(f'size={size}').compile_check.dimensions)
  num_bytes = (12 if trained == 'all' else 2) * device_fit.num_params(config)
  return device_fit.Load(config, num_bytes, 2, trained=trained, **{
      'position_bytes': model.position_bytes(config, 'bfloat16'),
      'samples': True, **changes})


def _choose(size, chip, num_devices, *, num_loads=1, **kwargs):
  return device_fit.choose(
      [device_fit.Pool(num_devices, [_load(size)] * num_loads)], SHAPES, GROUPS,
      chips.TPUS[chip], **kwargs)


@pytest.mark.parametrize('size', common.SIZES[1:])
def test_parameters_are_those_of_the_model(size):
  config = _load(size).config
  shapes = model.param_shapes(config)
  norms = (2 * config.num_layers + 1) * config.hidden_size + (
      2 * config.num_layers * config.head_dim)
  assert device_fit.num_params(config) + norms == sum(
      x.size for x in jax.tree.leaves(shapes))


# What the TPU's compiler left of each chip of 4x4 with fsdp=4 and tensor=4, and
# four groups in each of four shards, when it was asked.
@pytest.mark.parametrize('size, trained, chip, left', [
    ('1.7b', 'all', 'v5e', 9.57), ('1.7b', 'lora', 'v5e', 10.25),
    ('1.7b', 'all', 'v6e', 25.07), ('8b', 'all', 'v5e', 1.27),
    ('8b', 'lora', 'v5e', 4.77), ('8b', 'all', 'v6e', 16.58),
    ('8b', 'lora', 'v6e', 20.27)])
def test_the_estimate_is_near_what_the_compiler_says(
    size, trained, chip, left):
  fit = device_fit._fit(
      [device_fit.Pool(16, [_load(size, trained)])], SHAPES, chips.TPUS[chip],
      fsdp=4, tensor=4, num_groups=16)
  assert abs((chips.TPUS[chip].memory - fit.num_bytes) / GIB - left) < 1.2


# The examples of the launch scripts' help, and others.
@pytest.mark.parametrize('size, chip, num_devices, mesh', [
    ('1.7b', 'v5e', 8, (1, 4, 16)), ('8b', 'v5e', 64, (8, 4, 64)),
    ('0.6b', 'v5e', 8, (1, 4, 16)), ('1.7b', 'v5p', 8, (1, 4, 128))])
def test_the_mesh_that_is_chosen(size, chip, num_devices, mesh):
  fit = _choose(size, chip, num_devices)
  assert (fit.fsdp, fit.tensor, fit.num_groups) == mesh
  assert fit.num_bytes < chips.TPUS[chip].memory


def test_what_is_given_stays():
  assert _choose('1.7b', 'v5e', 16, fsdp=8).fsdp == 8
  assert _choose('1.7b', 'v5e', 16, tensor=2).tensor == 2
  with pytest.raises(errors.UserError, match='tensor=3 divides 16'):
    _choose('1.7b', 'v5e', 16, tensor=3)


def test_parameters_stay_within_a_slice():
  assert _choose('4b', 'v5e', 16).num_groups
  with pytest.raises(errors.UserError, match='does not fit 16 devices'):
    _choose('4b', 'v5e', 16, num_slices=4)


def test_policies_of_one_pool_add_up():
  one = _choose('1.7b', 'v6e', 16, fsdp=4, tensor=4)
  two = _choose('1.7b', 'v6e', 16, num_loads=2, fsdp=4, tensor=4)
  assert two.num_groups < one.num_groups
  _, frozen = [_load('1.7b'), _load('1.7b', 'none', samples=False)]
  again = device_fit.choose(
      [device_fit.Pool(16, [_load('1.7b'), frozen])], SHAPES, GROUPS,
      chips.TPUS['v6e'], fsdp=4, tensor=4)
  assert again.sampling - one.sampling == frozen.num_bytes / 16


def test_what_cannot_fit_is_refused_with_what_would():
  with pytest.raises(errors.UserError) as raised:
    _choose('8b', 'v5e', 8)
  words = str(raised.value)
  assert 'does not fit 8 devices of 15.75 GiB' in words
  assert re.search(r'takes about \d\d\.\d\d GiB of each, for ', words)
  assert 'It would fit 16 devices with mesh.fsdp=4 and mesh.tensor=4' in words


def test_another_mesh_is_named_before_more_devices():
  with pytest.raises(errors.UserError, match='would fit 16 devices with mesh'):
    _choose('1.7b', 'v5e', 16, fsdp=1, tensor=1)


def test_what_no_number_of_devices_has_room_for():
  with pytest.raises(errors.UserError, match='64 times.*fewer buckets.groups'):
    device_fit.choose(
        [device_fit.Pool(8, [_load('1.7b')])], SHAPES, (10**6,),
        chips.TPUS['v5e'])


@pytest.mark.parametrize('pools, words', [
    ('tool=0:7,planner=7:16', 'rectangle of chips'),
    ('tool=0:8,planner=8:16', 'tool.*2 of 4 processes')])
def test_pools_that_no_run_has_are_refused(pools, words):
  config, names, devices, _, read_model = _on_slice(
      '1.7b', 'v5e:4x4', 'per_role', **{
          'mesh.fsdp': 1, 'mesh.tensor': 1, 'mesh.pools': pools})
  hosts = [
      dataclasses.replace(device, process_index=device.id // 4)
      for device in devices]
  with pytest.raises(errors.UserError, match=words):
    meshes.check_pools({
        name: policy.mesh for name, policy in builders.build_policies(
            config, names, hosts, read_model).items()}, hosts)


def _fit_nano(memory, read_model=builders.read_model, **changes):
  config = plan_path.get_config('size=nano')
  config.update_from_flattened_dict(
      {'mesh.fsdp': 0, 'mesh.tensor': 0, **changes})
  chip = memory and dataclasses.replace(chips.TPUS['v5e'], memory=memory)
  return config, meshes.fit_to_devices(
      config, ['shared'], jax.devices()[:1], chip, read_model)


def test_a_run_has_the_groups_that_fit(capsys):
  config, fitting = _fit_nano(8 * GIB)
  assert (fitting.mesh.fsdp, fitting.mesh.tensor) == (1, 1)
  assert fitting.buckets.groups == config.buckets.groups
  assert (config.mesh.fsdp, config.mesh.tensor) == (0, 0)  # Of any machine.
  said = capsys.readouterr().out
  assert 'mesh.fsdp=1 and mesh.tensor=1: of the 8.00 GiB' in said
  *_, most = config.buckets.groups
  _, fitting = _fit_nano(8 * GIB, **{'buckets.groups': (most, 1 << 20)})
  assert fitting.buckets.groups == (most,)
  assert '(buckets.groups=[1048576] would take' in capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class _Chip:
  """What jax asks of a device to build a mesh."""

  id: int
  coords: tuple[int, int, int]
  platform: str = 'tpu'
  device_kind: str = 'of some kind'
  core_on_chip: int = 0
  process_index: int = 0


def _of_run(config, number, chip, **each):
  """What `meshes` asks of a run of two roles on so many devices."""
  dimensions = model.ModelConfig(**config.compile_check.dimensions)
  return (
      config, ['shared'] if config.policies == 'shared' else [
          'tool', 'planner'],
      [_Chip(i, (i % 4, i // 4, 0), **each) for i in range(number)], chip,
      lambda folder, thinking: policy_lib.Pretrained(
          pathlib.Path(folder), dimensions, tokenizer=None))


def _on_slice(size, topology, policies, **changes):
  """The same for `pod` on a slice of 16 chips."""
  config = pod.get_config(
      f'size={size},policies={policies},topology={topology}')
  config.update_from_flattened_dict({
      'mesh.fsdp': 0, 'mesh.tensor': 0, 'mesh.pools': 'auto',
      'buckets.groups': (4, 8, 16, 32, 64), **changes})
  return _of_run(config, 16, chips.TPUS[topology.partition(':')[0]])


def on_chips(config, number, chip):
  """The config with the mesh that it takes of its slice; None for none."""
  each = (
      {'platform': 'gpu', 'device_kind': 'NVIDIA H100 80GB HBM3'}
      if targets.is_gpu(config) else {})
  config, names, devices, *more = _of_run(config, number, chip, **each)
  of_host = 8 if config.compile_check.topology.endswith((':2x4', ':8')) else 4
  hosts = [
      dataclasses.replace(device, process_index=device.id // of_host)
      for device in devices]
  with contextlib.suppress(device_fit.DoesNotFit):
    return meshes.fit_to_devices(config, names, hosts, *more)


def _fit_pools(*args, **changes):
  return meshes.fit_to_devices(*_on_slice(*args, **changes)).mesh.pools


@pytest.mark.parametrize('size, topology, policies, pools, words', [
    # Two models would be read for each token of either, by half as many groups.
    ('1.7b', 'v6e:4x4', 'per_role', 'tool=0:8,planner=8:16', '1.48 times'),
    # Both adapters are sampled at once, over one model.
    ('1.7b', 'v6e:4x4', 'lora_per_role', '', '1.00 times'),
    ('1.7b', 'v6e:4x4', 'shared', '', None)])
def test_pools_are_compared(size, topology, policies, pools, words, capsys):
  assert _fit_pools(size, topology, policies) == pools
  found = re.findall(r'\d\.\d\d times', capsys.readouterr().out)
  assert found == ([words] if words else [])


def test_pools_that_do_not_fit_are_not_taken(capsys):
  with pytest.raises(errors.UserError, match='does not fit 16 devices'):
    _fit_pools('8b', 'v5e:4x4', 'per_role')
  # fsdp=16 does not divide half of the devices.
  assert _fit_pools(
      '1.7b', 'v5p:2x2x4', 'per_role', **{
          'mesh.fsdp': 16, 'mesh.tensor': 1}) == ''
  assert 'with devices of their own would not fit' in capsys.readouterr().out


@pytest.mark.parametrize('size', common.SIZES[1:])
@pytest.mark.parametrize('policies', ['shared', 'lora_per_role', 'per_role'])
def test_a_node_with_eight_h100_has_room(size, policies):
  fitting = meshes.fit_to_devices(*_of_run(
      pod.get_config(f'size={size},policies={policies}'), 8,
      chips.GPUS['h100'], platform='gpu', device_kind='NVIDIA H100 80GB HBM3'))
  assert fitting.buckets.groups[-1] >= 16


@pytest.mark.parametrize('out', [None, 'sizes.txt'])
def test_a_check_says_so_before_anything_is_compiled(
    out, tmp_path, monkeypatch, capsys):
  config, _, devices, chip, _ = _on_slice('8b', 'v5e:4x4', 'per_role')
  monkeypatch.setattr(
      targets, 'devices_of', lambda config: (devices, chip))
  assert not main_lib.fits_slice(config, out and tmp_path / out)
  assert 'DOES NOT FIT: The run does not fit 16 devices of 15.75' in (
      capsys.readouterr().out)


def test_settings_that_should_be_faster():
  args = _on_slice('1.7b', 'v6e:4x4', 'per_role', **{
      'mesh.fsdp': 4, 'mesh.tensor': 4, 'mesh.pools': '',
      'buckets.groups': (16,)})
  assert meshes.faster_settings(*args) == pytest.approx({
      '--config.rollout.kv_cache_dtype=int8 --config.buckets.groups=(96,)':
          4.15,
      '--config.buckets.groups=(48,)': 2.10,
      '--config.mesh.fsdp=0 --config.mesh.tensor=0 --config.mesh.pools=auto':
          1.65}, abs=0.01)


def test_a_run_that_cannot_fit_is_refused_before_weights_are_read():
  with pytest.raises(errors.UserError, match='does not fit 1 device of 0.00'):
    _fit_nano(1 << 20)


def test_devices_of_a_cpu_share_its_memory(capsys):
  _, fitting = _fit_nano(None)
  assert (fitting.mesh.fsdp, fitting.mesh.tensor) == (1, 1)
  assert not capsys.readouterr().out


def test_a_mesh_that_is_given_is_left_alone():
  config, fitting = _fit_nano(1, **{'mesh.fsdp': 1, 'mesh.tensor': 1})
  assert fitting is config


def test_without_a_chip_all_policies_have_all_devices():
  _, fitting = _fit_nano(None, **{'mesh.pools': 'auto'})
  assert fitting.mesh.pools == ''
