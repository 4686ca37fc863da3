"""What every training config shares, with the defaults of AT-GRPO."""

from collections.abc import Collection, Mapping
import re
from typing import Any

from ml_collections import config_dict

SIZES = ('nano', '0.6b', '1.7b', '4b', '8b')

_EPISODES = {
    'rollout.mode': 'parallel', 'rollout.selection': 'all',
    'rollout.return_type': 'episode_return'}

# What MAGRPO changes of AT-GRPO (arXiv 2508.04652).
MAGRPO = {
    'policies': 'per_role', 'rollout.mode': 'joint', 'rollout.selection': 'all',
    'rollout.return_type': 'return_to_go',
    'advantage.group_key': ('env', 'agent', 'turn', 'branch'),
    'loss.aggregation': 'constant', 'optimizer.warmup_updates': 0,
    'optimizer.max_grad_norm': 1e9,  # Nothing is clipped.
}
# The two versions of MAGRPO, in all values in which they differ: arXiv
# 2508.04652, and the defaults of its released code, CoMLRL 1.4.3. That stops a
# branch above -0.2 of rewards from -4 to 0.
MAGRPO_PRESETS = {
    'paper': {
        'rollout.discount': 0.9, 'rollout.cross_credit': 'mean',
        'rollout.stop_above': None, 'advantage.scale': 'none',
        'optimizer.weight_decay': 0.0, 'train.update_order': 'last_turn'},
    'comlrl143': {
        'rollout.discount': 1.0, 'rollout.cross_credit': 'sum',
        'rollout.stop_above': 0.95, 'advantage.scale': 'std',
        'optimizer.weight_decay': 0.01, 'train.update_order': 'first_turn'},
}
# What actor-critic changes of that (the controls of arXiv 2601.21972): a critic
# for each policy, or one that sees the prompts of all roles.
_ACTOR_CRITIC = {
    'rollout.return_type': 'bootstrapped', 'rollout.cross_credit': 'mean',
    'advantage.baseline': 'critic', 'advantage.scale': 'none'}
IAC = {'critic.kind': 'independent', **_ACTOR_CRITIC}
MAAC = {'critic.kind': 'central', **_ACTOR_CRITIC}

_MAGRPO_OF_A_PAIR = {
    **MAGRPO, **MAGRPO_PRESETS['paper'], 'policies': 'shared'}
# What each compared system changes of AT-GRPO with one policy for a pair.
SYSTEMS = {
    'sa_grpo': {'environment.team': 'solo', 'environment.max_turns': 1},
    'sa_grpo_turns': {
        'environment.team': 'solo', 'advantage.group_key': ('env',),
        **_EPISODES},
    'mas_grpo': {'advantage.group_key': ('env',), **_EPISODES},
    'mas_grpo_agent': {'advantage.group_key': ('env', 'agent'), **_EPISODES},
    'mas_grpo_turn': {'advantage.group_key': ('env', 'turn'), **_EPISODES},
    'mas_grpo_agent_turn': {
        'advantage.group_key': ('env', 'agent', 'turn'), **_EPISODES},
    'at_grpo': {},
    'at_grpo_per_role': {'policies': 'per_role'},
    'at_grpo_lora': {'policies': 'lora_per_role'},
    # With two candidates of each prompt, as the paper has for four turns.
    'magrpo': {**_MAGRPO_OF_A_PAIR, 'rollout.group_size': 2},
    # As many candidates as AT-GRPO has, of which one goes on; what would follow
    # the others a critic says.
    'iac': {**_MAGRPO_OF_A_PAIR, **IAC, 'rollout.selection': 'uniform'},
    'maac': {**_MAGRPO_OF_A_PAIR, **MAAC, 'rollout.selection': 'uniform'},
}

# Overrides of each system relative to MAGRPO with a pair. AT-GRPO plays a
# pipeline, and continues after the first role, whose reward comes later.
MAGRPO_SYSTEMS = {
    'magrpo': {},
    'magrpo_cross': {'rollout.joint_actions': 'cross'},
    'sa_grpo': {'environment.team': 'solo'},
    'iac': IAC,
    'maac': MAAC,
    'at_grpo': {
        'environment.team': 'pipeline', 'rollout.mode': 'tree',
        'rollout.selection': 'greedy',
        'rollout.return_type': 'monte_carlo', 'rollout.num_continuations': 1,
        'rollout.discount': 1.0,
        'advantage.group_key': ('env', 'agent', 'turn'),
        'advantage.scale': 'std', 'loss.aggregation': 'token_mean',
        'optimizer.max_grad_norm': 1.0, 'train.update_order': 'mixed'},
}


def parse_arg(arg: str, **defaults):
  """Reads `file.py:a=1,b` into a ConfigDict; a bare name stands for True."""
  values = config_dict.ConfigDict(defaults)
  for item in filter(None, arg.split(',')):
    name, equals, text = item.partition('=')
    if name not in defaults:
      raise ValueError(
          f'config argument {name!r} is not one of {sorted(defaults)}.')
    kind = type(defaults[name])
    if kind is bool:
      if equals and text not in ('true', 'false'):
        raise ValueError(f'{item!r}: expected true or false.')
      values[name] = text != 'false'
    else:
      values[name] = kind(text)
  return values


def check_choices(
    arg: config_dict.ConfigDict, **choices: Collection[Any]) -> None:
  """Raises ValueError for an argument that is not one of its choices."""
  for name, valid in choices.items():
    if arg[name] not in valid:
      raise ValueError(f'{name}={arg[name]!r} is not one of {list(valid)}.')


def apply_system(
    c: config_dict.ConfigDict, arg: config_dict.ConfigDict,
    system: Mapping[str, Any]) -> None:
  """Sets the team and the overrides of a system.

  Raises:
    ValueError: `arg.team` is not the team of the system.
  """
  c.environment.team = arg.team or 'pair'
  c.update_from_flattened_dict(system)
  if arg.team not in ('', c.environment.team):
    raise ValueError(
        f'team={arg.team!r} does not go with system={arg.system!r}, which has '
        f'team={c.environment.team!r}.')
  if c.policies == 'lora_per_role':
    c.optimizer.learning_rate *= 10  # Adapters are small.


def magrpo_config(
    arg: config_dict.ConfigDict, module: str) -> config_dict.ConfigDict:
  """Returns MAGRPO on an environment: `arg` has system, preset, team, size."""
  check_choices(arg, system=MAGRPO_SYSTEMS, preset=MAGRPO_PRESETS)
  if arg.system == 'at_grpo' and arg.preset != 'paper':
    raise ValueError(
        f'preset={arg.preset!r} is a preset of MAGRPO and does not go with '
        "system='at_grpo'; use preset=paper.")
  c = base_config(arg.size)
  c.update_from_flattened_dict(MAGRPO | MAGRPO_PRESETS[arg.preset])
  c.environment.module = module
  c.environment.reward = 'outcome'
  apply_system(c, arg, MAGRPO_SYSTEMS[arg.system])
  return c


def use_single_candidates(c: config_dict.ConfigDict) -> None:
  """Replaces groups by as many prompts: a critic needs no group."""
  c.rollout.num_tasks *= c.rollout.group_size
  c.rollout.group_size = 1


def shrink_for_debug(c: config_dict.ConfigDict) -> None:
  """Makes two small steps, on the first tasks of the first of its splits."""
  def first(split, num):
    return f'{re.split("[+[]", split)[0]}[:{num}]'

  c.dataset.train = first(c.dataset.train, 8)
  c.evaluation.validation = first(c.evaluation.validation, 2)
  c.evaluation.test = first(c.evaluation.test, 2)
  c.rollout.num_tasks = 2
  c.rollout.group_size = min(2, c.rollout.group_size)
  c.train.num_steps = 2
  c.train.groups_every = 1


def game_config(name: str, arg: str) -> config_dict.ConfigDict:
  """A team that plays the game `environments/boards/<name>`.

  Of `arg`, `size` is the model, `team` is one of `board_game.TEAMS`, `system`
  is one of `SYSTEMS`, and `debug` means two small steps.
  """
  arg = parse_arg(arg, size='nano', team='', system='at_grpo', debug=False)
  check_choices(arg, system=SYSTEMS)
  c = base_config(arg.size)
  c.environment.module = f'environments.boards.{name}.env'
  c.dataset.builder = f'environments.boards.{name}.{name}_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'test[:200]'

  if arg.size == 'nano':
    c.rollout.num_tasks = 16
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 144
    c.optimizer.learning_rate = 1e-4
    c.optimizer.warmup_updates = 0
    c.optimizer.weight_decay = 0.0
    # The last is what the model has positions for beside an answer, and holds
    # whatever programs print.
    c.buckets.prompt = (128, 320, 1904)
    c.buckets.completion = (40, 104, 144)
    c.buckets.groups = (16, 64)
    c.buckets.microbatch_tokens = 2400
    c.critic.learning_rate = 1e-3
    c.train.num_steps = 30
    c.train.checkpoint_every = 5
    c.train.diagnose_every = 10
    c.evaluation.validate_every = 5

  if arg.debug:
    shrink_for_debug(c)
  apply_system(c, arg, SYSTEMS[arg.system])
  return c


def base_config(size: str) -> config_dict.ConfigDict:
  """The parts of a config that do not depend on the task."""
  if size not in SIZES:
    raise ValueError(f'size={size!r} is not one of {list(SIZES)}.')
  c = config_dict.ConfigDict()
  c.seed = 0
  # Policies of the roles: one for all ('shared'), one for each ('per_role'), or
  # one LoRA adapter for each ('lora_per_role').
  c.policies = 'shared'
  # Any other assignment: a (role, policy) pair for each role.
  c.policy_map = ()
  # (policy, key, value) overrides of model, lora and optimizer, such as
  # (('tool', 'model.trained', 'none'),).
  c.per_policy = ()

  c.model = config_dict.ConfigDict()
  # A Hugging Face folder (config.json, tokenizer files, safetensors), or the
  # name of one on the hub.
  c.model.folder = (
      'models/nano' if size == 'nano' else f'Qwen/Qwen3-{size.upper()}')
  c.model.trained = 'all'  # Parameters; or 'lora', or 'none'.
  # Of the matrix products: 'float32' or 'bfloat16'.
  c.model.dtype = 'float32' if size == 'nano' else 'bfloat16'
  c.model.remat = True  # Recompute each layer in the backward pass.
  c.model.thinking = False  # Whether prompts ask for a thought first.

  c.lora = config_dict.ConfigDict()
  # A PEFT folder to start from, which has its own rank, alpha and targets; ''
  # starts from an adapter that changes nothing.
  c.lora.folder = ''
  c.lora.rank = 16
  c.lora.alpha = 32.0
  # Regular expressions; kernels whose names match one get an adapter.
  c.lora.targets = (
      'attention/[qkvo]/kernel', 'gate/kernel', 'up/kernel', 'down/kernel')

  c.mesh = config_dict.ConfigDict()
  # Devices that share one copy of the parameters, and devices that share the
  # heads and hidden units; 0: chosen by `distributed/fit.py`.
  c.mesh.fsdp = c.mesh.tensor = 1 if size == 'nano' else 0
  # Devices of each policy as (policy, first device, end), such as
  # (('tool', 0, 4), ('planner', 4, 8)); () gives every policy all devices.
  c.mesh.pools = ()

  c.environment = config_dict.ConfigDict()
  c.environment.module = config_dict.placeholder(str)
  c.environment.team = config_dict.placeholder(str)
  c.environment.max_turns = 4
  # Or 'outcome'; of the games also 'outcome_and_plans', of Sokoban 'oracle'.
  c.environment.reward = 'mixed'
  # What else the module's make_environment takes.
  c.environment.options = config_dict.ConfigDict()
  c.environment.num_workers = 2  # Processes that step environments.
  c.environment.program_slots = 2  # Programs that run at the same time.

  c.sandbox = config_dict.ConfigDict()
  # Isolation of model-written programs: 'bwrap', 'kernel', 'auto' (the stronger
  # one that works), 'unsafe_rlimit' (none), 'remote' (a SandboxFusion service),
  # or 'none' (programs are refused).
  c.sandbox.level = 'auto'
  c.sandbox.url = ''  # Of the service: 'http://HOST:PORT'.

  c.dataset = config_dict.ConfigDict()
  c.dataset.builder = config_dict.placeholder(str)
  c.dataset.config = ''  # Of the builder, such as '2boxes'; '' is its default.
  c.dataset.train = 'train'
  # '' is $TFDS_DATA_DIR or ~/tensorflow_datasets.
  c.dataset.data_dir = ''

  c.rollout = config_dict.ConfigDict()
  # 'tree' is AT-GRPO; 'parallel': independent episodes, as in plain GRPO;
  # 'joint' is MAGRPO.
  c.rollout.mode = 'tree'
  c.rollout.num_tasks = 128  # Of one step (E).
  # Candidates of one prompt, or parallel episodes of one task (K and G).
  c.rollout.group_size = 4
  # Which candidate goes on: 'greedy', 'team_greedy', 'softmax',
  # 'uniform', 'epsilon_greedy' (tree); 'all' (parallel); 'all', 'team_greedy',
  # 'uniform', 'first' (joint).
  c.rollout.selection = 'greedy'
  c.rollout.selection_temperature = 1.0
  c.rollout.selection_epsilon = 0.1
  # 'immediate', 'monte_carlo' (tree), 'return_to_go' (parallel, joint),
  # 'episode_return' (parallel) or 'bootstrapped' (joint, with a critic).
  c.rollout.return_type = 'immediate'
  c.rollout.num_continuations = 4  # Of each candidate, for 'monte_carlo'.
  c.rollout.alpha = 1.0  # Weight of the team reward.
  # Of each later step, in 'return_to_go', 'bootstrapped' and 'monte_carlo'.
  c.rollout.discount = 1.0
  # Of mode 'joint': candidates of one index ('aligned') or all combinations
  # ('cross'), of which a candidate gets the 'mean' or the 'sum' of the returns;
  # the most of one task; and the mean reward above which nothing follows.
  c.rollout.joint_actions = 'aligned'
  c.rollout.cross_credit = 'mean'
  c.rollout.max_joint_actions = 1000
  c.rollout.stop_above = config_dict.placeholder(float)
  c.rollout.temperature = 1.0
  c.rollout.max_new_tokens = 4096
  # Whether the environment reads a completion that reached max_new_tokens;
  # otherwise it reads an empty one.
  c.rollout.keep_truncated = True
  # Keys and values that are kept while sampling: as model.dtype ('auto'), or
  # 'int8', of which a run fits more groups and a TPU reads half as many bytes.
  c.rollout.kv_cache_dtype = 'auto'

  c.advantage = config_dict.ConfigDict()
  # Candidates that agree in these parts share a baseline: some of 'env',
  # 'agent', 'turn' and 'branch'. ('env',) is plain GRPO, all four are MAGRPO.
  c.advantage.group_key = ('env', 'agent', 'turn')
  # Or 'leave_one_out', 'max', 'none'; 'critic' for the value of the prompt.
  c.advantage.baseline = 'mean'
  c.advantage.scale = 'std'  # Or 'none'.

  c.critic = config_dict.ConfigDict()
  # 'independent': a critic per policy that sees the prompt of the acting role
  # (IAC); 'central': one critic that sees the prompts of the acting roles and
  # of those that have acted in this turn (MAAC).
  c.critic.kind = 'none'
  c.critic.form = 'v'  # Value of a prompt; 'q': of a prompt with its candidate.
  c.critic.learning_rate = 5e-6  # Otherwise the optimizer of the policy.
  c.critic.gae_lambda = 0.0  # 0: one-step TD; 1: Monte Carlo.
  c.critic.prompt_buckets = ()  # Padded input lengths; () is buckets.prompt.

  c.loss = config_dict.ConfigDict()
  c.loss.clip_low = 0.2
  c.loss.clip_high = 0.2
  c.loss.dual_clip = 0.0  # 0 for none.
  c.loss.ratio_level = 'token'  # Or 'sequence'.
  c.loss.aggregation = 'token_mean'  # Or 'sequence_mean', 'constant'.
  # Largest weight of a token for what sampler and learner differ in; 0: none.
  c.loss.importance_cap = 2.0
  # A penalty on the distance to the policy that training starts from. 'k3' has
  # the gradient of KL(policy || start), the reverse KL; 'k3_forward' that of
  # KL(start || policy), the forward KL, as in GRPO; 'none'.
  c.loss.kl_estimator = 'none'
  c.loss.kl_coefficient = 0.0
  c.loss.entropy_coefficient = 0.0

  c.optimizer = config_dict.ConfigDict()
  c.optimizer.learning_rate = 1e-6
  c.optimizer.warmup_updates = 10
  c.optimizer.decay_updates = 0  # 0: the rate stays.
  c.optimizer.final_lr_ratio = 0.0  # Final rate / learning_rate.
  c.optimizer.weight_decay = 0.01
  c.optimizer.max_grad_norm = 1.0
  c.optimizer.b1 = 0.9
  c.optimizer.b2 = 0.999

  c.buckets = config_dict.ConfigDict()
  c.buckets.prompt = (1024, 2048, 4096, 8192)
  c.buckets.completion = (512, 1024, 2048, 4096)
  c.buckets.groups = (4, 8, 16, 32, 64, 128)
  # Of one microbatch, for each shard of the groups.
  c.buckets.microbatch_tokens = 24576

  c.train = config_dict.ConfigDict()
  c.train.num_steps = 150  # 0: as many as completion_tokens allow.
  # The step after which the rollouts have generated so many is the last; 0 for
  # any number.
  c.train.completion_tokens = 0
  c.train.updates_per_rollout = 1
  # 'mixed' deals the groups out to so many updates; 'first_turn' and
  # 'last_turn' make an update for each turn, beginning with that.
  c.train.update_order = 'mixed'
  c.train.checkpoint_every = 10  # Steps.
  c.train.groups_every = 10  # Steps whose groups are written.
  # Who gets the metrics beside metrics.jsonl: 'tensorboard', 'wandb', or a
  # module with make_writer; and the steps, from 0, of which a trace is written.
  c.train.writers = ('tensorboard',)
  c.train.profile_steps = ()
  # Steps that measure gradients, entropy and distance to the start of each
  # role; 0 for none. Costs another pass over the groups, a copy of the start,
  # and memory for a gradient of each role.
  c.train.diagnose_every = 0

  c.evaluation = config_dict.ConfigDict()
  c.evaluation.validation = 'validation'
  c.evaluation.validate_every = 10  # Steps; one candidate each.
  c.evaluation.test = 'test'
  c.evaluation.temperature = 1.0  # 0 is greedy.
  # With --mode evaluate: the name of the file in evals/, and (role, policy)
  # pairs that assign the trained policies to other roles.
  c.evaluation.name = 'evaluation'
  c.evaluation.policy_map = ()
  # With --mode evaluate: test tasks that are also played one by one, for the
  # response time.
  c.evaluation.num_timed = 0
  # With --mode evaluate: episodes of each test task, for avg@k and pass@k.
  c.evaluation.num_samples = 1

  c.export = config_dict.ConfigDict()  # With --mode export.
  c.export.dtype = 'bfloat16'  # Or 'float32'.
  c.export.merged = False  # Adapters into their models.
  return c
