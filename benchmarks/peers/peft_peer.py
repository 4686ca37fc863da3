"""transformers and PEFT as a contestant; needs an environment with both.

Reads requests (`benchmarks.workload.request`) as JSON lines and replies to each
with a line {"seconds": ...}. `sample` generates with a model without adapter;
`update` is the gradient and AdamW of an adapter of all linear layers, one
prompt with its candidates at a time.
"""

from collections.abc import Callable
import json
import sys
import time

import numpy as np
import peft
import torch
import transformers


def random_ids(*shape: int, vocab_size: int) -> torch.Tensor:
  return torch.tensor(np.random.default_rng(0).integers(3, vocab_size, shape))


def make_sampling(model: torch.nn.Module, load: dict) -> Callable[[], None]:
  """Generates `group_size` candidates of each prompt in one batch."""
  model.eval()
  prompts = random_ids(
      load['num_prompts'], load['prompt_length'],
      vocab_size=model.config.vocab_size)
  ids = prompts.repeat_interleave(load['group_size'], 0)

  @torch.inference_mode()
  def sample() -> None:
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
        temperature=1.0, min_new_tokens=load['new_tokens'],
        max_new_tokens=load['new_tokens'], pad_token_id=0)
    assert found.shape[1] == load['prompt_length'] + load['new_tokens']

  return sample


def make_update(model: torch.nn.Module, load: dict) -> Callable[[], None]:
  """The policy gradient of all candidates, then AdamW."""
  model = peft.get_peft_model(model, peft.LoraConfig(
      r=16, lora_alpha=32, target_modules='all-linear'))
  model.train()
  optimizer = torch.optim.AdamW(
      [x for x in model.parameters() if x.requires_grad])
  new = load['new_tokens']
  groups = random_ids(
      load['num_prompts'], load['group_size'], load['prompt_length'] + new,
      vocab_size=model.config.vocab_size)
  advantages = torch.randn(groups.shape[:2])

  def update() -> None:
    for ids, advantage in zip(groups, advantages):
      logits = model(input_ids=ids, logits_to_keep=new + 1).logits[:, :-1]
      logprobs = torch.log_softmax(logits, -1).gather(
          -1, ids[:, -new:, None])[..., 0]
      (-(advantage[:, None] * logprobs).sum() / advantages.numel()).backward()
    optimizer.step()
    optimizer.zero_grad()

  return update


def main() -> None:
  make = {'sample': make_sampling, 'update': make_update}
  work = {}
  for line in sys.stdin:
    if line not in work:
      work.clear()  # A second model may not fit the memory.
      request = json.loads(line)
      work[line] = make[request['work']](
          transformers.AutoModelForCausalLM.from_config(
              transformers.AutoConfig.for_model(**request['model'])).to(
                  getattr(torch, request['dtype'])),
          *request['loads'])
    start = time.perf_counter()
    work[line]()
    print(json.dumps({'seconds': time.perf_counter() - start}), flush=True)


if __name__ == '__main__':
  main()
