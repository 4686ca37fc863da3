"""Mathematics: a tool agent and a reasoner solve problems by AT-GRPO.

  python -m atgrpo_jax.main --config configs/maths.py:size=nano \
      --workdir runs/maths

trains `models/reckoner` on generated word problems
(`environments/math_problems/stories`) on two CPU cores, and

  python -m atgrpo_jax.main --config configs/maths.py:size=1.7b \
      --config.dataset.data_dir=DATA --workdir runs/maths

Qwen3-1.7B, or with size=8b Qwen3-8B, on Polaris, or with
--config.dataset.config=dapo on DAPO: groups of 4, 4 turns, 128 problems in a
step, 150 steps, a learning rate of 1e-6, prompts of 8192 and answers of 4096
tokens, 20 s for a program, temperature 1 in training and 0.6 in evaluations
(arXiv 2510.11062, and a paper that runs the same test-bed again, whose numbers
of steps and tokens these are). The paper used a node of 8 H100. With
topology=v6e:4x4 the run can be checked for a slice of TPU v6e by --mode
compile_check. Qwen3 has not been run here. The paper reports for 1.7B, with one
policy for all roles, 16.7 % on AIME24, 16.7 % on AIME25 and 39.6 % on
OlympiadBench, and for 8B 50.0, 35.2 and 56.8 %; it samples evaluations with
top-p 0.95 and top-k 20, which we do not.

The test is AIME24, AIME25 and OlympiadBench together. For one of them alone:

  python -m atgrpo_jax.main --mode evaluate \
      --config configs/maths.py:size=1.7b --workdir runs/maths \
      --config.evaluation.test=aime24 --config.evaluation.name=aime24
"""

from configs import common
from configs import slices

# A single agent has no tool; `sa_tool_grpo` is GRPO of the tool agent alone.
SYSTEMS = {**common.SYSTEMS, 'sa_tool_grpo': {
    'environment.team': 'tool', 'environment.max_turns': 1}}


def get_config(arg: str = ''):
  """A team that solves problems.

  Of `arg`, `size` is the model, `team` is 'pair', 'solo' or 'tool', `system` is
  one of `SYSTEMS`, `topology` is a TPU slice for --mode compile_check, and
  `debug` means two small steps.
  """
  arg = common.parse_arg(
      arg, size='nano', team='', system='at_grpo', topology='', debug=False)
  if arg.system not in SYSTEMS:
    raise ValueError(f'system={arg.system!r} is not one of {list(SYSTEMS)}.')
  c = common.base_config(arg.size)
  c.environment.module = 'environments.math_problems.env'
  c.environment.team = arg.team or 'pair'
  c.environment.options.program_seconds = 20.0
  c.dataset.builder = 'environments.math_problems.maths.maths_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'aime24+aime25+olympiadbench'
  c.evaluation.temperature = 0.6

  if arg.size == 'nano':
    c.model.folder = 'models/reckoner'
    c.environment.max_turns = 2
    c.environment.options.program_seconds = 2.0
    c.dataset.builder = (
        'environments.math_problems.stories.stories_dataset_builder')
    c.evaluation.test = 'test[:200]'
    c.evaluation.temperature = 1.0
    c.rollout.num_tasks = 16
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 40
    c.rollout.read_of_cut = 'nothing'
    c.optimizer.learning_rate = 3e-4
    c.optimizer.warmup_updates = 0
    c.optimizer.weight_decay = 0.0
    # The last holds whatever programs print.
    c.buckets.prompt = (80, 144, 256, 2008)
    c.buckets.completion = (16, 40)
    c.buckets.groups = (16, 64)
    c.buckets.microbatch_tokens = 2400
    c.critic.learning_rate = 1e-3
    c.train.num_steps = 150
    c.train.diagnose_every = 10

  if arg.debug:
    c.rollout.num_tasks = 2
    c.rollout.group_size = 2
    c.dataset.train = 'train[:8]'
    c.evaluation.validation = 'validation[:2]'
    c.evaluation.test = 'test[:2]' if arg.size == 'nano' else 'aime24[:2]'
    c.train.num_steps = 2
    c.train.groups_every = 1

  c.update_from_flattened_dict(SYSTEMS[arg.system])
  if arg.team not in ('', c.environment.team):
    raise ValueError(
        f'team={arg.team!r}, but system={arg.system!r} is one agent alone.')
  if c.policies == 'lora_per_role':
    c.optimizer.learning_rate *= 10  # An adapter is small.
  if arg.topology:
    slices.put_on_slice(c, arg.size, arg.topology)
  c.lock()
  return c
