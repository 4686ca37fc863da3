"""compile_check.py: what it says of a small model is what a run takes."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import compile_check
from atgrpo_jax import errors
from atgrpo_jax.rollout import engine
from configs import pod

ROOT = pathlib.Path(__file__).resolve().parents[1]


def small_config(**changes):
  """`pod`, with a model and shapes for a CPU of eight devices."""
  config = pod.get_config('size=0.6b,topology=v5e:2x4')
  dimensions = {
      'vocab_size': 64, 'width': 32, 'hidden_width': 64, 'num_layers': 2,
      'num_heads': 4, 'num_kv_heads': 4, 'head_width': 8}
  config.update_from_flattened_dict({
      'buckets.prompt': (32,), 'buckets.completion': (16,),
      'rollout.max_new_tokens': 16, 'lora.rank': 2, **changes, **{
          f'compile_check.dimensions.{name}': size
          for name, size in dimensions.items()}})
  return config


def _make(x):
  """An array in the place of its shape."""
  if not isinstance(x, jax.ShapeDtypeStruct):
    return x
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    value = jax.random.split(jax.random.key(0), x.shape)
  else:
    value = np.zeros(x.shape, x.dtype)
  return jax.device_put(value, x.sharding)


def _on_first_device(tree):
  return sum(
      shard.data.nbytes for leaf in jax.tree.leaves(tree)
      if isinstance(leaf, jax.Array) and not leaf.is_deleted()
      for shard in leaf.addressable_shards
      if shard.device == jax.devices()[0])


def report_and_run(changes):
  """What is said of each program, and what running it allocates."""
  engine.SHORTEST_PREAMBLE = 4
  config = small_config(**changes)
  report, = compile_check.check(config, jax.devices())
  policies = compile_check.build_policies(config, jax.devices())
  said = {program.name: program for program in report.programs}
  really = {}
  for policy in policies.values():
    state, base = compile_check.state_and_base(policy)
    with jax.set_mesh(policy.mesh):
      for name, function, _, args, kwargs in compile_check.programs(
          config, policy, state, base):
        if f'{name} {policy.name}' not in said:
          continue
        args, kwargs = jax.tree.map(_make, (args, kwargs))
        given = _on_first_device((args, kwargs))
        out = jax.block_until_ready(function(*args, **kwargs))
        # Counted once where an argument's place holds a result.
        really[f'{name} {policy.name}'] = given, _on_first_device(
            (jax.tree.leaves((args, kwargs)), out))
  states = {
      name: jax.tree.map(_make, compile_check.state_and_base(policy))
      for name, policy in policies.items()}
  return {
      'resident': report.parameters + report.optimiser,
      'really_resident': _on_first_device(states),
      'said': {n: dataclasses.asdict(p) for n, p in said.items()},
      'really': really}


@pytest.fixture(scope='module')
def found():
  # A whole model beside an adapter, and two numbers of slots.
  changes = {
      'buckets.groups': (8, 16),
      'policies': 'per_role', 'per_policy': 'tool.model.trained=lora'}
  done = subprocess.run(
      [sys.executable, '-c',
       'import json, sys\nfrom tests import compile_check_test as test\n'
       'print(json.dumps(test.report_and_run(json.loads(sys.argv[1]))))',
       json.dumps(changes)], cwd=ROOT, check=True, text=True,
      stdout=subprocess.PIPE, timeout=300, env=os.environ | {
          'JAX_PLATFORMS': 'cpu',
          'JAX_NUM_CPU_DEVICES': '8'})
  return json.loads(done.stdout)


def test_what_a_run_keeps_is_what_is_said(found):
  assert found['really_resident'] == found['resident'] > 0


def test_programs_need_what_a_run_allocates(found):
  assert set(found['said']) == set(found['really'])
  assert {name.rpartition(' ')[0] for name in found['said']} == {
      'prepare', 'prefill', 'prefill the rest', 'decode', 'more room',
      'more slots', 'gradient', 'update'}
  for name, (given, returned) in found['really'].items():
    said = found['said'][name]
    # XLA adds what holds a tuple together, and drops what is not used.
    assert said['arguments'] == pytest.approx(given, rel=0.02), name
    assert said['peak'] >= 0.98 * returned, name
    # What has been said is kept while prompts are prefilled, and what decoding
    # reads while rows or slots are moved.
    assert (said['kept'] > found['resident']) == name.startswith(
        ('prefill', 'more')), name


def test_work_is_counted_with_its_loops():
  @jax.jit
  def work(x, y):
    def body(carry, _):
      return carry @ y, None
    x, _ = jax.lax.scan(body, x, length=5)
    return jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ y), (0, x))[1]

  spec = jax.ShapeDtypeStruct((2, 2), jnp.float32)
  jaxpr = work.trace(spec, spec).jaxpr
  flops, traffic = compile_check.count_work(jaxpr, while_length=7)
  assert flops == (5 + 7) * 2 * 2 * 2 * 2
  assert traffic == (5 + 7) * 3 * 4 * 4


def test_a_kernel_reads_its_operands_once():
  def multiply(x, y, out):
    out[...] = jnp.dot(x[...], y[...])

  whole = pl.BlockSpec((8, 8), lambda i: (0, 0))
  rows = pl.BlockSpec((2, 8), lambda i: (i, 0))
  work = pl.pallas_call(
      multiply, out_shape=jax.ShapeDtypeStruct((8, 8), jnp.float32), grid=4,
      in_specs=(rows, whole), out_specs=rows)
  spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)
  flops, traffic = compile_check.count_work(
      jax.jit(work).trace(spec, spec).jaxpr, while_length=1)
  assert flops == 2 * 8 * 8 * 8
  assert traffic == 3 * 8 * 8 * 4


def _report(peak, parameters, name='decode a'):
  program = compile_check.Program(
      name=name, arguments=parameters, peak=peak * 2**30, kept=0, flops=2e12,
      traffic=4e9)
  return compile_check.Report(
      ('a',), parameters=parameters * 2**30, optimiser=0, cache=0,
      programs=(program,))


@pytest.mark.parametrize('report, changes, words', [
    (_report(10, 1), {}, ['FITS: 5.75 of 15.75 GiB are left']),
    (_report(20, 15), {},
     ['DOES NOT FIT', 'needs 4.25 GiB more',
      'help: a larger mesh.fsdp on a larger slice; policies=lora_per_role']),
    (_report(20, 1), {}, ['help: a larger mesh.tensor; smaller buckets.g']),
    (_report(20, 1, 'gradient a'), {'mesh.tensor': 8, 'model.remat': False},
     ['help: model.remat; shorter']),
    (_report(20, 1, 'gradient a'), {'buckets.microbatch_tokens': 1 << 20},
     ['mesh.tensor; a smaller buckets.microbatch_tokens; shorter']),
])
def test_verdict(report, changes, words, capsys):
  config = pod.get_config()
  config.update_from_flattened_dict(changes)
  compile_check.print_report(report, compile_check.CHIPS['v5e'], config)
  printed = capsys.readouterr().out
  # 2e12 FLOPs take 0.010 s, 4e9 bytes 0.005 s.
  assert '0.010 s' in printed
  for word in words:
    assert word in printed


def test_unknown_chips_are_refused():
  config = pod.get_config()
  config.compile_check.topology = 'v1:2x2'
  with pytest.raises(errors.UserError, match="'v1:2x2' is not known.*v5e"):
    compile_check.compile_check(config)
