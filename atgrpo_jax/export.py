"""Exports trained policies as Hugging Face and PEFT folders."""

import contextlib
import pathlib

import jax
import jax.numpy as jnp

from atgrpo_jax import config as config_lib
from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax.distributed import hosts
from atgrpo_jax.huggingface import peft
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.io import checkpoints as checkpoints_lib
from atgrpo_jax.io import files
from atgrpo_jax.io import workdir as workdir_lib


def export_run(
    experiment: experiment_lib.Experiment, workdir: pathlib.Path,
    checkpoint: str = checkpoints_lib.LATEST) -> None:
  """Exports every trained policy of a checkpoint to `workdir/export/<policy>`.

  Models become Hugging Face folders, and adapters PEFT folders. A folder
  replaces an earlier one atomically. `Experiment.trained_params` explains
  `checkpoint`.
  """
  config = experiment.config.export
  errors.check_choice('export.dtype', config.dtype, config_lib.DTYPES)
  if not workdir_lib.check_config(workdir, experiment.config.to_dict()):
    raise errors.UserError(
        f'--workdir={workdir} holds no run to export; give the workdir of a '
        'training run.')
  trained, step = experiment.trained_params(workdir, checkpoint)
  dtype = jnp.dtype(config.dtype)
  for name, params in trained.items():
    policy = experiment.policies[name]
    folder = workdir / 'export' / name
    kind = 'model' if policy.lora is None else 'adapter'
    # All processes that hold the policy take part; the first writes.
    writes = jax.process_index() == hosts.holders(params)[0]
    with (files.whole_folder(folder) if writes
          else contextlib.nullcontext(folder)) as new:
      if kind == 'adapter':
        peft.save(
            new, params, alpha=policy.lora.alpha,
            base_folder=policy.folder, dtype=dtype)
      else:
        safetensors_lib.save(new, params, policy.config, dtype)
      if writes:
        policy.tokenizer.save(new)
    hosts.barrier()  # Wait until the folder is complete.
    print(f'the {kind} of policy {name!r} after step {step} is in {folder}')
