"""Makes the goldens of the adapter tests with torch, transformers and PEFT.

It writes next to itself:

  peft_some, peft_all
      random adapters of the model in qwen3_tied, saved by PEFT
  peft_reference.npz
      their float32 logits; see `make_adapter`

Tests only read these files. To regenerate them in a separate environment:

  pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2 numpy
  python tests/goldens/make_peft_goldens.py
"""

import pathlib

import numpy as np
import peft
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
BASE = 'qwen3_tied'
SHAPE = (3, 12)  # Prompts, tokens.

# The scale alpha / r is never 1. PEFT expands 'all-linear' to all modules.
ADAPTERS = {
    'peft_some': dict(
        r=4, lora_alpha=6, target_modules=['q_proj', 'v_proj', 'down_proj']),
    'peft_all': dict(r=3, lora_alpha=2, target_modules='all-linear'),
}


def main():
  torch.set_num_threads(1)
  reference = {}
  for seed, name in enumerate(ADAPTERS):
    for key, value in make_adapter(name, seed).items():
      reference[f'{name}/{key}'] = value
  np.savez_compressed(FOLDER / 'peft_reference.npz', **reference)


def make_adapter(name: str, seed: int) -> dict[str, np.ndarray]:
  """Saves a random adapter; returns prompts [B, S] and logits [B, S, V]."""
  torch.manual_seed(seed)
  model = peft.get_peft_model(
      _base(), peft.LoraConfig(task_type='CAUSAL_LM', **ADAPTERS[name]))
  with torch.no_grad():
    for key, weight in model.named_parameters():
      if 'lora_' in key:
        weight.copy_(0.15 * torch.randn_like(weight))
  # A relative path, independent of the machine.
  model.peft_config['default'].base_model_name_or_path = BASE
  model.save_pretrained(FOLDER / name)
  (FOLDER / name / 'README.md').unlink()
  prompts = np.random.default_rng(seed).integers(
      1, model.config.vocab_size, SHAPE)
  logits = _logits(
      peft.PeftModel.from_pretrained(_base(), FOLDER / name).eval(), prompts)
  change = abs(logits - _logits(_base(), prompts)).max()
  print(f'{name}: the adapter changes logits by up to {change:.2f}')
  return {'prompts': prompts.astype(np.int32), 'logits': logits}


def _base():
  return transformers.Qwen3ForCausalLM.from_pretrained(
      FOLDER / BASE, dtype=torch.float32).eval()


def _logits(model, prompts) -> np.ndarray:
  with torch.no_grad():
    return model(torch.tensor(prompts)).logits.numpy()


if __name__ == '__main__':
  main()
