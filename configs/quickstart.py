"""Plan-Path in minutes on two CPU cores, for launch/quickstart.sh.

  python -m atgrpo_jax.main --config configs/quickstart.py --workdir runs/x
"""

from configs import common
from configs import plan_path


def get_config(arg: str = ''):
  """Returns plan_path.py:size=nano with fewer steps and compiled shapes."""
  common.parse_arg(arg)  # There are no arguments.
  c = plan_path.get_config('size=nano')
  c.dataset.train = 'train[:1000]'  # Reading all 10,000 takes seconds.
  c.evaluation.validation = 'validation[:16]'
  c.evaluation.test = 'test[:64]'
  c.evaluation.validate_every = 5
  c.rollout.num_tasks = 8
  c.rollout.max_new_tokens = 112
  c.buckets.prompt = (320, 1904)
  c.buckets.completion = (112,)
  c.buckets.groups = (16,)
  c.optimizer.learning_rate = 2e-4
  c.train.num_steps = 10
  c.train.checkpoint_every = 5
  c.train.diagnose_every = 0
  return c
