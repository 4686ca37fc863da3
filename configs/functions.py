"""Functions: two agents write a helper and its caller by MAGRPO.

  python -m atgrpo_jax.main --config configs/functions.py:size=nano \
      --workdir runs/functions

trains two copies of `models/reckoner` on generated recipes in one turn on two
CPU cores, and

  python -m atgrpo_jax.main --config configs/functions.py:size=coder-3b \
      --workdir runs/functions-coder

trains two Qwen2.5-Coder-3B (size=coder-7b: the single agent of the paper's
tables, with team=solo) on HumanEval (kind=coop_humaneval: CoopHumanEval,
kind=mbpp: MBPP) with the settings of arXiv 2508.04652 and its released configs:
groups of 4, 256 tokens and a learning rate of 2e-5. HumanEval has two turns
with feedback on the first assert and 6 epochs; turns=1 has 10 epochs. Our
return is the sum of both turns. The paper samples with top-p 0.9 or 0.95; we do
not, because log-probabilities must be those of the sampler (`evaluation.top_p`
sets it for evaluations). With topology=v5e:2x4 each agent has four TPU v5e
chips. It has not been run here.

size=coder-0.5b trains adapters of Qwen2.5-Coder-0.5B-Instruct on two CPU cores,
as `bash launch/real.sh` does. team=discussion has two turns, in the second of
which each agent sees the other's function.

The paper reports a return of 83.7 % on HumanEval with one turn and of 86.7 %
with two (tests 68.4, cooperation 84.9 %), and on CoopHumanEval of 88.5 % with
two (tests 75.0, cooperation 86.3 %). The return is the team's reward.
"""

from configs import common
from configs import pod

# Kind -> splits for training, validation and test, tasks per update,
# temperature, and steps by number of turns. HumanEval and CoopHumanEval have no
# validation split. They validate on training problems, because the checkpoint
# `best` must not depend on the test. The released MBPP run has other rows and
# one turn.
_KINDS = {
    'recipes': (
        'train', 'validation[:64]', 'test[:200]', 16, 1.0, {1: 200, 2: 200}),
    'humaneval': (
        'test[33:163]', 'test[131:163]', 'test[:32]', 2, 0.7, {1: 650, 2: 390}),
    'coop_humaneval': (
        'test[16:]', 'test[66:]', 'test[:16]', 4, 0.8, {1: 132, 2: 132}),
    'mbpp': ('train', 'validation', 'test', 2, 0.8, {1: 1200, 2: 1200}),
}


def get_config(arg: str = ''):
  """Returns the config of two agents that write a program.

  `kind` is a key of `_KINDS`; `turns` is 1 or 2, by default 1 for models that
  CPUs train and otherwise 2, and 2 for a discussion.
  """
  arg = common.parse_arg(
      arg, kind='', turns=0, system='magrpo', team='', size='coder-3b',
      topology='', debug=False)
  is_small = arg.size == 'nano'
  arg.kind = arg.kind or ('recipes' if is_small else 'humaneval')
  is_laptop = arg.size in common.LAPTOP
  arg.turns = arg.turns or (
      2 if arg.team == 'discussion' or not is_laptop else 1)
  common.check_choices(
      arg, kind=_KINDS,
      turns=(2,) if arg.team == 'discussion' else (1,) if is_small else (1, 2))
  if is_small != (arg.kind == 'recipes'):
    raise ValueError(
        f'size={arg.size!r} does not go with kind={arg.kind!r}: nano writes '
        "programs for 'recipes' only, which are too easy for other sizes.")
  c = common.magrpo_config(arg, 'environments.programming.functions.env')
  c.environment.max_turns = arg.turns
  c.environment.options.feedback_tests = 1
  c.dataset.builder = 'environments.programming.benchmarks_dataset_builder'
  c.dataset.config = arg.kind
  (c.dataset.train, c.evaluation.validation, c.evaluation.test,
   c.rollout.num_tasks, temperature, num_steps) = _KINDS[arg.kind]
  c.evaluation.temperature = temperature
  c.rollout.temperature = temperature
  c.rollout.max_new_tokens = 256
  c.optimizer.learning_rate = 2e-5
  # The last bucket holds the longest prompt in tokens of one byte, and leaves
  # 256 of the positions of Qwen2.5-Coder-3B.
  c.buckets.prompt = (512, 1024, 2048, 32512)
  c.buckets.completion = (128, 256)
  c.buckets.groups = (1, 4, 32)
  c.train.num_steps = num_steps[arg.turns]
  c.train.checkpoint_every = c.train.groups_every = 50
  c.evaluation.validate_every = 50

  if is_small:
    # The largest prompt bucket leaves 48 of the model's positions.
    common.use_small_model(
        c, 'models/reckoner', max_new_tokens=48, prompt_buckets=(80, 160, 2000),
        completion_buckets=(24, 48), learning_rate=3e-4)
    c.dataset.builder = 'environments.programming.recipes_dataset_builder'
    c.dataset.config = 'functions'
    c.rollout.keep_truncated = False
    c.train.checkpoint_every = c.train.groups_every = 10
    c.evaluation.validate_every = 10

  if arg.size == 'coder-0.5b':
    common.use_coder(
        c, prompt_buckets=(512, 768, 2048, 32512), max_new_tokens=128)
    c.environment.options.example = True
    c.policies = 'lora_per_role'
    c.rollout.num_tasks = 2
    c.rollout.group_size = 8
    c.evaluation.validation = 'test[131:147]'
  if arg.turns > 1 and c.train.update_order == 'last_turn':
    c.train.update_order = 'nodes'

  common.adapt_to_critic(
      c, arg, (160, 320, 4000) if is_small else (1024, 2048, 4096, 32768))
  return pod.finish(c, arg, ('aux', 'main'))
