"""Mathematics: a tool agent and a reasoner solve problems by AT-GRPO.

  python -m atgrpo_jax.main --config configs/maths.py:size=nano \
      --workdir runs/maths

trains `models/reckoner` on generated word problems
(`environments/math_problems/stories.py`) on two CPU cores, and

  python -m atgrpo_jax.main --config configs/maths.py:size=1.7b \
      --config.dataset.data_dir=DATA --workdir runs/maths

trains Qwen3-1.7B (size=8b: Qwen3-8B) on Polaris. Groups of 4, 4 turns, a
learning rate of 1e-6 and 20 s per program are those of arXiv 2510.11062. 128
problems in a step, 150 steps, prompts of 8192 and candidates of 4096 tokens,
temperature 1 in training and 0.6 in evaluation are those of a later paper on
the same tasks. The paper used a node of 8 H100. With topology=v6e:4x4, --mode
compile_check checks the run for a TPU v6e slice. Qwen3 has not been run here.

With one policy for all roles the paper reports, for 1.7B, 16.7 % on AIME24,
16.7 % on AIME25 and 39.6 % on OlympiadBench, and for 8B 50.0, 35.2 and 56.8 %.
It evaluates with top-p 0.95 and top-k 20; we use neither.

The test joins AIME24, AIME25 and OlympiadBench. To test one of them:

  python -m atgrpo_jax.main --mode evaluate \
      --config configs/maths.py:size=1.7b --workdir runs/maths \
      --config.evaluation.test=aime24 --config.evaluation.name=aime24
"""

from configs import common
from configs import slices

# `sa_grpo` has no tool; `sa_tool_grpo` trains the tool agent alone.
SYSTEMS = {**common.SYSTEMS, 'sa_tool_grpo': {
    'environment.team': 'tool', 'environment.max_turns': 1}}


def get_config(arg: str = ''):
  """Returns the config of a team that solves problems.

  `arg` sets `size`, the model; `team`, one of `environments.math_problems.env`;
  `system`, one of `SYSTEMS`; `topology`, a TPU slice for --mode compile_check;
  and `debug` for two small steps.
  """
  arg = common.parse_arg(
      arg, size='nano', team='', system='at_grpo', topology='', debug=False)
  common.check_choices(arg, system=SYSTEMS)
  c = common.base_config(arg.size)
  c.environment.module = 'environments.math_problems.env'
  c.environment.options.program_seconds = 20.0
  c.dataset.builder = 'environments.math_problems.maths_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'aime24+aime25+olympiadbench'
  c.evaluation.temperature = 0.6

  if arg.size == 'nano':
    c.model.folder = 'models/reckoner'
    c.environment.max_turns = 2
    c.environment.options.program_seconds = 2.0
    c.dataset.builder = (
        'environments.math_problems.stories_dataset_builder')
    c.evaluation.test = 'test[:200]'
    c.evaluation.temperature = 1.0
    c.rollout.num_tasks = 16
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 40
    c.rollout.keep_truncated = False
    c.optimizer.learning_rate = 3e-4
    c.optimizer.warmup_updates = 0
    c.optimizer.weight_decay = 0.0
    # The last prompt bucket holds the longest possible program output.
    c.buckets.prompt = (80, 144, 256, 2008)
    c.buckets.completion = (16, 40)
    c.buckets.groups = (16, 64)
    c.buckets.microbatch_tokens = 2400
    c.critic.learning_rate = 1e-3
    c.train.num_steps = 150
    c.train.diagnose_every = 10

  if arg.debug:
    common.shrink_for_debug(c)
  common.apply_system(c, arg, SYSTEMS[arg.system])
  if arg.topology:
    slices.put_on_slice(c, arg.size, arg.topology)
  c.lock()
  return c
