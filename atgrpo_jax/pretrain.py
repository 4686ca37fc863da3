"""Supervised warm start of a small model on generated demonstrations.

A demonstration is a group as well: several answers to one prompt, so the
prompt is computed once for all of them, by the same learner that trains on
groups from a rollout. The loss is the negative log-likelihood of the answers.

Training has phases, each with its own prompts and kinds of behaviour. For
`models/nano`: drills of copying, of the one proposal and then of one of
several, practice of every kind until it is spelled without a fault, and last
the kinds in the shares that the finished model is to have. Reinforcement can
then choose between behaviours that the model masters.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
import importlib
import json
import pathlib
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from atgrpo_jax import config_checks
from atgrpo_jax import errors
from atgrpo_jax import model
from atgrpo_jax import types
from atgrpo_jax.distributed import mesh as mesh_lib
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import metrics as metrics_lib
from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.learner import gradients
from atgrpo_jax.learner import policy as policy_lib
from atgrpo_jax.learner import update as update_lib
from atgrpo_jax.sampling import categorical
from atgrpo_jax.sampling import decoding_params
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from environments import demonstrations


def pretrain(
    config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Trains as `config` says; the model lands in `workdir/model`, whole."""

  # ---- What is taught, and how ----------------------------------------------
  config_checks.check_pretraining(config)
  tasks = {
      name: _repertoire(f'tasks.{name}.module', task.module)
      for name, task in config.tasks.items()}
  phases = _phases(config)
  spec = policy_lib.LearnerSpec(
      optimizer=policy_lib.OptimizerSpec(
          decay_updates=len(phases), **config.optimizer), loss=None,
      temperature=1.0, dtype='float32', remat=False, adapter_scale=None)

  # ---- Workdir, tokenizer, model --------------------------------------------
  workdir_lib.check_config(workdir, config.to_dict())
  lock = workdir_lib.Lock(workdir)
  workdir_lib.write_config(workdir, config.to_dict())
  workdir_lib.print_config(config.to_dict())
  folder = workdir / 'model'
  if config.init_folder:
    init_folder = hub.resolve_folder(config.init_folder)
    model_config = hub.load_config(init_folder)
    tokenizer = tokenizer_lib.Tokenizer(init_folder)
    params = safetensors_lib.load_params(init_folder, model_config)
  else:
    model_config = model.ModelConfig(
        vocab_size=config.tokenizer.vocab_size, **config.model)
    rng = np.random.default_rng([config.seed, 1])
    texts = [
        text for _ in range(config.tokenizer.num_demonstrations)
        for demonstration in _draw(tasks, config, phases[-1], rng)
        for text in _texts(demonstration)]
    with tempfile.TemporaryDirectory() as made:
      tokenizer_lib.train(
          texts, config.tokenizer.vocab_size, config.tokenizer.pieces,
          pathlib.Path(made))
      tokenizer = tokenizer_lib.Tokenizer(made)
    params = model.init_params(jax.random.key(config.seed), model_config)
  num_params = sum(x.size for x in jax.tree.leaves(params))
  print(f'{num_params} parameters, {tokenizer.vocab_size} ids')

  # ---- State ----------------------------------------------------------------
  mesh, = mesh_lib.make_meshes(
      ['all'], jax.devices(), mesh_lib.MeshSpec()).values()
  buckets = batching.Buckets(**config.buckets).on(
      mesh_lib.num_data_shards(mesh))

  def place(tree):
    return jax.device_put(tree, mesh_lib.tree_shardings(
        tree, mesh, mesh_lib.param_rules(model_config.tied_head)))

  state = place(policy_lib.TrainState.create(params, spec.optimizer))
  writer = metrics_lib.MetricsWriter(
      workdir, writers=('tensorboard',))

  def save():
    with files.whole_folder(folder) as new:
      safetensors_lib.save(
          new, state.params, model_config, jnp.dtype(config.save_dtype))
      tokenizer.save(new)

  # ---- Loop -----------------------------------------------------------------
  rng = np.random.default_rng([config.seed, 2])
  start = time.perf_counter()
  for step, phase in enumerate(phases):
    groups = [
        _encode(tokenizer, demonstration)
        for demonstration in _draw(tasks, config, phase, rng)]
    with jax.set_mesh(mesh):
      sums = gradients.zero_sums(
          state.params, config=model_config, spec=spec)
      for batch in batching.make_batches(groups, buckets):
        sums = mesh_lib.throttle_cpu_dispatch(gradients.accumulate(
            state.params, sums, mesh_lib.put_rows(batch, mesh),
            config=model_config, spec=spec), mesh)
      num_tokens = np.float32(sum(
          len(candidate.completion)
          for group in groups for candidate in group.candidates))
      state, metrics, finite = update_lib.apply_update(
          state, sums, num_tokens, num_tokens, config=model_config, spec=spec)
    if step % config.log_every == 0:
      values = update_lib.means(f'Step {step}', [(metrics, finite)])
      values['time/seconds'] = time.perf_counter() - start
      if step and step % config.check_every == 0:
        values |= _flat(check(
            state.params, model_config, tokenizer, tasks, config, phase,
            buckets, mesh, num_prompts=16))
        save()
      writer.write(step, values)
      print(
          f'{phase} {step}/{len(phases)}  loss {values["loss"]:.4f}  '
          + '  '.join(f'{k} {v:.3f}' for k, v in values.items()
                      if k.startswith(tuple(tasks))), flush=True)
  writer.close()

  # ---- End ------------------------------------------------------------------
  save()
  # What is measured is what was written, rounded to `save_dtype`.
  skills = check(
      place(safetensors_lib.load_params(folder, model_config)), model_config,
      tokenizer, tasks, config, phases[-1], buckets, mesh, config.num_checked)
  (workdir / 'skills.json').write_text(json.dumps(skills, indent=2) + '\n')
  lock.close()
  print(json.dumps(skills, indent=2))
  print(f'the model is in {folder}')


def check(
    params: model.Params, model_config: model.ModelConfig,
    tokenizer: tokenizer_lib.Tokenizer,
    tasks: Mapping[str, demonstrations.Repertoire],
    config: ml_collections.ConfigDict, phase: str, buckets: batching.Buckets,
    mesh: jax.sharding.Mesh, num_prompts: int) -> dict[str, Any]:
  """Which kinds the model shows at temperature 1, and how well it spells them.

  For every task and role of a phase: the share of each kind among all answers
  (only faultless ones have a kind), and `well_formed`, the share that has one.
  The prompts are none of those in training.
  """
  spec = programs.SamplerSpec(
      group_size=8, temperature=1.0, stop_ids=tokenizer.stop_ids,
      dtype='float32')
  num_shards = mesh_lib.num_data_shards(mesh)
  num_slots = -(-num_prompts // num_shards) * num_shards
  rng = np.random.default_rng([config.seed, 3])
  decoding = decoding_params.DecodingParams(
      params, mesh, model_config, spec.dtype)
  report = {}
  for name, repertoire in tasks.items():
    task = config.tasks[name]
    for role, taught in task[phase].items():
      shown = [
          repertoire.demonstrate(rng, role, taught.kinds, 1, task.max_turns)
          for _ in range(num_prompts)]
      prompts = [tokenizer.encode_prompt(d.messages) for d in shown]
      length = batching.bucket(
          max(map(len, prompts)), buckets.prompt, 'prompt length')
      keys = np.asarray(jax.random.key_data(categorical.group_keys(
          jax.random.key(config.seed),
          np.arange(num_prompts, dtype=np.uint32)[:, None])))
      engine = engine_lib.Engine(
          decoding, adapters=None, spec=spec, num_slots=[num_slots],
          prompt_length=length)
      for index, (prompt, key) in enumerate(zip(prompts, keys)):
        engine.add(engine_lib.Request(
            index, prompt, key, buckets.completion[-1]))
      sampled, = engine_lib.drain([engine])
      counts = collections.Counter(
          repertoire.kind_of(demonstration, tokenizer.decode(ids))
          for demonstration, group in zip(shown, sampled)
          for ids in group.completions)
      total = counts.total()
      report[f'{name}/{role}'] = {
          'well_formed': 1 - counts[None] / total,
          **{kind: counts[kind] / total for kind in taught.kinds}}
  return report


def _repertoire(key: str, name: str) -> demonstrations.Repertoire:
  """What a module teaches; UserError, with the key that names it."""
  try:
    return importlib.import_module(name).REPERTOIRE
  except errors.USER_CODE_ERRORS as error:
    raise errors.UserError(
        f'{key}={name!r} cannot be used ({errors.one_line(error)}); it must be '
        'a module with a REPERTOIRE, such as '
        'environments.boards.plan_path.demonstrations.') from error


def _phases(config) -> list[str]:
  """The phase of every step."""
  return [
      name for name in sorted(
          config.phases, key=lambda name: config.phases[name].order)
      for _ in range(config.phases[name].num_steps)]


def _draw(tasks, config, phase, rng):
  """The demonstrations of one step."""
  for name, repertoire in tasks.items():
    task = config.tasks[name]
    for role, taught in task[phase].items():
      for _ in range(taught.groups):
        yield repertoire.demonstrate(
            rng, role, taught.kinds, config.phases[phase].group_size,
            task.max_turns)


def _texts(demonstration):
  """What the tokenizer learns from."""
  for message in demonstration.messages:
    yield f'{message["role"]}\n{message["content"]}\n'
  yield 'assistant\n'
  yield from demonstration.completions


def _encode(tokenizer, demonstration) -> types.Group:
  completions = [
      tokenizer.encode_completion(text) for text in demonstration.completions]
  return types.Group(
      key=types.GroupKey('', demonstration.role, 0, 0), policy='',
      prompt=tokenizer.encode_prompt(demonstration.messages),
      candidates=tuple(
          types.Candidate(ids, np.zeros(len(ids)), advantage=1.0)
          for ids in completions))


def _flat(report):
  return {
      f'{place}/{name}': value for place, values in report.items()
      for name, value in values.items()}
