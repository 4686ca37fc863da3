"""checkpoints.py: what was saved comes back bit for bit, or not at all."""

import io
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from absl import logging as absl_logging
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import errors
from atgrpo_jax.io import checkpoints
from atgrpo_jax.io import finite
from atgrpo_jax.learner import policy as policy_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _policy(seed):
  """Random bits of finite numbers in `w`, and nothing to compress."""
  key = jax.random.key(seed)
  # No exponent has all of its bits.
  bits = jax.random.bits(key, (64, 48), jnp.uint32) & ~jnp.uint32(1 << 23)
  params = {
      'w': jax.lax.bitcast_convert_type(bits, jnp.float32),
      'layers': [jax.random.normal(key, (3, 5)).astype(jnp.bfloat16)],
      'mask': jax.random.bernoulli(key, 0.5, (7,)),
  }
  optimizer = optax.adamw(1e-3, mu_dtype=jnp.bfloat16)
  return policy_lib.TrainState(
      params, optimizer.init(params['layers']), jnp.uint32(seed))


def _state(seed):
  return {'planner': _policy(seed), 'coder': _policy(seed + 1000)}


def _bytes(tree):
  return jax.tree.map(lambda x: np.asarray(x).tobytes(), tree)


def _assert_same(restored, state):
  jax.tree.map(lambda x, y: None, restored, state)  # The same tree.
  assert _bytes(restored) == _bytes(state)
  for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(state)):
    assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)


def _start(function, *args, **env):
  """Runs a function of this file in a process of its own."""
  code = 'import runpy, sys; _, test, function, *args = sys.argv; '
  code += 'runpy.run_path(test)[function](*args)'
  return subprocess.Popen(
      [sys.executable, '-c', code, __file__, function, *args], cwd=ROOT,
      env=os.environ | env, stderr=subprocess.PIPE, text=True)


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
  """Never written to: tests copy it."""
  directory = tmp_path_factory.mktemp('saved')
  saved = checkpoints.Checkpoints(directory)
  for step in (5, 10):
    saved.save(step, _state(step), {'cursor': step})
  saved.close()
  return directory


@pytest.fixture
def run(steps_5_and_10, tmp_path):
  """A directory with steps 5 and 10, to be damaged."""
  return shutil.copytree(steps_5_and_10, tmp_path / 'run')


# What is saved comes back.


def test_round_trip(tmp_path):
  meta = {'cursor': {'epoch': 1, 'index': 7}, 'best': 0.1, 'tokens': 2**40}
  directory = tmp_path / 'new' / 'run'
  saved = checkpoints.Checkpoints(directory)
  assert saved.restore(_state(0)) is None
  saved.save(3, _state(3), meta)
  saved.close()
  abstract = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      _state(0))
  for template in (_state(0), abstract):
    restored = checkpoints.Checkpoints(directory).restore(template)
    assert (restored.step, restored.meta) == (3, meta)
    _assert_same(restored.state, _state(3))


def _params(state):
  return {name: policy.params for name, policy in state.items()}


def test_a_part_is_restored_alone(run, caplog):
  saved = checkpoints.Checkpoints(run)
  step, params, meta = saved.restore(_state(0), part=_params)
  assert (step, meta) == (10, {'cursor': 10})
  _assert_same(params, _params(_state(10)))
  # And is checked for damage. The largest leaf is one of the parameters.
  path = _data_file(run / '10')
  _flip(path, 4 * path.stat().st_size)
  step, params, _ = saved.restore(_state(0), part=_params)
  assert step == 5
  _assert_same(params, _params(_state(5)))
  assert '/params/w differs; using step 5' in caplog.text
  # What is not read cannot be told to be damaged.
  assert saved.restore(
      _state(0), part=lambda state: state['planner'].opt_state).step == 10


def test_state_may_be_donated_while_it_is_written(tmp_path):
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
  saved = checkpoints.Checkpoints(tmp_path, max_to_keep=2)
  for step in (1, 2, 3):
    saved.save(step, _state(step), {}, is_best=step == 1)
  saved.close()
  assert _names(tmp_path) == ['1', '2', '3']

  # The next process still knows which step is the best.
  saved = checkpoints.Checkpoints(tmp_path, max_to_keep=2)
  assert saved.restore(_state(0)).step == 3
  saved.save(4, _state(4), {})
  saved.wait()
  assert _names(tmp_path) == ['1', '3', '4']
  _assert_same(saved.restore(_state(0), step=1).state, _state(1))
  for step in (5, 6, 7):
    saved.save(step, _state(step), {}, is_best=step == 5)
  # Or it is known later.
  saved.note_best(7)
  for step in (8, 9, 10):
    saved.save(step, _state(step), {})
  saved.close()
  assert _names(tmp_path) == ['10', '7', '9']


# Damage.


def _damages(path):
  """(what is done, how to do it) for one file."""
  size = path.stat().st_size
  for bit in (0, 8 * size // 3, 8 * size - 1):
    yield f'bit {bit}', lambda p, bit=bit: _flip(p, bit)
  yield 'cut', lambda p: p.write_bytes(p.read_bytes()[: size // 2])
  yield 'emptied', lambda p: p.write_bytes(b'')
  yield 'deleted', lambda p: p.unlink()
  yield 'still JSON', lambda p: p.write_bytes(
      p.read_bytes().replace(b'"cursor": 10', b'"cursor": 11'))


def check_damages(source, run):
  """Damages each file of a copy of `source` in each way."""
  warnings = io.StringIO()
  absl_logging.get_absl_logger().addHandler(logging.StreamHandler(warnings))
  source, run, seen = pathlib.Path(source), pathlib.Path(run), []
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
        seen.append(str(file))
      assert re.fullmatch(
          'checkpoint step 10: .*; using step 5; .*10.corrupt\n'
          if step == 5 else '', warnings.getvalue()), (file, what)
  # Most of the files forgive nothing; zstd has a spare bit or two. orbax itself
  # would load some of these flipped bits as wrong numbers.
  assert seen.count(str(_data_file(source / '10').relative_to(source))) >= 5
  assert seen.count('10/meta/metadata') == 7


def test_damage_of_any_file_is_seen_or_harmless(steps_5_and_10, tmp_path):
  # In a process of its own: where orbax fails to read one thing it abandons
  # the others, which fill stderr until the process ends.
  child = _start('check_damages', steps_5_and_10, tmp_path / 'run')
  _, printed = child.communicate()
  assert child.returncode == 0, printed


def test_a_leaf_of_another_name_is_damage(run, caplog):
  path = run / '10/state/_METADATA'
  path.write_bytes(path.read_bytes().replace(
      b'"planner/params/w"', b'"planner/params/v"'))
  # Of which orbax would return the shape, unread.
  template = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      _state(0))
  assert checkpoints.Checkpoints(run).restore(template).step == 5
  assert 'there is no planner/params/w; using step 5' in caplog.text


def test_run_goes_on_after_damage(run):
  for aside in ('10.corrupt', '10.2.corrupt'):
    _flip(run / '10/meta/metadata', 100)
    saved = checkpoints.Checkpoints(run)
    assert saved.restore(_state(0)).step == 5
    assert '10' in _names(run)  # Reading moves nothing.
    saved.save(10, _state(10), {'again': True})
    assert saved.restore(_state(0)).meta == {'again': True}
    saved.close()
    assert aside in _names(run)
  assert _names(run) == ['10', '10.2.corrupt', '10.corrupt', '5']


def test_a_step_under_the_number_of_another_is_damage(run, caplog):
  (run / '10').rename(run / '12')
  saved = checkpoints.Checkpoints(run)
  assert saved.restore(_state(0)).step == 5
  assert 'step 12: it is the checkpoint of step 10; using step 5' in caplog.text
  with pytest.raises(errors.UserError, match='step 12: it is the'):
    saved.restore(_state(0), step=12)


def test_no_readable_step_is_an_error_and_stays_one(run):
  for step in ('5', '10'):
    _flip(run / step / 'meta/metadata', 100)
  for _ in range(2):
    with pytest.raises(errors.UserError, match='can be read') as error:
      checkpoints.Checkpoints(run).restore(_state(0))
    assert 'step 5: ' in str(error.value) and 'step 10: ' in str(error.value)
    assert _names(run) == ['10', '5']
  shutil.rmtree(run / '5')
  (run / '10').rename(run / '10.corrupt')
  with pytest.raises(errors.UserError, match='only damaged .*: 10.corrupt'):
    checkpoints.Checkpoints(run).restore(_state(0))


# Wrong use.


def test_another_model_is_an_error_with_a_table(run):
  template = _state(0)
  params = template['coder'].params
  params['w'] = jnp.zeros((64, 49))
  params['layers'] = [params['layers'][0].astype(jnp.float32), jnp.zeros(2)]
  del params['mask']
  saved = checkpoints.Checkpoints(run)
  with pytest.raises(errors.UserError) as error:
    saved.restore(template)
  with pytest.raises(errors.UserError) as of_a_part:  # Which is as it was.
    saved.restore(template, part=lambda state: state['planner'].params)
  assert str(of_a_part.value) == str(error.value)
  first, *table = str(error.value).splitlines()
  assert f'{run}/10 holds another model' in first
  assert '4 leaves differ:' in first
  assert table == [
      'name                   file             model',
      'coder/params/layers/0  (3,5) bfloat16   (3,5) float32',
      'coder/params/mask      (7) bool         missing',
      'coder/params/w         (64,48) float32  (64,49) float32',
      'coder/params/layers/1  missing          (2) float32']
  # No more than ten rows.
  with pytest.raises(errors.UserError, match='leaves differ:(\n.*){11}$'):
    saved.restore({'solo': {f'w{i}': jnp.zeros(i) for i in range(20)}})


@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_saved(value, run):
  state = _state(11)
  params = state['planner'].params
  params['w'] = params['w'].at[3, 4].set(value)
  saved = checkpoints.Checkpoints(run)
  with pytest.raises(
      errors.UserError, match='Step 11 is not saved: .* in planner/params/w. '):
    saved.save(11, state, {})
  saved.close()
  assert _names(run) == ['10', '5']


def test_a_step_that_is_not_finite_is_damaged(run, monkeypatch):
  # As an older version may have written it.
  state = _state(11)
  params = state['planner'].params
  params['w'] = params['w'].at[3, 4].set(np.nan)
  with monkeypatch.context() as patch:
    patch.setattr(finite, 'nonfinite_leaves', lambda tree: [])
    saved = checkpoints.Checkpoints(run)
    saved.save(11, state, {})
    saved.close()
  assert '11' in _names(run)
  assert checkpoints.Checkpoints(run).restore(_state(0)).step == 10


def test_wrong_use_is_told(run):
  with pytest.raises(errors.UserError, match='max_to_keep=1: expected 2'):
    checkpoints.Checkpoints(run, max_to_keep=1)
  saved = checkpoints.Checkpoints(run)
  for step, state, meta, words in (
      (9, _state(0), {}, 'step 9: .* step 10'),
      (10, _state(0), {}, 'step 10: .* step 10'),
      (11, _state(0), {'a': (1, 2)}, 'does not give it back'),
      (11, _state(0), {'a': {1: 2}}, 'does not give it back'),
      (11, _state(0), {'a': float('nan')}, 'does not give it back'),
      (11, {'p': {'w': np.zeros(3)}}, {}, 'leaf p/w is a ndarray'),
      (11, {'p': {'0': jnp.ones(3)}, 'p/0': jnp.ones(3)}, {},
       'two leaves are called p/0')):
    with pytest.raises(errors.UserError, match=words):
      saved.save(step, state, meta)
  with pytest.raises(errors.UserError, match='no step 7 .* one of .10, 5.'):
    saved.restore(_state(0), step=7)
  with pytest.raises(errors.UserError, match='leaf planner/.* has no sharding'):
    saved.restore(jax.eval_shape(lambda: {'planner': _policy(0)}))
  saved.close()
  assert _names(run) == ['10', '5']


def test_a_clock_that_jumps_ends_no_save(tmp_path, monkeypatch):
  clock, calls = time.time, []

  def jump():
    calls.append(None)
    return clock() + 3600 * len(calls)

  saved = checkpoints.Checkpoints(tmp_path)
  monkeypatch.setattr(time, 'time', jump)
  for step in (1, 2):
    saved.save(step, _state(step), {})
  saved.close()
  assert calls and _names(tmp_path) == ['1', '2']


# A kill in the middle of a save.


def save_twice(directory):
  mesh = jax.make_mesh((2, 2), ('x', 'y'), (jax.sharding.AxisType.Auto,) * 2)
  spec = jax.sharding.PartitionSpec('y', 'x')
  w = jnp.arange(2048 * 4096, dtype=jnp.float32).reshape(2048, 4096)
  w = jax.device_put(w, jax.sharding.NamedSharding(mesh, spec))
  saved = checkpoints.Checkpoints(directory)
  for step in (1, 2):
    saved.save(step, {'p': {'w': step * w}}, {'step': step})
    saved.wait()


def test_kill_in_mid_save_leaves_the_step_before(tmp_path):
  child = _start('save_twice', tmp_path, JAX_NUM_CPU_DEVICES='4')
  deadline = time.monotonic() + 300
  while not list(tmp_path.glob('2.*')):
    assert child.poll() is None and time.monotonic() < deadline
    time.sleep(0.001)
  child.kill()
  child.communicate()
  (half,) = [name for name in _names(tmp_path) if name != '1']
  assert half != '2'

  # Four devices wrote it, one reads it: the digest must not know.
  saved = checkpoints.Checkpoints(tmp_path)
  template = {'p': {'w': jnp.zeros((2048, 4096))}}
  step, state, meta = saved.restore(template)
  assert (step, meta) == (1, {'step': 1})
  assert half in _names(tmp_path)  # Reading removes nothing.
  expected = np.arange(2048 * 4096, dtype=np.float32).reshape(2048, 4096)
  np.testing.assert_array_equal(state['p']['w'], expected)
  saved.save(3, state, {'step': 3})
  saved.close()
  assert _names(tmp_path) == ['1', '3']  # The half-written one is gone.
