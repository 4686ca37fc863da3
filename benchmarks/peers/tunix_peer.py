"""google/tunix as a contestant; needs an environment with tunix.

Reads requests (`benchmarks.workload.request`) as JSON lines and replies to each
with a line {"seconds": ...}. Texts are ids separated by spaces.
"""

from collections.abc import Callable, Iterator
import json
import sys
import time

from flax import nnx
import jax
import numpy as np
import optax
from tunix.generate import sampler as sampler_lib
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster as cluster_lib
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

_NEVER = [-1]  # A stop id that no model emits.


class IdTokenizer:
  """The tokenizer interface of tunix."""

  def encode(self, text: str, **_) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids, **_) -> str:
    return ' '.join(map(str, ids))

  def bos_id(self) -> None:
    return None

  def eos_id(self) -> int:
    return 1

  def pad_id(self) -> int:
    return 0


def make_model(fields: dict) -> tuple[qwen3.ModelConfig, qwen3.Qwen3]:
  config = qwen3.ModelConfig(
      num_layers=fields['num_hidden_layers'], vocab_size=fields['vocab_size'],
      embed_dim=fields['hidden_size'], hidden_dim=fields['intermediate_size'],
      num_heads=fields['num_attention_heads'], head_dim=fields['head_dim'],
      num_kv_heads=fields['num_key_value_heads'],
      norm_eps=fields['rms_norm_eps'], rope_theta=int(fields['rope_theta']),
      use_tied_embedding=fields['tie_word_embeddings'],
      dtype=jax.numpy.float32, param_dtype=jax.numpy.float32)
  return config, qwen3.Qwen3(config, rngs=nnx.Rngs(0))


def make_texts(load: dict, vocab_size: int) -> list[str]:
  ids = np.random.default_rng(0).integers(
      3, vocab_size, (load['num_prompts'], load['prompt_length']))
  return [' '.join(map(str, row)) for row in ids]


def make_sample(request: dict) -> Callable[[], float]:
  """Samples tokens and log-probabilities to the host."""
  load, = request['loads']
  config, transformer = make_model(request['model'])
  sampler = sampler_lib.Sampler(
      transformer, IdTokenizer(), sampler_lib.CacheConfig(
          cache_size=load['prompt_length'] + load['new_tokens'],
          num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
          head_dim=config.head_dim))
  texts = [
      text for text in make_texts(load, config.vocab_size)
      for _ in range(load['group_size'])]
  calls = 0

  def sample() -> float:
    nonlocal calls
    calls += 1
    start = time.perf_counter()
    output = sampler(
        texts, max_generation_steps=load['new_tokens'],
        max_prompt_length=load['prompt_length'], temperature=1.0, top_p=1.0,
        eos_tokens=_NEVER, return_logprobs=True, seed=calls)
    seconds = time.perf_counter() - start
    assert {len(row) for row in output.tokens} == {load['new_tokens']}
    return seconds

  return sample


def serve_steps(request: dict) -> None:
  """One GRPO step per request, including the first."""
  load, = request['loads']
  config, transformer = make_model(request['model'])
  mesh = jax.sharding.Mesh(
      np.array(jax.devices()[:1]).reshape(1, 1), ('fsdp', 'tp'))
  cluster_config = cluster_lib.ClusterConfig(
      role_to_mesh={
          role: mesh for role in (
              cluster_lib.Role.ACTOR, cluster_lib.Role.REFERENCE,
              cluster_lib.Role.ROLLOUT)},
      rollout_engine='vanilla', offload_to_cpu=False,
      training_config=cluster_lib.RLTrainingConfig(
          actor_optimizer=optax.adamw(1e-6), eval_every_n_steps=10**9,
          max_steps=10**9, mini_batch_size=load['num_prompts'],
          train_micro_batch_size=load['num_prompts']),
      rollout_config=base_rollout.RolloutConfig(
          max_tokens_to_generate=load['new_tokens'],
          max_prompt_length=load['prompt_length'],
          kv_cache_size=load['prompt_length'] + load['new_tokens'],
          temperature=1.0, top_p=1.0, top_k=None, eos_tokens=_NEVER))
  with mesh:
    cluster = cluster_lib.RLCluster(
        actor=transformer, tokenizer=IdTokenizer(),
        cluster_config=cluster_config)

  def reward(prompts, completions, **_) -> list[float]:
    return [
        sum(int(word) % 2 for word in text.split()) / load['new_tokens']
        for text in completions]

  learner = grpo_learner.GRPOLearner(
      rl_cluster=cluster, reward_fns=reward,
      algo_config=grpo_learner.GRPOConfig(
          num_generations=load['group_size'], num_iterations=1, beta=0.0))
  texts = np.array(make_texts(load, config.vocab_size))

  # The learner requests the next batch after it has dispatched a step, so a
  # step lasts from one batch to the next.
  def batches() -> Iterator[dict]:
    while True:
      start = time.perf_counter()
      yield {'prompts': texts}
      jax.block_until_ready(
          nnx.state(cluster.actor_trainer.model, nnx.Param))
      answer(time.perf_counter() - start)
      if not sys.stdin.readline():
        return

  learner.train(batches())


def answer(seconds: float) -> None:
  print(json.dumps({'seconds': seconds}), flush=True)


def main() -> None:
  samplers = {}
  for line in sys.stdin:
    request = json.loads(line)
    if request['work'] == 'step':
      serve_steps(request)
      return
    if line not in samplers:
      samplers[line] = make_sample(request)
    answer(samplers[line]())


if __name__ == '__main__':
  main()
