"""Warm start of `models/writer`, the small base model of the writing task.

  python -m atgrpo_jax.main --mode pretrain --config configs/writer.py \
      --workdir runs/writer

It learns the grammar of `environments/writing/posts/demonstrations.py`: to
write random texts about a post, in the same way for all roles.
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
      'texts': {
          role: {'groups': groups, 'kinds': {'text': 1.0}}
          for role, groups in (
              ('concise', 5), ('detailed', 5), ('solo', 3),
              ('pipeline_detailed', 2), ('discussion_concise', 2),
              ('discussion_detailed', 2))}}
  c.phases = config_dict.ConfigDict()
  c.phases.texts = {'order': 0, 'num_steps': 1200, 'group_size': 4}

  c.buckets.prompt = (144, 208, 304)
  c.buckets.completion = (80, 144)
  c.buckets.groups = (16,)
  c.lock()
  return c
