"""Makes the goldens of the model tests with torch and transformers.

It writes next to itself:

  one folder for each of `MODELS`
      tiny random models, saved by transformers
  model_reference.npz
      their float32 logits and greedy continuations; see `_reference`
  qwen3_prompts.json
      chats and their prompts from Qwen3's chat template

Tests only read these files. To regenerate them in a separate environment:

  pip install torch==2.13.0 transformers==5.24.0 jinja2 numpy
  pip install --no-deps trl==1.16.0  # It carries Qwen3's chat template.
  python tests/goldens/make_model_goldens.py
"""

import importlib.metadata
import itertools
import json
import pathlib

import numpy as np
import torch
import transformers
from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).parent
VOCAB_SIZE = 97
PROMPT_LENGTHS = (12, 7, 1)
NUM_NEW_TOKENS = 64

_FIELDS = dict(
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, tie_word_embeddings=False, rms_norm_eps=1e-6,
    dtype='float32')


def _rope(theta: float) -> dict:
  return {'rope_type': 'default', 'rope_theta': theta}


# Values differ from the defaults of transformers, so that unread fields fail.
MODELS = {
    'qwen3_tied': dict(
        _FIELDS, head_dim=8, intermediate_size=64, tie_word_embeddings=True,
        rms_norm_eps=1e-3, rope_parameters=_rope(5e5)),
    'qwen3_untied': dict(
        _FIELDS, num_attention_heads=8, head_dim=8, rope_parameters=_rope(1e6)),
    'qwen3_sharded': dict(
        _FIELDS, num_hidden_layers=3, num_key_value_heads=4, head_dim=8,
        intermediate_size=40, rms_norm_eps=1e-5, rope_parameters=_rope(1e4),
        dtype='bfloat16'),
    'qwen2_untied': dict(
        _FIELDS, rms_norm_eps=1e-5, rope_parameters=_rope(1e6)),
    # Its four frequencies are kept, mixed, divided and divided.
    'llama_tied': dict(
        _FIELDS, num_attention_heads=8, head_dim=8, tie_word_embeddings=True,
        rms_norm_eps=1e-5, rope_parameters={
            'rope_type': 'llama3', 'rope_theta': 500.0, 'factor': 8.0,
            'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
            'original_max_position_embeddings': 64}),
    'mistral_untied': dict(
        _FIELDS, num_key_value_heads=1, head_dim=16, sliding_window=None,
        rope_parameters=_rope(1e4)),
}
CLASSES = {
    'qwen3': (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    'qwen2': (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    'llama': (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    'mistral': (transformers.MistralConfig, transformers.MistralForCausalLM),
}

CHATS = [
    [{'role': 'user', 'content': 'Which way?'}],
    [{'role': 'system', 'content': 'You plan.\nBe brief.'},
     {'role': 'user', 'content': '#A.\n..G\nMoves: ["R", "D"]'}],
    [{'role': 'system', 'content': ''},
     {'role': 'user', 'content': '  spaces stay  \n\nTür, 迷路, 🧭'}],
    [{'role': 'system', 'content': 'You plan.'},
     {'role': 'user', 'content': 'First?'},
     {'role': 'assistant', 'content': '#### ["U"]'},
     {'role': 'user', 'content': 'Next?'}],
]


def main():
  torch.set_num_threads(1)
  reference = {}
  for name in MODELS:
    for key, value in make_model(name).items():
      reference[f'{name}/{key}'] = value
  np.savez_compressed(FOLDER / 'model_reference.npz', **reference)
  make_prompts()


def make_model(name: str) -> dict[str, np.ndarray]:
  """Saves a random model and returns its reference.

  It uses the first seed whose greedy continuations are far from ties, so that
  rounding cannot change them, and do not repeat a short cycle.
  """
  fields = dict(
      MODELS[name], vocab_size=VOCAB_SIZE, hidden_size=32,
      max_position_embeddings=128, pad_token_id=0, bos_token_id=None,
      eos_token_id=None)
  dtype = getattr(torch, fields.pop('dtype'))
  shards = {'max_shard_size': '20KB'} if name == 'qwen3_sharded' else {}
  for seed in itertools.count():
    torch.manual_seed(seed)
    make_config, make = CLASSES[name.partition('_')[0]]
    model = make(make_config(**fields))
    _draw_weights(model)
    model.to(dtype).save_pretrained(FOLDER / name, **shards)
    reference, margin = _reference(_load(FOLDER / name), seed)
    num_distinct = min(len(set(row)) for row in reference['continuations'])
    if margin > 0.02 and num_distinct > 20:
      break
  print(
      f'{name}: seed {seed}, margin {margin:.3f}, {num_distinct} tokens, '
      f'spread of logits {reference["logits"][:, 0].std():.2f}')
  return reference


def _load(folder):
  """The model of a folder, computed in float32."""
  model, problems = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32, output_loading_info=True)
  assert not any(problems.values()), problems
  return model.eval()


def _draw_weights(model) -> None:
  """Large weights and uneven norms, so that each one affects the logits."""
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if name.endswith('norm.weight'):
        weight.copy_(1.5 + 0.4 * torch.randn_like(weight))
      elif 'embed_tokens' in name:
        weight.copy_(torch.randn_like(weight))
      else:
        weight.copy_(0.3 * torch.randn_like(weight))


def _reference(model, seed):
  """The reference arrays and the smallest greedy margin.

  prompts [B, S] int, padded at the end; lengths [B] int; logits [B, S, V]
  float32, zero for padding; logits_left, computed with padding at the front;
  continuations [B, T] int, greedy.
  """
  rng = np.random.default_rng(seed)
  lengths = np.array(PROMPT_LENGTHS)
  shape = (len(lengths), max(lengths))
  mask = np.arange(shape[1]) < lengths[:, None]
  tokens = rng.integers(1, VOCAB_SIZE, shape)
  prompts = np.where(mask, tokens, 0)
  left_mask = mask[:, ::-1]
  left = np.zeros_like(prompts)
  left[left_mask] = prompts[mask]

  logits = np.where(mask[..., None], _logits(model, prompts, mask), 0)
  logits_left = np.zeros_like(logits)
  logits_left[mask] = _logits(model, left, left_mask)[left_mask]
  np.testing.assert_allclose(logits, logits_left, atol=1e-4)

  whole = model.generate(
      torch.tensor(left), attention_mask=torch.tensor(left_mask.copy()),
      max_new_tokens=NUM_NEW_TOKENS, do_sample=False).numpy()
  new = slice(shape[1], None)
  whole_mask = np.concatenate(
      [left_mask, np.ones((shape[0], NUM_NEW_TOKENS), bool)], axis=1)
  best = np.sort(_logits(model, whole, whole_mask)[:, new.start - 1:-1])
  margin = (best[..., -1] - best[..., -2]).min()
  return {
      'prompts': prompts.astype(np.int32),
      'lengths': lengths.astype(np.int32),
      'logits': logits,
      'logits_left': logits_left,
      'continuations': whole[:, new].astype(np.int32),
  }, margin


def _logits(model, tokens, mask) -> np.ndarray:
  """Logits [B, S, V]; positions skip padding."""
  positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
  with torch.no_grad():
    return model(
        torch.tensor(tokens), attention_mask=torch.tensor(mask.astype(int)),
        position_ids=torch.tensor(positions)).logits.numpy()


def make_prompts() -> None:
  """Renders the chats with Qwen3's chat template."""
  template = importlib.metadata.distribution('trl').locate_file(
      'trl/chat_templates/qwen3.jinja')

  def render(thinking):
    return chat_template_utils.render_jinja_template(
        CHATS, chat_template=pathlib.Path(template).read_text('utf-8'),
        add_generation_prompt=True, enable_thinking=thinking)[0]

  prompts = [
      {'messages': chat, 'thinking': on, 'not_thinking': off}
      for chat, on, off in zip(CHATS, render(True), render(False))]
  (FOLDER / 'qwen3_prompts.json').write_text(
      json.dumps(prompts, indent=1, ensure_ascii=False) + '\n', 'utf-8')


if __name__ == '__main__':
  main()
