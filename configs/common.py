"""Shared parts of the training configs; the defaults are AT-GRPO."""

from collections.abc import Collection, Mapping
import re
from typing import Any

from ml_collections import config_dict

# Size -> model folder or hub name.
MODELS = {
    'nano': 'models/nano',
    '135m': '.cache/smollm2',  # Made by python -m models.smollm2.
    'coder-0.5b': '.cache/qwen25_coder',  # By python -m models.qwen25_coder.
    '0.6b': 'Qwen/Qwen3-0.6B',
    '1.7b': 'Qwen/Qwen3-1.7B',
    '4b': 'Qwen/Qwen3-4B',
    '8b': 'Qwen/Qwen3-8B',
    'coder-3b': 'Qwen/Qwen2.5-Coder-3B',
    'coder-7b': 'Qwen/Qwen2.5-Coder-7B',
}
LAPTOP = ('nano', '135m', 'coder-0.5b')  # Sizes that two CPU cores can train.

_EPISODES = {
    'rollout.mode': 'parallel', 'rollout.selection': 'all',
    'rollout.return_type': 'episode_return'}

# Overrides of MAGRPO relative to AT-GRPO (arXiv 2508.04652).
MAGRPO = {
    'policies': 'per_role', 'rollout.mode': 'joint', 'rollout.selection': 'all',
    'rollout.return_type': 'return_to_go', 'rollout.discount': 0.9,
    'advantage.group_key': ('env', 'agent', 'turn', 'branch'),
    'advantage.scale': 'none',
    # Neither the ratio nor the gradient is clipped, although all turns after
    # the first that is updated are off policy.
    'loss.surrogate': 'unclipped', 'loss.aggregation': 'constant',
    'train.update_order': 'last_turn',
    'optimizer.warmup_updates': 0, 'optimizer.weight_decay': 0.0,
    'optimizer.max_grad_norm': 1e9,
}
# Overrides of actor-critic relative to MAGRPO (controls of arXiv 2601.21972): a
# critic for each policy, or one that sees the prompts of all roles.
_ACTOR_CRITIC = {
    'rollout.return_type': 'bootstrapped', 'advantage.baseline': 'critic',
    'advantage.scale': 'none'}
IAC = {'critic.kind': 'independent', **_ACTOR_CRITIC}
MAAC = {'critic.kind': 'central', **_ACTOR_CRITIC}

_MAGRPO_OF_A_PAIR = {**MAGRPO, 'policies': 'shared'}
# Overrides of each system relative to AT-GRPO with one policy for a pair.
SYSTEMS = {
    'sa_grpo': {'environment.team': 'solo', 'environment.max_turns': 1},
    # Controls: the tree of AT-GRPO without a team.
    'sa_at_grpo': {'environment.team': 'solo'},
    'sa_tool_at_grpo': {'environment.team': 'tool'},
    'sa_grpo_turns': {
        'environment.team': 'solo', 'advantage.group_key': ('env',),
        **_EPISODES},
    'mas_grpo': {'advantage.group_key': ('env',), **_EPISODES},
    'mas_grpo_agent': {'advantage.group_key': ('env', 'agent'), **_EPISODES},
    'mas_grpo_turn': {'advantage.group_key': ('env', 'turn'), **_EPISODES},
    'mas_grpo_agent_turn': {
        'advantage.group_key': ('env', 'agent', 'turn'), **_EPISODES},
    # The control of the tree: the rewards and groups of AT-GRPO.
    'mas_grpo_immediate': {
        'advantage.group_key': ('env', 'agent', 'turn'), **_EPISODES,
        'rollout.return_type': 'immediate'},
    # GiGPO (arXiv 2505.10978) with omega = 1.
    'gigpo': {
        **_EPISODES, 'rollout.discount': 0.95,
        'advantage.group_key': ('env', 'agent'), 'advantage.extra_terms': (
            ('return_to_go', ('env', 'agent', 'state'), 1.0),)},
    # HGPO (arXiv 2602.22817) with K = 2 and alpha = 1.
    'hgpo': {
        **_EPISODES, 'rollout.return_type': 'return_to_go',
        'rollout.discount': 0.95,
        'advantage.group_key': ('env', 'agent', 'state'),
        'advantage.extra_terms': (
            ('return_to_go', ('env', 'agent', 'history_1'), 2.0),
            ('return_to_go', ('env', 'agent', 'history_2'), 3.0)),
        'advantage.combination': 'mean'},
    # MT-GRPO (arXiv 2505.11821) with lambda = 1.
    'mt_grpo': {
        **_EPISODES, 'rollout.return_type': 'immediate',
        'advantage.extra_terms': (
            ('episode_return', ('env', 'agent'), 1.0),)},
    'at_grpo': {},
    'at_grpo_per_role': {'policies': 'per_role'},
    'at_grpo_lora': {'policies': 'lora_per_role'},
    # Two candidates of each prompt, as in the paper for four turns.
    'magrpo': {**_MAGRPO_OF_A_PAIR, 'rollout.group_size': 2},
    # As many candidates as AT-GRPO. One continues; a critic estimates what
    # would follow the others.
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
        'advantage.scale': 'std', 'loss.surrogate': 'clip',
        'loss.aggregation': 'token_mean',
        'optimizer.max_grad_norm': 1.0, 'train.update_order': 'mixed'},
}


def parse_arg(arg: str, **defaults):
  """Reads `file.py:a=1,b` into a ConfigDict; a bare name stands for True.

  `defaults` has the arguments of a config. All configs share these meanings:
  `size` is the model, a key of `MODELS`; `team` a team of the environment;
  `system` a compared system, such as those of `SYSTEMS`; `topology` a TPU slice
  or GPU node for --mode compile_check; and `debug` means two small steps.
  """
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


def check_choices(arg: Mapping[str, Any], **choices: Collection[Any]) -> None:
  """Raises ValueError for an argument that is not one of its choices."""
  for name, valid in choices.items():
    if arg[name] not in valid:
      raise ValueError(f'{name}={arg[name]!r} is not one of {list(valid)}.')


def apply_system(
    c: config_dict.ConfigDict, arg: config_dict.ConfigDict,
    system: Mapping[str, Any]) -> None:
  """Sets the team and the overrides of a system.

  Raises ValueError if `arg.team` is another team than that of the system.
  """
  c.environment.team = arg.team or 'pair'
  c.update_from_flattened_dict(system)
  if arg.team not in ('', c.environment.team):
    raise ValueError(
        f'team={arg.team!r} does not go with system={arg.system!r}, which has '
        f'team={c.environment.team!r}.')
  if c.policies == 'lora_per_role' and c.model.trained != 'lora':
    c.optimizer.learning_rate *= 10  # Adapters are small.


def magrpo_config(
    arg: config_dict.ConfigDict, module: str) -> config_dict.ConfigDict:
  """Returns MAGRPO on an environment: `arg` has system, team and size."""
  check_choices(arg, system=MAGRPO_SYSTEMS)
  c = base_config(arg.size)
  c.update_from_flattened_dict(MAGRPO)
  c.environment.module = module
  c.environment.reward = 'outcome'
  apply_system(c, arg, MAGRPO_SYSTEMS[arg.system])
  return c


def adapt_to_critic(
    c: config_dict.ConfigDict, arg: config_dict.ConfigDict,
    central_prompt_buckets: tuple[int, ...]) -> None:
  """Sets batches and input lengths of actor-critic, if `c` has a critic."""
  if c.critic.kind == 'central':  # Sees the prompts of all roles.
    c.critic.prompt_buckets = central_prompt_buckets
  # A critic needs no group, so each prompt has a single candidate. With nano
  # this would take five times as long, so it keeps MAGRPO's groups.
  if arg.system in ('iac', 'maac') and arg.size != 'nano':
    c.rollout.num_tasks *= c.rollout.group_size
    c.rollout.group_size = 1


def use_small_model(
    c: config_dict.ConfigDict, folder: str, *, max_new_tokens: int,
    prompt_buckets: tuple[int, ...], completion_buckets: tuple[int, ...],
    learning_rate: float) -> None:
  """Adapts a config to a model that two CPU cores can train."""
  c.model.folder = folder
  c.rollout.num_tasks = 16
  c.rollout.group_size = 8
  c.rollout.max_new_tokens = max_new_tokens
  c.optimizer.learning_rate = learning_rate
  c.optimizer.warmup_updates = 0
  c.optimizer.weight_decay = 0.0
  c.evaluation.temperature = 1.0
  c.buckets.prompt = prompt_buckets
  c.buckets.completion = completion_buckets
  c.buckets.groups = (16, 64)
  c.buckets.microbatch_tokens = 2400
  c.critic.learning_rate = 1e-3


def use_coder(
    c: config_dict.ConfigDict, *, prompt_buckets: tuple[int, ...],
    max_new_tokens: int, completion_buckets: tuple[int, ...] = ()) -> None:
  """Adapts a config to adapters of Qwen2.5-Coder-0.5B on two CPU cores.

  All prompts of a step usually fit the first bucket: a CPU also attends to
  padding. Few buckets are used, because a program of this model takes half a
  minute to compile.
  """
  c.model.trained = 'lora'
  c.rollout.num_tasks = 4
  c.rollout.max_new_tokens = max_new_tokens
  c.optimizer.learning_rate = 1e-4
  c.optimizer.warmup_updates = 0
  c.optimizer.weight_decay = 0.0
  c.buckets.prompt = prompt_buckets
  c.buckets.completion = (
      completion_buckets or (max_new_tokens // 2, max_new_tokens))
  c.buckets.groups = (4, 64)
  c.buckets.microbatch_tokens = 1700
  c.train.num_steps = 30
  c.evaluation.validate_every = 15
  c.train.checkpoint_every = c.train.groups_every = 5


def shrink_for_debug(c: config_dict.ConfigDict) -> None:
  """Makes two small steps, on the first tasks of the first of its splits."""
  def first(split, num):
    return f'{re.split("[+[]", split)[0]}[:{num}]'

  c.dataset.train = first(c.dataset.train, 8)
  c.evaluation.validation = first(c.evaluation.validation, 2)
  c.evaluation.test = first(c.evaluation.test, 2)
  c.rollout.num_tasks = 2
  c.rollout.group_size = min(2, c.rollout.group_size)
  # Most of the time is compilation, so use few shapes and skip the diagnosis.
  c.buckets.prompt = c.buckets.prompt[-2:]
  c.buckets.completion = c.buckets.completion[-1:]
  c.buckets.groups = (4,)
  c.train.num_steps = 2
  c.train.groups_every = 1
  c.train.diagnose_every = 0


def game_config(name: str, arg: str) -> config_dict.ConfigDict:
  """A team of `board_game.TEAMS` that plays `environments/boards/<name>`."""
  arg = parse_arg(arg, size='nano', team='', system='at_grpo', debug=False)
  check_choices(arg, system=SYSTEMS)
  c = base_config(arg.size)
  c.environment.module = f'environments.boards.{name}.env'
  c.dataset.builder = f'environments.boards.{name}.{name}_dataset_builder'
  c.evaluation.validation = 'validation[:64]'
  c.evaluation.test = 'test[:200]'

  if arg.size == 'nano':
    # The largest prompt bucket holds any program output and leaves 144 of the
    # model's positions for a candidate.
    use_small_model(
        c, 'models/nano', max_new_tokens=144, prompt_buckets=(128, 320, 1904),
        completion_buckets=(40, 104, 144), learning_rate=1e-4)
    c.train.num_steps = 30
    c.train.checkpoint_every = 5
    c.train.diagnose_every = 10
    c.evaluation.validate_every = 5

  if arg.debug:
    shrink_for_debug(c)
    c.environment.max_turns = 2
  apply_system(c, arg, SYSTEMS[arg.system])
  return c


def base_config(size: str) -> config_dict.ConfigDict:
  """Returns all keys with defaults; a task sets its environment and data."""
  check_choices({'size': size}, size=MODELS)
  is_small = size in LAPTOP
  c = config_dict.ConfigDict()
  c.seed = 0
  # Policies of the roles: one for all ('shared'), one for each ('per_role'), or
  # one LoRA adapter for each ('lora_per_role').
  c.policies = 'shared'
  # Any other assignment: a (role, policy) pair for each role.
  c.policy_map = ()
  # (policy, key, value) overrides, such as
  # (('tool', 'model.trained', 'none'),). Keys are all of model, lora and
  # optimizer; temperature, stop and max_new_tokens of the rollout, the last at
  # most that of the run; and temperature, top_k and top_p of the evaluation.
  # The keys of rollout and evaluation may name a role instead of a policy.
  c.per_policy = ()
  for section in (
      'model', 'lora', 'mesh', 'environment', 'sandbox', 'dataset', 'rollout',
      'advantage', 'critic', 'loss', 'optimizer', 'buckets', 'train',
      'evaluation', 'export'):
    c[section] = config_dict.ConfigDict()

  # A Hugging Face folder, or the name of a model on the hub.
  c.model.folder = MODELS[size]
  c.model.trained = 'all'  # All parameters; or 'lora', or 'none'.
  # Dtype of matrix products, 'float32' or 'bfloat16'. 'auto' is float32 on
  # CPUs without instructions for bfloat16, and otherwise bfloat16.
  c.model.dtype = (
      'float32' if size == 'nano' else 'auto' if is_small else 'bfloat16')
  # Recompute matrix products in the backward pass, 'True' or 'False'. 'auto'
  # keeps their results on CPUs if they take an eighth of the memory or less.
  c.model.remat = 'auto'
  c.model.thinking = False  # `enable_thinking` of the chat template.

  # A PEFT folder to start from; it determines rank, alpha and targets. ''
  # starts from the identity.
  c.lora.folder = ''
  c.lora.rank = 16
  c.lora.alpha = 32.0
  # Regular expressions; a kernel whose whole name matches gets an adapter.
  c.lora.targets = (
      'attention/[qkvo]/kernel', 'gate/kernel', 'up/kernel', 'down/kernel')

  # Devices that share one copy of the parameters (fsdp), and devices that share
  # heads, hidden units and vocabulary (tensor). 0: distributed/fit.py chooses.
  c.mesh.fsdp = c.mesh.tensor = 1 if is_small else 0
  # Devices of each policy as (policy, first device, end), such as
  # (('tool', 0, 4), ('planner', 4, 8)); () gives every policy all devices.
  c.mesh.pools = ()

  c.environment.module = config_dict.placeholder(str)
  c.environment.team = config_dict.placeholder(str)
  c.environment.max_turns = 4
  # Reward preset: 'mixed' or 'outcome'; games also have 'outcome_and_plans'.
  c.environment.reward = 'mixed'
  # Additional arguments of the module's make_environment.
  c.environment.options = config_dict.ConfigDict()
  # Processes that step environments, and programs that run at the same time, on
  # each host. 0: half as many as the host has cores, from 2 to 32.
  c.environment.num_workers = c.environment.program_slots = 0
  # Limit of a step, with its time in the queue of the sandbox. A slower step
  # ends its episode, with the outcome TIMEOUT and the least team reward.
  c.environment.step_seconds = 3600.0

  # Isolation of model-written programs: 'bwrap', 'kernel', 'auto' (the stronger
  # one that works), 'unsafe_rlimit' (none), 'remote' (a SandboxFusion service),
  # or 'none' (programs are refused).
  c.sandbox.level = 'auto'
  c.sandbox.url = ''  # The service of 'remote', 'http://HOST:PORT'.

  # Module with a class Builder or a function tasks(split); by default
  # environment.module.
  c.dataset.builder = config_dict.placeholder(str)
  c.dataset.config = ''  # A config of the builder, such as '2boxes'.
  c.dataset.train = 'train'
  # '' is $TFDS_DATA_DIR or ~/tensorflow_datasets.
  c.dataset.data_dir = ''

  # docs/algorithms.md explains the switches of rollout, advantage and critic.

  # 'tree' (AT-GRPO), 'parallel' (independent episodes, plain GRPO) or 'joint'
  # (MAGRPO).
  c.rollout.mode = 'tree'
  c.rollout.num_tasks = 128  # Tasks of one step (E).
  # Candidates of one prompt, or parallel episodes of one task (G).
  c.rollout.group_size = 4
  # Which candidate continues. tree: 'greedy', 'team_greedy', 'softmax',
  # 'uniform', 'epsilon_greedy'; parallel: 'all'; joint: 'all', 'team_greedy',
  # 'uniform', 'first'.
  c.rollout.selection = 'greedy'
  c.rollout.selection_temperature = 1.0  # For 'softmax'.
  c.rollout.selection_epsilon = 0.1  # For 'epsilon_greedy'.
  # 'immediate', 'monte_carlo' (tree), 'return_to_go' (parallel, joint),
  # 'episode_return' (parallel), 'bootstrapped' (joint, with a critic).
  c.rollout.return_type = 'immediate'
  # For 'monte_carlo': episodes per candidate, and their phases; 0 for all.
  c.rollout.num_continuations = 4
  c.rollout.continuation_phases = 0
  c.rollout.alpha = 1.0  # Weight of the team reward.
  c.rollout.discount = 1.0  # Per step, of later rewards.
  # Mode 'joint' combines candidates of equal index, or all of them ('cross').
  c.rollout.joint_actions = 'aligned'
  c.rollout.max_joint_actions = 1000  # Per task; more are refused.
  c.rollout.temperature = 1.0
  c.rollout.max_new_tokens = 4096
  # Strings that end a completion like a stop token; it includes them.
  c.rollout.stop = ()
  # Whether the environment reads a completion that reached max_new_tokens;
  # otherwise it reads an empty one.
  c.rollout.keep_truncated = True

  # Candidates that agree in these parts share a baseline; ('env',) is plain
  # GRPO, and ('env', 'agent', 'turn', 'branch') MAGRPO. 'state' is the prompt;
  # 'history_1' and 'history_2' hold also one and two preceding ones.
  c.advantage.group_key = ('env', 'agent', 'turn')
  # 'mean', 'leave_one_out', 'none', or 'critic' (value of the prompt).
  c.advantage.baseline = 'mean'
  # 'std' of the candidates that are compared, or 'none'.
  c.advantage.scale = 'std'
  # (return type, group key, weight) triples whose advantages are added to that
  # of `rollout.return_type` and `group_key`, which has the weight 1.
  c.advantage.extra_terms = ()
  # 'sum', or 'mean' over the terms that are not 0, with these weights.
  c.advantage.combination = 'sum'

  # 'independent' (IAC): a critic per policy sees the prompt of the acting role.
  # 'central' (MAAC): one critic sees all prompts of the turn so far.
  c.critic.kind = 'none'
  c.critic.learning_rate = 5e-6  # Otherwise the optimizer of the policy.
  c.critic.gae_lambda = 0.0  # 0: one-step TD; 1: Monte Carlo.
  c.critic.prompt_buckets = ()  # Padded input lengths; () is buckets.prompt.

  # 'clip' (PPO) clips the ratio to [1 - clip_low, 1 + clip_high]; 'unclipped'
  # is ratio x advantage.
  c.loss.surrogate = 'clip'
  c.loss.clip_low = 0.2
  c.loss.clip_high = 0.2
  c.loss.aggregation = 'token_mean'  # Or 'sequence_mean', 'constant'.
  # Cap of the importance weight between sampler and learner; 0 for no weight.
  c.loss.importance_cap = 2.0
  # KL penalty against the initial model: 'none' or 'k3', with the gradient of
  # KL(policy || initial).
  c.loss.kl_estimator = 'none'
  c.loss.kl_coefficient = 0.0

  c.optimizer.learning_rate = 1e-6  # AdamW.
  c.optimizer.warmup_updates = 10
  c.optimizer.weight_decay = 0.01
  c.optimizer.max_grad_norm = 1.0
  c.optimizer.b1 = 0.9
  c.optimizer.b2 = 0.999

  # Static shapes, ascending: padded lengths of prompts and completions, and
  # numbers of prompts that are sampled at the same time.
  c.buckets.prompt = (1024, 2048, 4096, 8192)
  c.buckets.completion = (512, 1024, 2048, 4096)
  c.buckets.groups = (4, 8, 16, 32, 64, 128)
  # Completions that are sampled at the same time; others wait. 0 is for all of
  # these prompts, or half of them if the mesh is chosen and memory is short.
  c.buckets.rows = 0
  # Tokens of a microbatch with padding, for each shard of the groups.
  c.buckets.microbatch_tokens = 24576

  c.train.num_steps = 150  # 0 for no limit.
  # Ends at the step closest to this number of generated tokens; 0 for no limit.
  c.train.completion_tokens = 0
  c.train.updates_per_rollout = 1
  # 'mixed' splits the groups among these updates; 'nodes' makes one update per
  # node of a task's tree, the deepest first; 'last_turn' makes one update per
  # turn, the last first.
  c.train.update_order = 'mixed'
  c.train.checkpoint_every = 10  # Steps.
  c.train.groups_every = 10  # Steps between recordings of all groups.
  # Metrics besides metrics.jsonl: 'tensorboard', 'wandb', or a module with
  # make_writer(workdir, config, first_step).
  c.train.writers = ('tensorboard',)
  c.train.profile_steps = ()  # Steps, from 0, with an XProf trace.
  # Steps between comparisons of the gradients of roles that share a policy; 0
  # for none. Each costs another pass over the groups.
  c.train.diagnose_every = 0

  c.evaluation.validation = 'validation'  # Split; one candidate per prompt.
  c.evaluation.validate_every = 10  # Steps.
  c.evaluation.test = 'test'  # Split, evaluated before and after training.
  c.evaluation.temperature = 1.0  # 0 is greedy.
  # Evaluations sample from the most likely tokens: this number of them, or 0
  # for all, and of these the fewest with this probability.
  c.evaluation.top_k = 0
  c.evaluation.top_p = 1.0
  # For --mode evaluate:
  c.evaluation.name = 'evaluation'  # Name of the file in evals/.
  c.evaluation.policy_map = ()  # (role, policy) pairs, to swap roles.
  c.evaluation.num_timed = 0  # Tasks played one by one, for response times.
  c.evaluation.num_samples = 1  # Episodes per task, for avg@k and pass@k.

  c.export.dtype = 'bfloat16'  # Or 'float32'. For --mode export.
  return c
