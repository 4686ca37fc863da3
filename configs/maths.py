"""Mathematics: a tool agent and a reasoner solve problems by AT-GRPO.

  python -m atgrpo_jax.main --config configs/maths.py:size=nano \
      --workdir runs/maths

trains `models/reckoner` on generated word problems on two CPU cores, and

  python -m atgrpo_jax.main --config configs/maths.py:size=1.7b \
      --config.dataset.data_dir=DATA --workdir runs/maths

trains Qwen3-1.7B (size=8b: Qwen3-8B) on Polaris. Groups of 4, 4 turns, a
learning rate of 1e-6 and 20 s per program come from arXiv 2510.11062, the other
numbers from a later paper on the same tasks. Qwen3 has not been run here.

With one policy for all roles the paper reports, for 1.7B, 16.7 % on AIME24,
16.7 % on AIME25 and 39.6 % on OlympiadBench, and for 8B 50.0, 35.2 and 56.8 %.
Evaluations use its top-p 0.95 and top-k 20.

size=coder-0.5b trains adapters of Qwen2.5-Coder-0.5B-Instruct on two CPU cores:
one for both agents on GSM8K (kind=gsm8k), or one for each on generated word
problems (kind=stories). kind=polaris has the data of the paper.

The test joins AIME24, AIME25 and OlympiadBench. To test one of them:

  python -m atgrpo_jax.main --mode evaluate \
      --config configs/maths.py:size=1.7b --workdir runs/maths \
      --config.evaluation.test=aime24 --config.evaluation.name=aime24
"""

from configs import common
from configs import pod

# `sa_grpo` has no tool; `sa_tool_grpo` trains the tool agent alone.
SYSTEMS = {**common.SYSTEMS, 'sa_tool_grpo': {
    'environment.team': 'tool', 'environment.max_turns': 1}}


def get_config(arg: str = ''):
  """Returns the config of a team that solves problems."""
  arg = common.parse_arg(
      arg, size='nano', kind='', team='', system='at_grpo', topology='',
      debug=False)
  arg.kind = arg.kind or {
      'nano': 'stories', 'coder-0.5b': 'gsm8k'}.get(arg.size, 'polaris')
  common.check_choices(
      arg, system=SYSTEMS,
      kind=('stories',) + (
          () if arg.size == 'nano' else ('polaris', 'gsm8k')))
  c = common.base_config(arg.size)
  c.environment.module = 'environments.math_problems.env'
  c.environment.options.program_seconds = 20.0
  c.dataset.builder = 'environments.math_problems.maths_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'aime24+aime25+olympiadbench'
  c.evaluation.temperature = 0.6
  if arg.size not in common.LAPTOP:
    c.evaluation.top_k, c.evaluation.top_p = 20, 0.95
  if arg.kind == 'gsm8k':
    c.dataset.builder = 'environments.math_problems.problems_dataset_builder'
    c.dataset.config = 'gsm8k'
    c.dataset.train = 'train[:-200]'
    c.evaluation.validation, c.evaluation.test = 'train[-200:]', 'test'
  if arg.kind == 'stories':
    c.dataset.builder = 'environments.math_problems.stories_dataset_builder'
    c.evaluation.test = 'test[:200]'

  if arg.size == 'nano':
    # The largest prompt bucket holds the longest possible program output.
    common.use_small_model(
        c, 'models/reckoner', max_new_tokens=40,
        prompt_buckets=(80, 144, 256, 2008), completion_buckets=(16, 40),
        learning_rate=3e-4)
    c.environment.max_turns = 2
    c.environment.options.program_seconds = 2.0
    c.rollout.keep_truncated = False
    c.train.num_steps = 150
    c.train.diagnose_every = 10

  if arg.size == 'coder-0.5b':
    common.use_coder(
        c, prompt_buckets=(384, 1024, 4096), max_new_tokens=192,
        completion_buckets=(32, 96, 144, 192))  # A reasoner writes ten tokens.
    c.environment.options.request = True
    c.environment.max_turns = 1
    c.evaluation.validation, c.evaluation.test = 'train[-16:]', 'test[:128]'
    c.train.num_steps = c.evaluation.validate_every = 16
    if arg.kind == 'stories':
      c.buckets.prompt = (128, *c.buckets.prompt)
      c.evaluation.validation = 'validation[:16]'
      c.policies = 'lora_per_role'
      c.rollout.group_size = 8
      c.rollout.temperature = 0.7  # At 1, half as many programs are right.
      c.train.num_steps = 30
      c.evaluation.validate_every = 15

  common.apply_system(c, arg, SYSTEMS[arg.system])
  return pod.finish(c, arg)
