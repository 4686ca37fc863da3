"""Warm start of `models/writer`, the small base model of the writing task.

  python -m atgrpo_jax.main --mode pretrain --config configs/writer.py \
      --workdir runs/writer

It drills copying, practises random texts about given words, and then learns to
write such texts about a post (`environments/writing/posts/grammar.py`), in the
same way for all roles.
"""

from ml_collections import config_dict

from configs import nano


def get_config():
  c = nano.get_config()
  c.unlock()
  c.tokenizer.vocab_size = 1024
  c.tokenizer.num_demonstrations = 200
  # A word with the blank before it is never joined to another: each is a
  # choice.
  c.tokenizer.pieces = r' ?\w+|[^\w ]'

  c.tasks = config_dict.ConfigDict()
  c.tasks.posts = {
      'module': 'environments.writing.posts.demonstrations', 'max_turns': (1,),
      'drill': {'copyist': {'groups': 48, 'kinds': {'text': 1.0}}},
      'practice': {'reporter': {'groups': 16, 'kinds': {'text': 1.0}}},
      'texts': {
          role: {'groups': groups, 'kinds': {'text': 1.0}}
          for role, groups in (
              ('concise', 4), ('detailed', 4), ('solo', 2),
              ('pipeline_detailed', 1), ('discussion_concise', 1),
              ('discussion_detailed', 1))}}
  c.phases = config_dict.ConfigDict()
  c.phases.drill = {'order': 0, 'num_steps': 250, 'group_size': 1}
  c.phases.practice = {'order': 1, 'num_steps': 450, 'group_size': 4}
  c.phases.texts = {'order': 2, 'num_steps': 1100, 'group_size': 4}

  c.buckets.prompt = (48, 144, 208, 304)
  c.buckets.completion = (32, 80, 176)
  c.buckets.groups = (16,)
  c.lock()
  return c
