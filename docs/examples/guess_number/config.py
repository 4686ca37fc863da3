"""Guess a number, in small steps."""

from configs import common


def get_config(size='nano'):
  c = common.base_config(size)
  c.environment.module = 'guess_number.env'
  c.environment.team = 'pair'
  c.environment.options.largest = 9
  c.dataset.builder = 'guess_number.guess_number_dataset_builder'
  c.rollout.num_tasks = 16
  c.rollout.group_size = 8
  c.rollout.max_new_tokens = 64
  c.buckets.prompt = (128,)
  c.buckets.completion = (64,)
  c.train.num_steps = 20
  c.lock()
  return c
