"""fit.py: which sizes are tried, and what is written of them."""

import types

import pytest

from atgrpo_jax import errors
from atgrpo_jax.compile_check import fit as fit_lib
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report as report_lib
from atgrpo_jax.compile_check import targets
from atgrpo_jax.compile_check import whole_step
from atgrpo_jax.distributed import chips
from configs import pod


@pytest.mark.parametrize('start, seconds, tried, found', [
    # Upwards, until one does not fit, or gains nothing.
    (2, {2: 8.0, 3: 6.0, 4: 5.0}, [2, 3, 4, 6], (4, 5.0)),
    (2, {2: 8.0, 3: 6.0, 4: 5.99, 6: 1.0}, [2, 3, 4], (3, 6.0)),
    # Downwards, until one fits.
    (5, {2: 8.0, 1: 9.0}, [4, 3, 2], (2, 8.0)),
    (3, {}, [3, 2, 1], None),
    (500, {128: 1.0}, [128], (128, 1.0))])
def test_climbs_to_the_fastest_that_fits(start, seconds, tried, found):
  sizes = []

  def try_size(size):
    sizes.append(size)
    return seconds.get(size)

  assert fit_lib.climb(start, try_size) == found
  assert sizes == tried


def _play(monkeypatch, most_groups, most_tokens):
  """A slice on which larger groups and smaller microbatches are faster."""
  chip = chips.TPUS['v5e']

  def check(config, devices, compiled):
    assert compiled is not None
    return [report_lib.Report(('a',), 0, 0, 0, tuple(
        lower.Program(
            name, arguments=0, peak=int(chip.memory * share), kept=0, flops=0,
            traffic=0)
        for name, share in (
            ('decode a', config.buckets.groups[-1] / most_groups),
            ('gradient a', config.buckets.microbatch_tokens / most_tokens))))]

  monkeypatch.setattr(targets, 'devices_of', lambda config: ([], chip))
  monkeypatch.setattr(
      lower, 'fit_to_devices', lambda config, devices, chip: config)
  mesh = types.SimpleNamespace(shape={'data': 2, 'fsdp': 1})
  monkeypatch.setattr(lower, 'build_policies', lambda config, devices: {
      'a': types.SimpleNamespace(mesh=mesh)})
  monkeypatch.setattr(report_lib, 'check', check)
  monkeypatch.setattr(
      whole_step, 'predict', lambda config, *args: types.SimpleNamespace(
          total=1000 / config.buckets.groups[-1]
          + config.buckets.microbatch_tokens / 1e4))


def _config():
  config = pod.get_config('topology=v5e:4x4')
  config.mesh.update(fsdp=4, tensor=4, pools='a=0:8,b=8:16')
  config.buckets.groups = (4, 16)
  config.buckets.microbatch_tokens = 3 * 24576  # Of the longest groups.
  return config


def test_the_fastest_is_written_as_overrides(tmp_path, monkeypatch, capsys):
  _play(monkeypatch, most_groups=50, most_tokens=2 * 24576)
  assert fit_lib.fit(_config(), tmp_path / 'fit.txt')
  # 64 groups, and 3 groups in a microbatch, do not fit.
  flags = ['--config.mesh.fsdp=4', '--config.mesh.tensor=4',
           '--config.mesh.pools=a=0:8,b=8:16', '--config.buckets.groups=(4,48)',
           '--config.buckets.microbatch_tokens=49152']
  assert (tmp_path / 'fit.txt').read_text().split() == flags
  printed = capsys.readouterr().out
  assert "'--config.buckets.groups=(4,48)'" in printed
  assert f'add $(cat {tmp_path}/fit.txt)' in printed


def test_nothing_is_written_where_nothing_fits(tmp_path, monkeypatch, capsys):
  _play(monkeypatch, most_groups=50, most_tokens=24575)
  assert not fit_lib.fit(_config(), tmp_path / 'fit.txt')
  assert not (tmp_path / 'fit.txt').exists()
  assert 'DOES NOT FIT with any' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['', 'none/fit.txt'])
def test_what_is_no_file_is_refused_before_anything_compiles(name, tmp_path):
  with pytest.raises(errors.UserError, match='should be a file in a folder'):
    fit_lib.fit(_config(), tmp_path / name)
