"""CoMLRL's MAGRPO as a contestant; needs an environment with CoMLRL.

Reads requests (`benchmarks.workload.request`) as JSON lines and replies to each
with a line {"seconds": ...}. Texts are ids separated by spaces.
"""

from collections.abc import Callable
import json
import sys
import time

from comlrl.trainers.reinforce import MAGRPOConfig
from comlrl.trainers.reinforce import MAGRPOTrainer
import numpy as np
import tokenizers
import transformers


def make_tokenizer(
    vocab_size: int) -> transformers.PreTrainedTokenizerFast:
  words = {str(index): index for index in range(vocab_size)}
  tokenizer = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(words, unk_token='2'))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=tokenizer, pad_token='0', eos_token='1',
      padding_side='left')


def reward(*completions, **_) -> list[float]:
  """The fraction of odd ids of each joint action."""
  return [
      float(np.mean([int(word) % 2 for text in joint for word in text.split()]))
      for joint in zip(*completions)]


def make_step(request: dict) -> Callable[[], float]:
  """A step of all agents, as one epoch over one example."""
  load = request['loads'][0]
  config = transformers.AutoConfig.for_model(
      **request['model'], pad_token_id=0, eos_token_id=1)
  ids = np.random.default_rng(0).integers(
      3, config.vocab_size, load['prompt_length'])
  num_agents = len(request['loads'])
  trainer = MAGRPOTrainer(
      agents=[
          transformers.AutoModelForCausalLM.from_config(config)
          for _ in range(num_agents)],
      num_agents=num_agents, tokenizer=make_tokenizer(config.vocab_size),
      train_dataset=[{'prompt': ' '.join(map(str, ids))}],
      reward_func=reward,
      args=MAGRPOConfig(
          num_agents=num_agents, num_turns=1, num_train_epochs=1,
          num_generations=load['group_size'],
          max_new_tokens=load['new_tokens'], temperature=1.0, top_p=1.0,
          top_k=0, joint_mode='aligned', rollout_buffer_size=1,
          train_batch_size=1, eval_interval=0,
          early_termination_threshold=None))
  trainer.verbose = False

  def step() -> float:
    start = time.perf_counter()
    trainer.train(min_new_tokens=load['new_tokens'])
    return time.perf_counter() - start

  return step


def main() -> None:
  steps = {}
  for line in sys.stdin:
    if line not in steps:
      steps[line] = make_step(json.loads(line))
    print(json.dumps({'seconds': steps[line]()}), flush=True)


if __name__ == '__main__':
  main()
