"""Depot: how fast do algorithms learn independent choices of one token?

  python -m atgrpo_jax.main --config configs/depot.py:reward=mixed \
      --workdir runs/depot

A run takes 30 seconds of CPU time. docs/when_at_grpo.md compares the systems.
"""

from configs import common

_MONTE_CARLO = {
    'rollout.return_type': 'monte_carlo', 'rollout.num_continuations': 1}
# Overrides of each system relative to AT-GRPO with one policy for a pair. Plain
# GRPO samples as many choices in a step as AT-GRPO.
SYSTEMS = {
    name: system for name, system in common.SYSTEMS.items()
    if name not in ('iac', 'sa_tool_at_grpo')
} | {
    'tree_uniform': {'rollout.selection': 'uniform'},
    # Returns that look ahead.
    'tree_monte_carlo': _MONTE_CARLO,
    'tree_next_phase': {**_MONTE_CARLO, 'rollout.continuation_phases': 1},
    'mas_grpo_to_go': {
        **common.SYSTEMS['mas_grpo_agent_turn'],
        'rollout.return_type': 'return_to_go'},
    # The branches of all 2 T phases would be too many. Instead, candidates of
    # independent episodes are compared by agent and turn.
    'magrpo': {
        **common.MAGRPO,
        'policies': 'shared', 'rollout.mode': 'parallel',
        'advantage.group_key': ('env', 'agent', 'turn')},
}
# Reward preset -> choices of a run, and steps between validations.
BUDGETS = {
    'mixed': (8_000, 4), 'outcome': (60_000, 20), 'boost': (60_000, 20),
    'chain': (12_000, 4)}
# System -> learning rate in each preset. `paper.depot` says how they were
# chosen; other systems have those of AT-GRPO.
_LEARNING_RATES = {
    system: dict(zip(BUDGETS, rates, strict=False)) for system, rates in {
        'at_grpo': (8e-3, 2e-3, 4e-3, 2e-3),
        'at_grpo_lora': (4e-4, 2e-3, 4e-3),  # Times 10 for adapters.
        'tree_uniform': (4e-3, 2e-3, 4e-3),
        'tree_next_phase': (8e-3, 4e-3, 4e-3),
        'tree_monte_carlo': (8e-3, 1e-3, 2e-3),
        'mas_grpo': (1e-3, 2e-3, 1e-3, 1e-3),
        'mas_grpo_agent_turn': (2e-3, 2e-3, 2e-3, 4e-3),
        'mas_grpo_to_go': (4e-3, 2e-3, 4e-3),
        'mas_grpo_immediate': (4e-3, 2e-3, 4e-3),
        'gigpo': (4e-3, 2e-3, 2e-3),
        'mt_grpo': (4e-3, 2e-3, 4e-3),
        'magrpo': (1e-3, 1e-3, 1e-3),
        'maac': (1e-3, 2e-3, 1e-3),
        'sa_grpo': (1e-3, 2e-3, 1e-3),
        'sa_grpo_turns': (2e-3, 2e-3, 1e-3),
        'sa_at_grpo': (4e-3, 2e-3, 4e-3),
    }.items()}


def get_config(arg: str = ''):
  """Returns the config of an episode with `T` orders of `m` items.

  `reward` is a preset of `environments.depot.env`.
  """
  arg = common.parse_arg(
      arg, size='nano', team='', system='at_grpo', reward='mixed', T=6, m=8,
      debug=False)
  common.check_choices(arg, system=SYSTEMS, reward=BUDGETS)
  c = common.base_config(arg.size)
  c.environment.module = 'environments.depot.env'
  c.environment.reward = arg.reward
  c.environment.max_turns = arg.T
  c.environment.num_workers = 1
  c.environment.options.num_orders = arg.T
  c.environment.options.num_items = arg.m
  c.environment.options.prompt_limit = 0
  c.environment.options.code = 0
  c.sandbox.level = 'none'
  c.dataset.builder = 'environments.depot.depot_dataset_builder'
  c.evaluation.validation = 'validation[:100]'
  c.evaluation.test = 'test[:200]'
  tokens_per_choice = 8
  if arg.size == 'nano':
    tokens_per_choice = 1
    common.use_small_model(
        c, 'models/depot', max_new_tokens=1,
        prompt_buckets=tuple(sorted({
            4, 3 + (arg.reward == 'chain') + arg.T})),
        completion_buckets=(1,),
        learning_rate=_LEARNING_RATES.get(arg.system, {}).get(
            arg.reward, _LEARNING_RATES['at_grpo'][arg.reward]))
    # Continuations to the end take most of the choices.
    c.rollout.num_tasks = 1 if arg.system == 'tree_monte_carlo' else 2
    c.buckets.groups = (2, 16, 128)
    c.train.num_steps = 0
    c.train.completion_tokens, c.evaluation.validate_every = BUDGETS[
        arg.reward]
    c.train.checkpoint_every = c.train.groups_every = 50

  if arg.debug:
    common.shrink_for_debug(c)
  common.apply_system(c, arg, SYSTEMS[arg.system])
  common.adapt_to_critic(c, arg, (16,))
  num_choices = 1
  if c.environment.team == 'solo':
    num_choices = 2 * arg.T // c.environment.max_turns
  c.rollout.max_new_tokens = num_choices * tokens_per_choice
  c.buckets.completion = (c.rollout.max_new_tokens,)
  return c.lock()
