"""Contests: a coder and a tester solve programming problems by AT-GRPO.

  python -m atgrpo_jax.main --config configs/contests.py:size=nano \
      --workdir runs/contests

trains `models/reckoner` on generated recipes on two CPU cores, and

  python -m atgrpo_jax.main --config configs/contests.py:size=1.7b \
      --workdir runs/contests-1.7b

trains Qwen3-1.7B on APPS (size=8b: Qwen3-8B on CodeContests). Groups of 4, 4
turns and a learning rate of 1e-6 come from arXiv 2510.11062, the other numbers
from a later paper on the same tasks. Qwen3 has not been run here.
size=coder-0.5b trains an adapter of Qwen2.5-Coder-0.5B-Instruct, which both
agents share, on calls of HumanEval (data=humaneval_calls), on two CPU cores.

With one policy for all roles and with one per role, the first paper reports for
1.7B 17.6 and 18.6 % on APPS, 4.8 and 7.8 % on CodeContests and 20.9 and 24.0 %
on LiveCodeBench v6; for 8B 45.8 and 46.5, 18.1 and 18.1, 30.3 and 33.1 %.
Evaluations use its top-p 0.95 and top-k 20. It grades with fewer tests.

APPS is tested on 500 problems in the proportions of its levels. To test on
another benchmark, evaluate exported policies:

  python -m atgrpo_jax.main --mode evaluate \
      --config configs/contests.py:size=1.7b,data=livecodebench \
      --config.model.folder=runs/contests-1.7b/export/shared \
      --workdir runs/livecodebench
"""

from configs import common
from configs import pod

# Data set -> splits for training, validation and test.
_SPLITS = {
    'recipes': ('train', 'validation[:64]', 'test[:200]'),
    'apps': (
        'train[:-64]', 'train[-64:]', 'test[:6%]+test[60%:62%]+test[80%:82%]'),
    'code_contests': ('train', 'valid[:64]', 'test'),
    'livecodebench': ('train', 'v6[:64]', 'v6'),  # Has no training split.
    'humaneval_calls': ('test[30:134]', 'test[134:]', 'test[:30]'),
}


def get_config(arg: str = ''):
  """Returns the config of a coder and a tester.

  `data` is a key of `_SPLITS`, by default the paper's choice for this size.
  """
  arg = common.parse_arg(
      arg, size='1.7b', data='', team='', system='at_grpo', topology='',
      debug=False)
  arg.data = arg.data or {
      'nano': 'recipes', '8b': 'code_contests',
      'coder-0.5b': 'humaneval_calls'}.get(arg.size, 'apps')
  common.check_choices(
      arg, data=_SPLITS,
      system=[x for x in common.SYSTEMS if x != 'sa_tool_at_grpo'])
  if (arg.size == 'nano') != (arg.data == 'recipes'):
    raise ValueError(
        f"size={arg.size!r} and data={arg.data!r}: expected 'recipes' for "
        'nano, and another data set for other sizes.')
  c = common.base_config(arg.size)
  c.environment.module = 'environments.programming.contests.env'
  c.dataset.builder = 'environments.programming.benchmarks_dataset_builder'
  c.dataset.config = arg.data
  c.dataset.train, c.evaluation.validation, c.evaluation.test = (
      _SPLITS[arg.data])
  c.evaluation.temperature = 0.6
  if arg.size not in common.LAPTOP:
    c.evaluation.top_k, c.evaluation.top_p = 20, 0.95
  # The last bucket holds the longest prompt in tokens of one byte.
  c.buckets.prompt = (1024, 2048, 4096, 8192, 32768)

  if arg.size == 'nano':
    # The largest prompt bucket holds the longest possible program output.
    common.use_small_model(
        c, 'models/reckoner', max_new_tokens=48, prompt_buckets=(80, 160, 2000),
        completion_buckets=(24, 48), learning_rate=3e-4)
    c.environment.max_turns = 2
    c.dataset.builder = 'environments.programming.recipes_dataset_builder'
    c.dataset.config = 'contests'
    c.rollout.keep_truncated = False
    c.train.num_steps = 150

  if arg.size == 'coder-0.5b':
    common.use_coder(
        c, prompt_buckets=(512, 1024, 2048, 32512), max_new_tokens=192)
    c.environment.max_turns = 2
    c.evaluation.validation = 'test[134:150]'

  common.apply_system(c, arg, common.SYSTEMS[arg.system])
  return pod.finish(c, arg)
