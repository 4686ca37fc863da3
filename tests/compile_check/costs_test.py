"""FLOPs, traffic and collectives of small programs, counted by hand."""

import collections
import functools

import jax
from jax.extend import core
import jax.numpy as jnp
import pytest

from atgrpo_jax.compile_check import costs
from atgrpo_jax.model import kernels

# As XLA prints them for CPUs and TPUs, shortened.
MODULE = """
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%step (a: bf16[8,4]) -> bf16[8,4] {
  %reduced = bf16[8,4]{1,0:T(8,128)(2,1)} all-reduce(%a), \
replica_groups={{0,1,2,3},{4,5,6,7}}, \
to_apply=%add
  %again = bf16[8,4]{1,0} all-reduce(%reduced), \
replica_groups=[2,4]<=[8], \
to_apply=%add
  ROOT %next = (bf16[8,4]{1,0}) while(%again), condition=%twice, body=%inner, \
backend_config={"known_trip_count":{"n":"2"}}
}

%twice (a: bf16[8,4]) -> pred[] {
  ROOT %less = pred[] constant(true)
}

%inner (a: bf16[8,4]) -> bf16[8,4] {
  ROOT %part = f32[2,4]{1,0} fusion(%a), kind=kCustom, calls=%scatter
}

%scatter (a: bf16[8,4]) -> f32[2,4] {
  ROOT %mine = f32[2,4]{1,0} reduce-scatter(%a), \
replica_groups=mesh['axis_0'=4,'axis_1'=2], \
device_ids=([2,4]T(1,0)) {'axis_0'}, \
to_apply=%add
}

%condition (a: bf16[8,4]) -> pred[] {
  %last = s32[]{:T(128)} constant(28), metadata={}
  ROOT %less = pred[] compare(%a, %last), direction=LT
}

%unknown (a: bf16[8,4]) -> pred[] {
  %any = pred[] all-reduce(%a), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  ROOT %go = pred[] copy(%any)
}

ENTRY %main (a: bf16[8,4]) -> bf16[8,4] {
  %started = (bf16[2,4]{1,0}, bf16[8,4]{1,0:S(1)}) all-gather-start(%a), \
replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}
  %whole = bf16[8,4]{1,0} all-gather-done(%started)
  %moving = (f32[3]{0}, f32[3]{0}, u32[], u32[]) collective-permute-start(%a), \
source_target_pairs={{0,1},{1,2},{2,0}}
  %alone = f32[3]{0} all-reduce(%a), replica_groups={{0},{1}}
  %still = f32[3]{0} collective-permute(%a), source_target_pairs={}
  %layers = (bf16[8,4]{1,0}) while(%whole), condition=%condition, body=%step
  ROOT %tokens = (bf16[8,4]{1,0}) while(%layers), condition=%unknown, \
body=%inner
}
"""


def _shape(*sizes, dtype=jnp.bfloat16):
  return jax.ShapeDtypeStruct(sizes, dtype)


def _count(function, *shapes, while_length=1):
  return costs.count_work(
      jax.jit(function).trace(*shapes).jaxpr, while_length)


def test_collectives_are_counted_with_their_loops():
  found = collections.Counter(
      (*collective, collective.bytes_sent)
      for collective in costs.find_collectives(MODULE, while_length=16))
  # Kind, bytes, devices, calls, and bytes sent in all calls.
  assert found == {
      # Twice three quarters of 64 bytes, two instructions per layer.
      ('all-reduce', 64, 4, 28, 28 * 96): 2,
      ('reduce-scatter', 128, 4, 56, 56 * 96): 1,
      ('reduce-scatter', 128, 4, 16, 16 * 96): 1,
      ('all-reduce', 1, 2, 16, 16): 1,
      ('all-gather', 64, 4, 1, 48): 1,
      ('collective-permute', 12, 3, 1, 12): 1}


def test_loops_are_multiplied():
  def program(x, y):
    def body(carry, _):
      return carry @ y, None
    x, _ = jax.lax.scan(body, x, length=5)
    return jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ y), (0, x))[1]

  shape = _shape(2, 2, dtype=jnp.float32)
  flops, traffic = _count(program, shape, shape, while_length=7)
  assert flops == (5 + 7) * 2 * 2 * 2 * 2
  assert traffic == (5 + 7) * 3 * 4 * 4


@pytest.mark.parametrize('prefix', [0, 1024])
def test_masked_blocks_are_not_counted(prefix):
  # Four blocks of 512 queries, in a loop over layers as in the model.
  groups, heads, per_head, queries, width = 2, 2, 2, 2048, 128

  def layers(q, k, v, past, mask):
    @jax.checkpoint
    def layer(q, _):
      return kernels.attend_with_splash(
          q, k, v, past if prefix else None, mask, interpret=True), None

    return jax.lax.scan(layer, q, None, length=3)[0]

  flops, _ = _count(
      layers, _shape(groups, heads, 1, queries, per_head, width),
      _shape(groups, heads, 1, width, queries),
      _shape(groups, heads, 1, queries, width),
      (_shape(groups, heads, width, prefix),
       _shape(groups, heads, prefix, width)),
      _shape(groups, prefix, dtype=bool))
  seen = 512**2 * (1 + 2 + 3 + 4) + queries * prefix
  assert flops == 3 * groups * heads * per_head * seen * 4 * width


def test_ragged_attention_counts_its_capacity():
  rows, heads, queries, width, capacity = 256, 8, 2, 128, 512
  flops, traffic = _count(
      kernels.ragged_on_gpu, _shape(rows, heads, queries, width),
      _shape(rows, heads, width, capacity),
      _shape(rows, heads, capacity, width), _shape(rows, dtype=jnp.int32))
  assert flops == rows * heads * queries * capacity * 4 * width
  assert traffic == 4 * rows + rows * heads * (
      2 * queries * width + 2 * 2 * capacity * width
      + 4 * queries * (width + 2))


def test_a_kernel_without_products_counts_nothing():
  assert _count(
      functools.partial(kernels.append_on_tpu, -1), _shape(8, 2, 128, 4096),
      _shape(8, 2, 128, 16), _shape(8, dtype=jnp.int32)) == (0, 0)


@pytest.mark.parametrize('name, num_products', [
    ('dot_product_attention_fwd_wrapper', 2),
    ('dot_product_attention_bwd_wrapper', 5)])
def test_half_of_the_scores_of_cudnn_count(name, num_products):
  # JAX traces its own primitive only on a machine with cuDNN.
  primitive = core.Primitive(name)
  primitive.def_abstract_eval(lambda q, k: q)
  flops, traffic = _count(
      primitive.bind, _shape(3, 64, 8, 16), _shape(3, 64, 2, 16))
  assert flops == num_products * 2 * 3 * 8 * 64 * 64 / 2 * 16
  assert traffic == 2 * 3 * 64 * 16 * (8 + 2 + 8)
