"""checkpoints.py: a saved state comes back bit for bit, or not at all."""

import io
import logging
import pathlib
import re
import shutil
import subprocess
import sys

from absl import logging as absl_logging
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import checkpoints
from tests import checkout


def _policy(seed):
  """Incompressible parameters: random bits, all of them finite numbers."""
  key = jax.random.key(seed)
  # Clearing one bit of the exponent excludes NaN and infinity.
  bits = jax.random.bits(key, (64, 48), jnp.uint32) & ~jnp.uint32(1 << 23)
  return {'count': jnp.uint32(seed), 'params': {
      'w': jax.lax.bitcast_convert_type(bits, jnp.float32),
      'layers': [jax.random.normal(key, (3, 5)).astype(jnp.bfloat16)],
      'mask': jax.random.bernoulli(key, 0.5, (7,))}}


def _state(seed):
  return {'planner': _policy(seed), 'coder': _policy(seed + 1000)}


def _abstract(state):
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      state)


def _bytes(tree):
  return jax.tree.map(lambda x: np.asarray(x).tobytes(), tree)


def _assert_same(restored, state):
  assert _bytes(restored) == _bytes(state)
  for x, y in zip(
      jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
    assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)


def _names(directory):
  return sorted(path.name for path in pathlib.Path(directory).iterdir())


def _flip(path, bit):
  data = bytearray(path.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(data)


def _data_file(step):
  """The file with the bytes of the largest leaves."""
  return max(step.rglob('d/*'), key=lambda path: path.stat().st_size)


@pytest.fixture(scope='module')
def steps_5_and_10(tmp_path_factory):
  """Read-only; `run` copies it."""
  directory = tmp_path_factory.mktemp('saved')
  saved = checkpoints.Checkpoints(directory)
  for step in (5, 10):
    saved.save(step, _state(step), {'cursor': step})
  saved.close()
  return directory


@pytest.fixture
def run(steps_5_and_10, tmp_path):
  """A directory with steps 5 and 10, for the test to damage."""
  return shutil.copytree(steps_5_and_10, tmp_path / 'run')


def _params(state):
  return {name: policy['params'] for name, policy in state.items()}


def test_part_is_restored_and_verified_without_the_rest(run, caplog):
  saved = checkpoints.Checkpoints(run)
  step, params, meta = saved.restore(_abstract(_state(0)), part=_params)
  assert (step, meta) == (10, {'cursor': 10})
  _assert_same(params, _params(_state(10)))
  path = _data_file(run / '10')
  _flip(path, 4 * path.stat().st_size)  # In the middle: planner/params/w.
  step, params, _ = saved.restore(_state(0), part=_params)
  assert step == 5
  _assert_same(params, _params(_state(5)))
  assert '/params/w differs; using step 5' in caplog.text
  assert saved.restore(
      _state(0), part=lambda state: state['planner']['count']).step == 10


def test_state_may_be_donated_during_the_save(tmp_path):
  state = {'shared': {'w': jnp.arange(3_000_000, dtype=jnp.float32)}}
  expected = _bytes(state)
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(1, state, {})
  add_one = jax.jit(
      lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
  jax.block_until_ready(add_one(state))
  template = {'shared': {'w': jnp.zeros(3_000_000)}}
  assert _bytes(saved.restore(template).state) == expected
  saved.close()


def test_newest_steps_and_the_best_are_kept(tmp_path):
  def state(step):
    return {'w': jnp.full(3, step)}

  # Each next process reads from the checkpoint which step is the best.
  for steps, best_steps, kept in (
      ([1, 2, 3], [1], ['1', '2', '3']), ([4], [], ['1', '3', '4']),
      ([5, 6, 7, 8, 9, 10], [5, 7], ['10', '7', '9'])):
    saved = checkpoints.Checkpoints(tmp_path)
    saved.restore(state(0))
    for step in steps:
      saved.save(step, state(step), {}, is_best=step in best_steps)
    saved.close()
    assert _names(tmp_path) == kept
  assert saved.find('best') == 7
  _assert_same(saved.restore(state(0), step=7).state, state(7))


def _damages(path):
  """Yields (description, function of a path) for one file."""
  size = path.stat().st_size
  for bit in (0, 8 * size // 3, 8 * size - 1):
    yield f'bit {bit}', lambda p, bit=bit: _flip(p, bit)
  yield 'cut', lambda p: p.write_bytes(p.read_bytes()[: size // 2])
  yield 'deleted', pathlib.Path.unlink
  yield 'valid JSON', lambda p: p.write_bytes(
      p.read_bytes().replace(b'"cursor": 10', b'"cursor": 11'))


def check_damages(source, run):
  """Damages each file of a copy of `source` in each way."""
  warnings = io.StringIO()
  absl_logging.get_absl_logger().addHandler(logging.StreamHandler(warnings))
  source, run, detected = pathlib.Path(source), pathlib.Path(run), []
  expected = {
      step: (_bytes(_state(step)), {'cursor': step}) for step in (5, 10)}
  template = _state(0)
  for path in filter(pathlib.Path.is_file, sorted(source.glob('10/**/*'))):
    file = path.relative_to(source)
    for what, damage in _damages(path):
      shutil.rmtree(run, ignore_errors=True)
      shutil.copytree(source, run)
      damage(run / file)
      warnings.seek(0)
      warnings.truncate()
      step, state, meta = checkpoints.Checkpoints(run).restore(template)
      assert (_bytes(state), meta) == expected[step], (file, what)
      if step == 5:
        detected.append(str(file))
      assert re.fullmatch(
          'checkpoint step 10: .*; using step 5; .*10.corrupt\n'
          if step == 5 else '', warnings.getvalue()), (file, what)
  # orbax alone loads some of these flipped bits as wrong numbers. zstd has a
  # few unused bits, so not every flip does harm.
  data_file = str(_data_file(source / '10').relative_to(source))
  assert detected.count(data_file) >= 4
  assert detected.count('10/meta/metadata') == 6


def test_damage_to_any_file_is_detected_or_harmless(steps_5_and_10, tmp_path):
  # In a subprocess: after a failed read orbax abandons threads that fill
  # stderr until the process ends.
  child = subprocess.run(
      [sys.executable, '-m', 'tests.io.checkpoints_test', steps_5_and_10,
       tmp_path / 'run'], cwd=checkout.ROOT, capture_output=True, text=True)
  assert child.returncode == 0, child.stderr


def _rename_leaf(run):
  path = run / '10/state/_METADATA'
  path.write_bytes(path.read_bytes().replace(
      b'"planner/params/w"', b'"planner/params/v"'))


@pytest.mark.parametrize('damage, step, message', [
    # orbax alone would return the template of the missing leaf.
    (_rename_leaf, 10, '.*planner/params/w is missing'),
    (lambda run: (run / '10').rename(run / '12'), 12,
     'it is the checkpoint of step 10')])
def test_wrong_names_are_damage(damage, step, message, run, caplog):
  damage(run)
  saved, template = checkpoints.Checkpoints(run), _abstract(_state(0))
  assert saved.restore(template).step == 5
  assert re.search(f'step {step}: {message}; using step 5', caplog.text)
  with pytest.raises(errors.UserError, match=f'step {step}: {message}'):
    saved.restore(template, step=step)


def test_no_readable_step_is_an_error(run):
  for step in ('5', '10'):
    _flip(run / step / 'meta/metadata', 100)
  with pytest.raises(errors.UserError) as error:
    checkpoints.Checkpoints(run).restore(_state(0))
  assert 'step 5: ' in str(error.value) and 'step 10: ' in str(error.value)
  assert _names(run) == ['10', '5']
  shutil.rmtree(run / '5')
  (run / '10').rename(run / '10.corrupt')
  with pytest.raises(errors.UserError, match='10.corrupt: was found damaged'):
    checkpoints.Checkpoints(run).restore(_state(0))


def test_leaves_of_another_model_are_listed(run):
  template = _state(0)
  params = template['coder']['params']
  params['w'] = jnp.zeros((64, 49))
  params['layers'] = [params['layers'][0].astype(jnp.float32), jnp.zeros(2)]
  del params['mask']
  with pytest.raises(errors.UserError) as error:
    checkpoints.Checkpoints(run).restore(template, part=_params)
  first, *lines = str(error.value).splitlines()
  assert f'{run}/10 ' in first and '4 leaves differ:' in first
  assert [line.strip() for line in lines] == [
      f'coder/params/{name}: {in_file} in the checkpoint, {in_model} in the '
      'model' for name, in_file, in_model in (
          ('layers/0', '[3, 5] bfloat16', '[3, 5] float32'),
          ('mask', '[7] bool', 'missing'),
          ('w', '[64, 48] float32', '[64, 49] float32'),
          ('layers/1', 'missing', '[2] float32'))]


def test_nonfinite_state_is_not_saved(run):
  saved = checkpoints.Checkpoints(run)
  for value in (-np.inf, np.nan):
    state = _state(11)
    params = state['planner']['params']
    params['w'] = params['w'].at[3, 4].set(value)
    with pytest.raises(
        errors.UserError, match='Step 11 .* planner/params/w'):
      saved.save(11, state, {})
  saved.close()
  assert _names(run) == ['10', '5']


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8', 'bool'])
def test_digest_changes_with_every_bit_and_every_swap(dtype):
  num_bits = 1 if dtype == 'bool' else 8 * jnp.dtype(dtype).itemsize
  unsigned = np.dtype(f'uint{max(num_bits, 8)}')
  words = np.random.default_rng(0).choice(
      1 << min(num_bits, 16), size=12, replace=num_bits == 1).astype(unsigned)
  versions = [words]
  for i in range(12):
    for bit in range(num_bits):
      versions.append(words.copy())
      versions[-1][i] ^= unsigned.type(1 << bit)
    for j in range(i):
      if words[i] != words[j]:
        versions.append(words.copy())
        versions[-1][[i, j]] = words[[j, i]]
  arrays = np.stack(versions).view(jnp.dtype(dtype))
  *sums, _ = jax.vmap(checkpoints.digest_and_check)(jnp.asarray(arrays))
  for lane in sums:
    assert len(np.unique(lane)) == len(versions) > 12 * num_bits


if __name__ == '__main__':
  check_damages(*sys.argv[1:])
