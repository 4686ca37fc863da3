"""Plan-Path: a tool agent and a planner walk through 10x10 mazes.

  python -m atgrpo_jax.main --config configs/plan_path.py:size=nano \
      --workdir runs/plan_path
"""

from configs import common


def get_config(arg: str = ''):
  """`size`: the model; `team`: 'pair' or 'solo'; `debug`: two small steps."""
  arg = common.parse_arg(arg, size='nano', team='pair', debug=False)
  c = common.base_config(arg.size)
  c.environment.module = 'environments.plan_path.env'
  c.environment.team = arg.team
  c.dataset.builder = 'environments.plan_path.plan_path_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'test[:200]'

  if arg.size == 'nano':
    c.rollout.num_tasks = 16
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 104
    c.optimizer.learning_rate = 1e-4
    c.optimizer.warmup_updates = 0
    c.optimizer.weight_decay = 0.0
    # The last holds whatever a program prints, at nearly a token a character.
    c.buckets.prompt = (128, 288, 1536)
    c.buckets.completion = (40, 104)
    c.buckets.groups = (16, 64)
    c.buckets.microbatch = 2
    c.train.num_steps = 30
    c.train.checkpoint_every = 5
    c.evaluation.validate_every = 5

  if arg.debug:
    c.rollout.num_tasks = 2
    c.rollout.group_size = 2
    c.dataset.train = 'train[:8]'
    c.evaluation.validation = 'validation[:2]'
    c.evaluation.test = 'test[:2]'
    c.train.num_steps = 2
    c.train.groups_every = 1
  c.lock()
  return c
