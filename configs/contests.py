"""Contests: a coder and a tester solve programming problems by AT-GRPO.

  python -m atgrpo_jax.main --config configs/contests.py:size=nano \
      --workdir runs/contests

trains `models/reckoner` on generated recipes
(`environments/programming/recipes`) on two CPU cores, and

  python -m atgrpo_jax.main --config configs/contests.py:size=1.7b \
      --workdir runs/contests-1.7b

trains Qwen3-1.7B on APPS, and size=8b Qwen3-8B on CodeContests, as the paper
does (arXiv 2510.11062). Groups of 4, 4 turns, 128 problems in a step, 150
steps, a learning rate of 1e-6, prompts of 8192 and answers of 4096 tokens,
temperature 1 in training and 0.6 in evaluations: these are the numbers of a
paper that runs the same test-bed again, for theirs are not all known. It took
512 s for the rollout of a step with 1.7B on 8 H20; the first paper used a node
of 8 H100. With topology=v6e:4x4 the run can be checked for a slice of TPU v6e
by --mode compile_check. It has not been run here.

The first paper reports, for 1.7B with one policy for all roles and with one for
each, 17.6 and 18.6 % on APPS, 4.8 and 7.8 % on CodeContests and 20.9 and 24.0 %
on LiveCodeBench v6; for 8B 45.8 and 46.5, 18.1 and 18.1, 30.3 and 33.1 %. The
second has 16.4 % on APPS and 16.7 % on LiveCodeBench for an untrained 1.7B
alone. Both sample evaluations with top-p 0.95 and top-k 20, which we do not,
and the first grades by fewer tests.

APPS is tested on 500 problems, in the shares that its levels have. For another
benchmark, evaluate exported policies:

  python -m atgrpo_jax.main --mode evaluate \
      --config configs/contests.py:size=1.7b,data=livecodebench \
      --config.model.folder=runs/contests-1.7b/export/shared \
      --workdir runs/livecodebench
"""

from configs import common
from configs import slices

# Data set -> splits to train on, to validate and to test.
_SPLITS = {
    'recipes': ('train', 'validation[:64]', 'test[:200]'),
    'apps': (
        'train[:-64]', 'train[-64:]', 'test[:6%]+test[60%:62%]+test[80%:82%]'),
    'code_contests': ('train', 'valid[:64]', 'test'),
    'livecodebench': ('train', 'v6[:64]', 'v6'),  # There is none to train on.
}


def get_config(arg: str = ''):
  """A coder and a tester.

  Of `arg`, `size` is the model, `data` one of 'recipes', 'apps',
  'code_contests' and 'livecodebench' (by default what the paper trains this
  size on, and for the small model recipes, which alone it can do), `team` is
  'pair' or 'solo', `system` is one of `common.SYSTEMS`, `topology` is a TPU
  slice for --mode compile_check, and `debug` means two small steps.
  """
  arg = common.parse_arg(
      arg, size='1.7b', data='', team='', system='at_grpo', topology='',
      debug=False)
  data = arg.data or {'nano': 'recipes', '8b': 'code_contests'}.get(
      arg.size, 'apps')
  for name, value, known in (
      ('data', data, _SPLITS), ('system', arg.system, common.SYSTEMS)):
    if value not in known:
      raise ValueError(f'{name}={value!r} is not one of {list(known)}.')
  if (arg.size == 'nano') != (data == 'recipes'):
    raise ValueError(
        f'size={arg.size!r} and data={data!r} do not go together: the small '
        "model writes programs for 'recipes' alone, which are too easy for "
        'others.')
  c = common.base_config(arg.size)
  c.environment.module = 'environments.programming.contests.env'
  c.environment.team = arg.team or 'pair'
  c.environment.num_workers = 8
  c.environment.program_slots = 16
  c.dataset.builder = f'environments.programming.{data}.{data}_dataset_builder'
  c.dataset.train, c.evaluation.validation, c.evaluation.test = _SPLITS[data]
  c.evaluation.temperature = 0.6
  # The last holds whatever is written, of tokens of one byte.
  c.buckets.prompt = (1024, 2048, 4096, 8192, 32768)

  if arg.size == 'nano':
    c.model.folder = 'models/reckoner'
    c.environment.max_turns = 2
    c.environment.num_workers = 2
    c.environment.program_slots = 2
    c.dataset.config = 'contests'
    c.evaluation.temperature = 1.0
    c.rollout.num_tasks = 16
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 48
    c.rollout.read_of_cut = 'nothing'
    c.optimizer.learning_rate = 3e-4
    c.optimizer.warmup_updates = 0
    c.optimizer.weight_decay = 0.0
    # The last holds whatever programs print.
    c.buckets.prompt = (80, 160, 2000)
    c.buckets.completion = (24, 48)
    c.buckets.groups = (16, 64)
    c.buckets.microbatch_tokens = 2400
    c.critic.learning_rate = 1e-3
    c.train.num_steps = 150

  if arg.debug:
    c.rollout.num_tasks = 2
    c.rollout.group_size = 2
    c.dataset.train = 'train[:8]'
    for split in ('validation', 'test'):
      c.evaluation[split] = c.evaluation[split].partition('[')[0] + '[:2]'
    c.train.num_steps = 2
    c.train.groups_every = 1

  c.update_from_flattened_dict(common.SYSTEMS[arg.system])
  if arg.team not in ('', c.environment.team):
    raise ValueError(
        f'team={arg.team!r}, but system={arg.system!r} is one agent alone.')
  if c.policies == 'lora_per_role':
    c.optimizer.learning_rate *= 10  # An adapter is small.
  if arg.topology:
    slices.put_on_slice(c, arg.size, arg.topology)
  c.lock()
  return c
