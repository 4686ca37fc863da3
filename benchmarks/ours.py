"""Our side of the benchmarks, through the calls of a training run.

Weights are random. One policy has all devices; several policies share them
equally. Agents with one model each act on the same prompts at the same time.
With one agent a step is a GRPO step, with several a MAGRPO step. The reward
equals that of `benchmarks.peers`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from atgrpo_jax import config as config_lib
from atgrpo_jax import model
from atgrpo_jax import settings
from atgrpo_jax import types
from atgrpo_jax.algorithms import credit as credit_lib
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from benchmarks import workload
from configs import writing
from environments import env_api

# Each agent samples one aligned candidate per joint action.
_CONFIG = writing.get_config()


def place(
    tree: Any, config: model.ModelConfig, mesh: jax.sharding.Mesh) -> Any:
  """Shards parameters, or a tree of the same form."""
  return jax.device_put(tree, mesh_lib.tree_shardings(
      tree, mesh, mesh_lib.param_rules(config.tied_head)))


def make_models(
    config: model.ModelConfig, num: int, dtype: str = 'float32',
    devices: Sequence[jax.Device] = (),
) -> list[tuple[model.Params, jax.sharding.Mesh]]:
  """Random models on disjoint devices, if there are enough.

  `devices` is () for all devices.
  """
  names = [f'policy{i}' for i in range(num)]
  devices, pools = devices or jax.devices(), ()
  if each := len(devices) // num:
    pools = tuple(
        (name, i * each, (i + 1) * each) for i, name in enumerate(names))
  meshes = mesh_lib.make_meshes(names, devices, pools=pools)

  @jax.jit
  def init(key):
    return model.cast(model.init_params(key, config), jnp.dtype(dtype))

  return [
      (place(init(jax.random.key(i)), config, mesh), mesh)
      for i, mesh in enumerate(meshes.values())]


def sampled_model(
    config: model.ModelConfig, dtype: str = 'float32',
    devices: Sequence[jax.Device] = (),
    lora: model.LoraSpec | None = None) -> engine_lib.SampledModel:
  """A random model in the sampler, perhaps with an adapter."""
  (params, mesh), = make_models(config, 1, dtype, devices)
  adapters = lora and model.stack(
      [model.init_lora(jax.random.key(0), config, lora)], [lora.scale])
  return engine_lib.SampledModel(params, config, dtype, mesh, adapters)


class Sampling:
  """Samples one load, with new keys at each call."""

  def __init__(
      self, sampled: engine_lib.SampledModel, load: workload.Load,
      chunk: int = engine_lib.CHUNK):
    """`chunk` is the number of tokens between two checks for finished ones."""
    self._load, self._chunk = load, chunk
    self._model = sampled
    self._prompts = workload.prompts(load, sampled.config, seed=0)
    self._seeds = itertools.count()

  def __call__(self) -> None:
    self._drain(self._make_engine())

  def decode(self) -> float:
    """Samples and returns the seconds after the first chunk, without prefill.

    Work of the host between chunks and moves of the cache are included.
    """
    engine = self._make_engine()
    engine.dispatch()
    engine.collect()
    assert engine.busy  # Otherwise nothing is left to time.
    start = time.perf_counter()
    self._drain(engine)
    return time.perf_counter() - start

  def _make_engine(self) -> engine_lib.Engine:
    load = self._load
    engine = engine_lib.Engine(
        self._model, spec=programs.SamplerSpec(
            group_size=load.group_size, temperature=1.0, stop_ids=(),
            dtype=self._model.dtype),
        num_slots=(load.num_prompts,),
        prompt_lengths=(load.prompt_length,),
        chunk_length=self._chunk)
    seed = next(self._seeds)
    for index, prompt in enumerate(self._prompts):
      engine.add(engine_lib.Request(
          index, prompt, np.array([seed, index]), load.new_tokens))
    return engine

  def _drain(self, engine: engine_lib.Engine) -> None:
    while engine.busy:
      engine.dispatch()
      for group in engine.collect():
        assert {len(ids) for ids in group.completions} == {
            self._load.new_tokens}


def prefill(
    sampled: engine_lib.SampledModel,
    load: workload.Load) -> Callable[[], None]:
  """Computes the prompts of a load."""
  compute = jax.jit(functools.partial(
      model.prefill, config=sampled.config, dtype=jnp.dtype(sampled.dtype),
      prompts=workload.prompts(load, sampled.config, seed=0),
      lengths=np.full(load.num_prompts, load.prompt_length)))

  def call() -> None:
    with jax.set_mesh(sampled.mesh):
      jax.block_until_ready(compute(sampled.prepared))

  return call


class Ids:
  """Tokenizer of texts that consist of ids separated by spaces."""

  stop_ids, opening = (), ''

  def encode_prompt(self, messages: Sequence[env_api.Message]) -> np.ndarray:
    return np.array(messages[0]['content'].split(), np.int32)

  def decode(self, ids: Sequence[int]) -> str:
    return ' '.join(map(str, ids))


@dataclasses.dataclass(frozen=True)
class OddIds:
  """Each agent sees the task; the team reward is the fraction of odd ids."""

  roles: tuple[str, ...]

  max_turns = 1
  team_reward_range = (0.0, 1.0)

  @property
  def phases(self) -> tuple[tuple[str, ...], ...]:
    return (self.roles,)

  def reset(self, task: env_api.Task) -> str:
    return task['text']

  def observe(self, state: str, role: str) -> list[env_api.Message]:
    del role
    return [{'role': 'user', 'content': state}]

  def show(self, state: str) -> dict[str, str]:
    return {'text': state}

  def step(self, state: str, actions: Mapping[str, str]) -> env_api.Step:
    reward = float(np.mean([
        int(word) % 2 for text in actions.values() for word in text.split()]))
    return env_api.Step(
        state=state, team_reward=reward,
        local_rewards=dict.fromkeys(actions, 0.0), reward_terms={}, done=True,
        success=True, truncated=False,
        outcomes=dict.fromkeys(actions, env_api.Outcome.OK))


class Step:
  """A step of `num_agents` agents, each with the same load."""

  def __init__(
      self, config: model.ModelConfig, load: workload.Load, num_agents: int,
      run_config: ml_collections.ConfigDict, dtype: str = 'float32',
      devices: Sequence[jax.Device] = (), lora: model.LoraSpec | None = None):
    """`run_config` has the loss and the optimizer.

    With `lora`, each agent trains an adapter of its model.
    """
    # The products of an adapter's update are kept, a group at a time.
    learner = policy_lib.LearnerSpec(
        optimizer=policy_lib.OptimizerSpec(**run_config.optimizer),
        loss=config_lib.loss_spec(run_config.loss),
        dtype=dtype, remat=not lora, adapter_scale=lora and lora.scale)
    tokenizer = Ids()
    self._policies, self._states, self._frozen = {}, {}, {}
    for index, (params, mesh) in enumerate(
        make_models(
            config, num_agents, dtype if lora else 'float32', devices)):
      name = f'agent{index}'
      self._policies[name] = policy_lib.Policy(
          name, pathlib.Path(), config, tokenizer,
          trained='lora' if lora else 'all', lora=lora, adapter=None,
          learner=learner, mesh=mesh)
      if lora:
        self._frozen[name] = params
        self._states[name] = self._policies[name].initial_state()
      else:
        self._states[name] = place(
            policy_lib.TrainState.create(params, learner.optimizer), config,
            mesh)
    self._tasks = [
        {'task_id': str(index), 'text': ' '.join(map(str, prompt))}
        for index, prompt in enumerate(workload.prompts(load, config, seed=0))]
    self._load = load
    num_shards = mesh_lib.num_data_shards(self._policies['agent0'].mesh)
    prompts_per_shard = 1 if lora else -(-load.num_prompts // num_shards)
    self._buckets = batching.Buckets(
        prompt=(load.prompt_length,), completion=(load.new_tokens,),
        groups=(load.num_prompts,), microbatch_tokens=prompts_per_shard * (
            load.prompt_length + load.group_size * load.new_tokens))
    self._rollout = dataclasses.replace(
        settings.rollout_spec(_CONFIG), group_size=load.group_size)
    self._steps = itertools.count()
    self._executor = futures.ThreadPoolExecutor(1)

  def __call__(self) -> None:
    self.update(self.rollout())

  def rollout(self) -> list[types.Group]:
    """Groups of all agents, with advantages."""
    runner = runner_lib.EpisodeRunner(
        environment=OddIds(tuple(self._policies)),
        policy_map={name: name for name in self._policies},
        policies={
            name: policies_lib.SamplingPolicy(
                self._sampled(policy), policy.tokenizer)
            for name, policy in self._policies.items()},
        buckets=self._buckets, max_new_tokens=self._load.new_tokens,
        temperature=1.0, seed=0, train_step=next(self._steps),
        executor=self._executor)
    trees = credit_lib.assign_advantages(
        play_lib.play(runner, self._tasks, self._rollout),
        spec_lib.AdvantageSpec(**_CONFIG.advantage), self._rollout)
    assert runner.usage.completion_tokens == (
        len(self._policies) * self._load.completion_tokens)
    return list(tree_lib.groups_of(trees))

  def made_up_groups(self) -> list[types.Group]:
    """Groups of random tokens with advantages, for all agents."""
    rng, load = np.random.default_rng(0), self._load
    return [
        types.Group(
            types.GroupKey(task['task_id'], name, 0, 0), name,
            Ids().encode_prompt([{'content': task['text']}]), tuple(
                types.Candidate(
                    rng.integers(3, policy.config.vocab_size, load.new_tokens),
                    np.zeros(load.new_tokens, np.float32),
                    advantage=(-1.0)**i) for i in range(load.group_size)))
        for name, policy in self._policies.items() for task in self._tasks]

  def _sampled(self, policy: policy_lib.Policy) -> engine_lib.SampledModel:
    params, adapters = self._states[policy.name].params, None
    if policy.lora:
      adapters = model.stack([params], [policy.lora.scale])
      params = self._frozen[policy.name]
    return engine_lib.SampledModel(
        params, policy.config, policy.learner.dtype, policy.mesh, adapters)

  def mismatch(self) -> dict[str, float]:
    """Differences of sampled log-probabilities and those of the learner."""
    policy, = self._policies.values()
    batch, = batching.make_batches(self.rollout(), self._buckets.on(
        mesh_lib.num_data_shards(policy.mesh)))
    with jax.set_mesh(policy.mesh):
      found = gradients.score(
          self._states[policy.name].params,
          mesh_lib.put_rows(batch, policy.mesh), config=policy.config,
          spec=policy.learner)
    differences = np.abs(np.asarray(found) - batch.behavior_logprobs)
    return {
        'largest error': float(differences.max()),
        'mean error': float(differences.mean())}

  def update(self, groups: Sequence[types.Group]) -> None:
    """Gradient and optimizer of each policy."""
    updates = {}
    for name, state in self._states.items():
      self._states[name], updates[name] = update_lib.update_policy(
          self._policies[name], state,
          [group for group in groups if group.policy == name],
          num_updates=1, order=_CONFIG.train.update_order,
          buckets=self._buckets, frozen_params=self._frozen.get(name),
          reference=None)
    for name, update in updates.items():
      update.metrics(name)
    jax.block_until_ready(self._states)
