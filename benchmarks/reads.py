"""What decoding reads of keys and values, over what counts.

  python -m benchmarks.reads

runs the engine's schedule without a device (`sampling.dry_run`): groups of 4
whose completions are log-normal with a median of 600 tokens and a 95th
percentile of 3000, cut at 4096, and prompts with a median of 900 tokens, cut at
8192. The largest rooms are those of `configs/pod.py`. A ratio of 1 reads what
counts and no more.
"""

from absl import app
from absl import flags
import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.sampling import decoding_params
from atgrpo_jax.sampling import dry_run
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs

_PROMPTS = flags.DEFINE_integer('prompts', 256, 'Prompts.', lower_bound=1)
_SLOTS = flags.DEFINE_integer('slots', 16, 'Groups in flight.', lower_bound=1)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Draws of lengths.', lower_bound=1)

GROUP_SIZE, MAX_PROMPT, MAX_COMPLETION = 4, 8192, 4096


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'No arguments are known, but there are {argv[1:]}.')
  print('seed  positions that count  whole rooms    blocks')
  for seed in range(_SEEDS.value):
    reads = measure(seed, _PROMPTS.value, _SLOTS.value)
    print(f'{seed:4d}  {reads.counting:20.4g}  '
          f'{reads.by_room / reads.counting:11.2f}  '
          f'{reads.by_block / reads.counting:8.3f}')


def measure(seed: int, num_prompts: int, num_slots: int) -> dry_run.Reads:
  """What one shard reads for prompts and completions of drawn lengths."""
  rng = np.random.default_rng(seed)

  def draw(median, percentile_95, most, *shape):
    width = np.log(percentile_95 / median) / 1.645
    drawn = np.exp(rng.normal(np.log(median), width, shape))
    return np.clip(drawn.astype(int), 1, most)

  prompts = draw(900, 3000, MAX_PROMPT, num_prompts)
  completions = draw(600, 3000, MAX_COMPLETION, num_prompts, GROUP_SIZE)
  device = dry_run.DryRun(1, dict(enumerate(completions)))
  mesh, = mesh_lib.make_meshes(
      ['any'], jax.devices()[:1], mesh_lib.MeshSpec()).values()
  engine = engine_lib.Engine(
      decoding_params.DecodingParams(
          None, mesh, model.ModelConfig(**_ANY_MODEL), 'bfloat16'),
      adapters=None,
      spec=programs.SamplerSpec(GROUP_SIZE, 1.0, (0,), 'bfloat16'),
      num_slots=(num_slots,), prompt_length=MAX_PROMPT, device=device)
  for i, length in enumerate(prompts):
    engine.add(engine_lib.Request(
        i, np.full(length, i, np.int32), np.array([0, i], np.uint32),
        MAX_COMPLETION))
  engine_lib.drain([engine])
  return device.reads


# Nothing depends on it.
_ANY_MODEL = {
    'vocab_size': 1, 'hidden_size': 1, 'intermediate_size': 1, 'num_layers': 1,
    'num_heads': 1, 'num_kv_heads': 1, 'head_dim': 2, 'rope_theta': 1e6,
    'norm_eps': 1e-6, 'tied_head': True, 'max_positions': 40960,
    'init_std': 0.02}


if __name__ == '__main__':
  app.run(main)
