"""Writing teams: two texts about one source, by MAGRPO and its baselines.

  python -m atgrpo_jax.main --config configs/writing.py:kind=posts,size=nano \
      --workdir runs/writing

trains two copies of `models/writer` on two CPU cores,

  python -m atgrpo_jax.main --workdir runs/factbook \
      --config configs/writing.py:kind=factbook,size=135m,system=magrpo_cross

trains two adapters of SmolLM2-135M there, as `bash launch/real.sh --task
factbook` does, and

  python -m atgrpo_jax.main --config configs/writing.py:kind=tldr,size=1.7b \
      --config.dataset.data_dir=DATA --workdir runs/tldr

trains two Qwen3-1.7B with the settings of the paper (arXiv 2508.04652): groups
of 4, 256 tokens, temperature 0.7, a learning rate of 5e-6, two epochs of 1000
tasks with one update per task. With topology=v5e:2x4 each writer has four TPU
v5e chips; docs/hardware.md says what fits. It has not been run. The paper
reports a return of 94.5 % for tldr and 93.1 % for arxiv. It samples with top-p
0.9; we do not, because the learner scores exactly what was sampled
(`evaluation.top_p` sets it for evaluations).
"""

from configs import common
from configs import pod

_ROLES = {
    'posts': ('concise', 'detailed'), 'tldr': ('concise', 'detailed'),
    'factbook': ('concise', 'detailed'), 'arxiv': ('background', 'method')}


def get_config(arg: str = ''):
  """Returns the config of a team of writers.

  `kind` is a task of `environments.writing.env`.
  """
  arg = common.parse_arg(
      arg, kind='posts', system='magrpo', team='', size='nano', topology='',
      debug=False)
  c = common.magrpo_config(arg, 'environments.writing.env')
  c.environment.max_turns = 2 if c.environment.team == 'discussion' else 1
  c.environment.options.kind = arg.kind
  task = arg.kind.partition('_')[0]
  c.dataset.builder = f'environments.writing.{task}.{task}_dataset_builder'

  c.dataset.train = 'train[:1000]'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'test[:1000]'
  if task == 'factbook':  # Has 500 training passages.
    c.dataset.train, c.evaluation.test = 'train', 'test'
  if task == 'arxiv':  # The only other split is `val`.
    c.evaluation.validation, c.evaluation.test = 'val[1000:1064]', 'val[:1000]'
  c.evaluation.temperature = 0.7
  c.rollout.num_tasks = 1
  c.rollout.temperature = 0.7
  # A single writer of both texts has 260, as in the released baseline.
  c.rollout.max_new_tokens = 260 if c.environment.team == 'solo' else 256
  c.optimizer.learning_rate = 5e-6
  c.buckets.prompt = (512, 1024, 2048)
  c.buckets.completion = (128, c.rollout.max_new_tokens)
  c.buckets.groups = (1, 4, 32)
  c.train.num_steps = 2000
  c.train.checkpoint_every = c.train.groups_every = 100
  c.evaluation.validate_every = 100

  if arg.size == 'nano':
    common.use_small_model(
        c, 'models/writer',
        max_new_tokens=160 if c.environment.team == 'solo' else 80,
        prompt_buckets=(144, 208, 304), completion_buckets=(32, 80, 160),
        learning_rate=3e-4)
    c.dataset.train = 'train'
    c.evaluation.test = 'test[:200]'
    c.rollout.temperature = 1.0
    c.train.num_steps = 300
    c.train.checkpoint_every = c.train.groups_every = 50
    c.evaluation.validate_every = 20

  if arg.size == '135m':
    common.use_small_model(
        c, c.model.folder,
        max_new_tokens=192 if c.environment.team == 'solo' else 96,
        prompt_buckets=(288, 576), completion_buckets=(96, 192),
        learning_rate=1e-3)
    # One group without padding.
    c.buckets.microbatch_tokens = 1056
    c.policies = 'lora_per_role'
    c.rollout.num_tasks = 2
    c.evaluation.temperature = 0.7
    c.evaluation.validation = 'validation[:16]'
    c.evaluation.test = 'test[:100]'
    c.buckets.groups = (4, 32)
    c.train.num_steps = 20
    c.train.checkpoint_every = c.train.groups_every = 5
    c.evaluation.validate_every = 10

  common.adapt_to_critic(
      c, arg, {'nano': (208, 304, 512), '135m': (384, 576, 1152)}.get(
          arg.size, (1024, 2048, 4096)))
  return pod.finish(c, arg, _ROLES[task])
