"""All jobs of the paper's tables.

A job is one process of `atgrpo_jax.main` in the workdir
`OUT/<table>/<task>/<row>/seed-<n>`.

Games (arXiv 2510.11062, sections 5.2 and 5.3):

  main         `GAME_SYSTEMS`. AT-GRPO with one policy runs first, for
               `train.num_steps`; the others may generate as many tokens with
               the same seed; `NUM_TASKS_RATIO` scales their tasks per step
  reward       other presets of the reward. With `outcome` the tool's step pays
               nothing immediately, so the tool has no advantage
  roles        each role trained beside the untrained other role, with half of
               the tokens each; both combined; policies of roles swapped
  agents       1, 3, 5 and 7 agents; `main` has 2

Depot, in `OUT/<table>/<preset>/<row>/seed-<n>` (`paper.depot`):

  depot_search  learning rates, on seeds and tasks that are not reported
  depot         algorithms, and single agents
  depot_agents, depot_policies, depot_selection, depot_group_size, depot_turns,
  depot_learning_rate, depot_prompt_limit
                AT-GRPO with other values of these switches
  depot_roles   in the preset `outcome`: roles trained apart and combined,
                swapped, and crossed with the next seed
  depot_models  the base models, which are made for jobs that need them

Mathematics and code (arXiv 2510.11062, section 5.2) are in `problems`. Beyond
nano the trained policies are exported and evaluated on each benchmark, in
`OUT/problems/<task>/<row>/<benchmark>/seed-<n>`.

MAGRPO's tasks (arXiv 2508.04652) are in `writing` and `functions`: untrained
teams, MAGRPO, and the other systems with as many tokens.

The scale `coder-0.5b` has Qwen2.5-Coder-0.5B on generated word problems
(`problems/stories`), GSM8K (`problems/gsm8k`) and HumanEval
(`functions/humaneval`). The scale `coder-3b` has MAGRPO's coding tables with
the paper's models: pairs of Qwen2.5-Coder-3B, and single agents with 7B.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import importlib
import itertools
import pathlib
from typing import Any

from configs import common
from configs import depot as depot_config
from environments.boards import board_game
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from environments.writing import env as writing
from paper import depot

CODER, _LARGE_CODER = 'coder-0.5b', 'coder-3b'
LOCAL = ('nano', CODER)  # Scales that this machine runs.
AT_GRPO = 'at_grpo'
# Config and folder of a game -> its name in tables.
GAMES = {'plan_path': 'Plan-Path', 'sokoban': 'Sokoban', 'sudoku': 'Sudoku'}
# The systems of the paper, and plain GRPO with other group keys. The games do
# not rank algorithms, because every trained team ends near 100 %.
GAME_SYSTEMS = (
    AT_GRPO, 'at_grpo_per_role', 'sa_grpo', 'sa_grpo_turns', 'mas_grpo',
    'mas_grpo_agent', 'mas_grpo_turn', 'mas_grpo_agent_turn')
# The game of all ablations, as in the paper's Table 4.
ABLATED = 'plan_path'
_PER_ROLE = f'main/{ABLATED}/at_grpo_per_role'

# Row -> tasks per step relative to AT-GRPO, where it is not 1. An episode that
# every candidate plays to its end takes more tokens than a tree, an episode of
# a single agent fewer.
NUM_TASKS_RATIO = {
    'sa_grpo': 5, 'sa_grpo_turns': 2, 'mas_grpo': 1 / 2,
    'mas_grpo_agent': 1 / 2, 'mas_grpo_turn': 1 / 2,
    'mas_grpo_agent_turn': 1 / 2}

# Config of a problem -> benchmark -> its name in tables.
BENCHMARKS = {
    'maths': {
        'aime24': 'AIME24', 'aime25': 'AIME25',
        'olympiadbench': 'OlympiadBench'},
    'contests': {
        'livecodebench': 'LiveCodeBench v6', 'apps': 'APPS',
        'code_contests': 'CodeContests'},
}
# Folder in `problems` -> data set that is trained and tested, and its name.
LOCAL_BENCHMARKS = {
    'maths': ('stories', 'Word problems'), 'contests': ('recipes', 'Recipes'),
    'gsm8k': ('gsm8k', 'GSM8K'),
    'stories': ('stories', 'Word problems, pretrained, an adapter per role')}
# Task -> system -> tasks per step relative to AT-GRPO, so that as many tokens
# make about as many updates. AT-GRPO comes first. With one turn, a tree takes
# as many completions as independent episodes.
_PROBLEM_SYSTEMS = {
    AT_GRPO: 1, 'sa_grpo': 2, 'sa_grpo_turns': 1, 'mas_grpo': 1 / 2,
    'at_grpo_per_role': 1}
PROBLEM_SYSTEMS = {
    'maths': {**_PROBLEM_SYSTEMS, 'sa_tool_grpo': 2},
    'contests': _PROBLEM_SYSTEMS,
    'gsm8k': {
        AT_GRPO: 1, 'mas_grpo': 1, 'mas_grpo_immediate': 1, 'sa_grpo': 1,
        'sa_tool_grpo': 3 / 2},
    'stories': {AT_GRPO: 1, 'mas_grpo': 1, 'sa_tool_grpo': 3 / 2}}
# System -> row of the same agents without training.
UNTRAINED = {
    AT_GRPO: 'untrained_pair', 'sa_grpo': 'untrained_solo',
    'sa_grpo_turns': 'untrained_solo_turns', 'sa_tool_grpo': 'untrained_tool'}
_PROBLEM_TEAMS = {'maths': maths.TEAMS, 'contests': contests.TEAMS}

# Config of a joint task -> its kind -> name in tables.
JOINT_TASKS = {
    'writing': {
        'posts': 'Posts', 'tldr': 'TL;DR', 'factbook': 'World Factbook',
        'arxiv_a': 'arXiv, window to 1.3', 'arxiv_b': 'arXiv, window to 1.6'},
    'functions': {
        'recipes': 'Recipes', 'humaneval': 'HumanEval',
        'coop_humaneval': 'CoopHumanEval', 'mbpp': 'MBPP'},
}
# Scale -> its kinds. All other scales have the kinds that nano has not.
_KINDS = {
    'nano': ('posts', 'recipes'), CODER: ('humaneval',),
    _LARGE_CODER: ('humaneval', 'coop_humaneval', 'mbpp')}
_JOINT_TEAMS = {'writing': writing.TEAMS, 'functions': functions.TEAMS}
MAGRPO = 'magrpo'
# The first generates the tokens that all may generate.
_CODER_SYSTEMS = ('magrpo_cross', 'sa_grpo', 'iac')
_NUM_TIMED, _NUM_TIMED_OF_CODER = 50, 8  # Tasks.

# Tables of variants of AT-GRPO. On Depot these are all tables but `depot`.
_ABLATIONS = ('reward', 'roles', 'agents')

Key = tuple[str, str]  # (mode, path)


@dataclasses.dataclass(frozen=True)
class Job:
  """One process."""

  path: str  # Workdir, relative to OUT.
  config: str  # Value of --config.
  overrides: Mapping[str, Any]  # Config key -> value; `{out}` stands for OUT.
  # Value of --mode, or `pretrain`: config is a module that trains a base model.
  mode: str = 'train'
  # An export writes this policy last; each policy's folder is atomic.
  last_policy: str = ''
  # Path of the training whose generated tokens limit this one; '' if the number
  # of steps does.
  budget_of: str = ''
  # Fraction of these tokens that this job may generate.
  budget_ratio: float = 1.0
  # Keys of the jobs that it starts from or is compared with.
  needs: tuple[Key, ...] = ()

  @property
  def key(self) -> Key:
    """(mode, path), unique among jobs."""
    return self.mode, self.path

  @property
  def result(self) -> str:
    """The file in the workdir that marks the job as done."""
    evaluation = self.overrides.get('evaluation.name', 'evaluation')
    return {
        'pretrain': 'model.safetensors', 'train': 'evals/after.json',
        'evaluate': f'evals/{evaluation}.json',
        'export': f'export/{self.last_policy}/tokenizer.json'}[self.mode]

  def is_done(self, out: pathlib.Path | None) -> bool:
    """Whether its result exists; False if `out` is unknown."""
    return out is not None and (out / self.path / self.result).exists()


def make_jobs(
    scale: str, num_seeds: int, sandbox_level: str = 'auto') -> list[Job]:
  """All jobs, each after the jobs it needs; all ablations come last."""
  jobs = _depot(num_seeds) if scale == 'nano' else []
  for seed in range(num_seeds):
    if scale not in (CODER, _LARGE_CODER):
      jobs += _main(scale, seed)
      jobs += _roles(scale, seed)
      jobs += _problems(scale, seed)
    jobs += _joint(scale, seed)
    if scale == CODER:
      jobs += [
          _train_problem(task, system, scale, seed)
          for task in ('gsm8k', 'stories') for system in PROBLEM_SYSTEMS[task]]
  jobs.sort(key=_is_ablation)
  if sandbox_level == 'auto':
    return jobs
  return [
      dataclasses.replace(
          job, overrides={**job.overrides, 'sandbox.level': sandbox_level})
      for job in jobs]


def _is_ablation(job: Job) -> bool:
  """Whether the job belongs to no comparison of algorithms."""
  table, _, _ = job.path.partition('/')
  return table in _ABLATIONS or (
      table.startswith('depot_') and job.mode != 'pretrain')


def _config(file: str, scale: str, **arguments: str) -> str:
  """Value of --config for a file in configs/."""
  given = ''.join(f',{name}={value}' for name, value in arguments.items())
  return f'configs/{file}.py:size={scale}{given}'


def _num_tasks(file: str, scale: str, ratio: float) -> int:
  """Tasks of a step, relative to those of AT-GRPO in a file in configs/."""
  module = importlib.import_module(f'configs.{file}')
  return int(ratio * module.get_config(f'size={scale}').rollout.num_tasks)


def _train_after(
    first: str, path: str, config: str, overrides: Mapping[str, Any],
    budget_ratio: float = 1.0) -> Job:
  """Trains with the tokens of the training `first`, unless it is `first`."""
  if path == first:
    return Job(path, config, overrides)
  return Job(
      path, config, overrides, budget_of=first, budget_ratio=budget_ratio,
      needs=(('train', first),))


def _export(job: Job, last_policy: str) -> Job:
  """Exports the policies of a training."""
  return Job(
      job.path, job.config, {**job.overrides, 'export.dtype': 'float32'},
      mode='export', last_policy=last_policy, needs=(job.key,))


# Depot.


def _depot(num_seeds: int) -> list[Job]:
  """All jobs of Depot, and before them the base models that they start from."""
  jobs = [
      _train_depot(
          f'depot_search/{reward}/{system}_{rate}', seed, {
              'optimizer.learning_rate': float(rate),
              'train.completion_tokens': depot.SEARCH_BUDGETS[reward],
              **depot.SEARCHED}, system=system, reward=reward,
          **depot.ARGUMENTS[reward])
      for reward, systems in depot.SEARCHED_SYSTEMS.items()
      for system in systems.values() for rate in depot.SEARCH
      for seed in depot.SEARCH_SEEDS]
  for seed in range(num_seeds):
    jobs += [
        _train_depot(
            f'depot/{reward}/{system}', seed, depot.EVALUATED, system=system,
            reward=reward, **depot.ARGUMENTS[reward])
        for reward, arms in depot.ARMS_OF.items() for system in arms.values()]
    jobs += [
        _train_depot(
            f'depot_{table}/mixed/{row}', seed, changes | depot.EVALUATED,
            **arguments)
        for table, rows in depot.VARIANTS.items()
        for row, (arguments, changes) in rows.items()]
  jobs += _depot_roles(num_seeds)
  models = dict.fromkeys(
      folder for job in jobs for mode, folder in job.needs
      if mode == 'pretrain')
  return [*(Job(
      folder, 'models.depot',
      dict(item.split('-') for item in folder.split('/')[1:]), mode='pretrain')
            for folder in models), *jobs]


def _train_depot(
    row: str, seed: int, changes: Mapping[str, Any],
    model: Mapping[str, Any] | None = None, **arguments: str) -> Job:
  """Trains from a base model: its options besides the seed are in `model`."""
  model = {**(model or {}), 'seed': seed}
  for name, option in (('T', 'num_orders'), ('m', 'num_items')):
    if name in arguments:
      model[option] = arguments[name]
  if arguments.get('reward') == 'chain':
    model['chain'] = 1
  folder = 'depot_models/' + '/'.join(
      f'{name}-{value}' for name, value in sorted(model.items()))
  return Job(
      f'{row}/seed-{seed}', _config('depot', 'nano', **arguments),
      {'seed': seed, 'model.folder': f'{{out}}/{folder}', **changes},
      needs=(('pretrain', folder),))


def _depot_roles(num_seeds: int) -> Iterator[Job]:
  """Roles that were trained apart, swapped, and crossed with the next seed.

  The right words of each seed are another code. In `outcome`, any code that
  scout and picker agree on is as good.
  """
  row = 'depot_roles/outcome'
  arguments = {'system': 'tree_next_phase', 'reward': 'outcome'}
  changes = {'policies': 'per_role', **depot.EVALUATED}
  trained = {  # Row -> overrides.
      'together': {},
      'only_scout': {'per_policy': (('picker', 'model.trained', 'none'),)},
      'only_picker': {'per_policy': (('scout', 'model.trained', 'none'),)}}
  budget, _ = depot_config.BUDGETS['outcome']
  for seed in range(num_seeds):
    for name, more in trained.items():
      if more:
        more = {**more, 'train.completion_tokens': budget // 2}
      job = _train_depot(
          f'{row}/{name}', seed, {**changes, **more}, {'code': seed},
          **arguments)
      yield job
      yield _export(job, 'scout' if name == 'only_scout' else 'picker')
  for seed in range(num_seeds):
    for name, scout, picker, picker_seed in (
        ('combined', ('only_scout', 'scout'), ('only_picker', 'picker'), seed),
        ('swapped', ('together', 'picker'), ('together', 'scout'), seed),
        ('crossed', ('together', 'scout'), ('together', 'picker'),
         (seed + 1) % num_seeds)):
      yield _play(
          f'{row}/{name}/seed-{seed}', _config('depot', 'nano', **arguments),
          {**changes, 'seed': seed}, {
              role: (f'{row}/{source}/seed-{source_seed}', policy)
              for role, (source, policy), source_seed in (
                  ('scout', scout, seed), ('picker', picker, picker_seed))})


def _play(
    path: str, config: str, overrides: Mapping[str, Any],
    exports: Mapping[str, tuple[str, str]], needs: tuple[Key, ...] = ()) -> Job:
  """Evaluates exported policies: role -> (path of a training, policy)."""
  per_policy = tuple(
      (role, 'model.folder', f'{{out}}/{trained}/export/{policy}')
      for role, (trained, policy) in exports.items())
  return Job(
      path, config, {**overrides, 'per_policy': per_policy}, mode='evaluate',
      needs=(*(('export', trained) for trained, _ in exports.values()), *needs))


# The games.


def _train_game(
    row_path: str, scale: str, seed: int,
    changes: Mapping[str, Any] | None = None, budget_ratio: float = 1.0,
    **arguments: str) -> Job:
  """Trains a row, with AT-GRPO's budget unless it is AT-GRPO itself."""
  table, task, row = row_path.split('/')
  # Every row is tested on the whole split, so all rows are comparable.
  overrides = {'seed': seed, 'evaluation.test': 'test', **(changes or {})}
  if row in NUM_TASKS_RATIO:
    overrides['rollout.num_tasks'] = _num_tasks(
        task, scale, NUM_TASKS_RATIO[row])
  job = _train_after(
      f'main/{task}/{AT_GRPO}/seed-{seed}', f'{row_path}/seed-{seed}',
      _config(task, scale, **arguments), overrides, budget_ratio)
  if table != 'roles':
    return job
  return dataclasses.replace(
      job, needs=(*job.needs, ('train', f'{_PER_ROLE}/seed-{seed}')))


def _main(scale: str, seed: int) -> Iterator[Job]:
  for task in GAMES:
    for system in GAME_SYSTEMS:
      yield _train_game(f'main/{task}/{system}', scale, seed, system=system)
    for reward in ('outcome', 'outcome_and_plans'):
      yield _train_game(
          f'reward/{task}/{reward}', scale, seed,
          {'environment.reward': reward})
  for team, roles in board_game.TEAMS.items():
    if team not in ('pair', 'tool'):  # 'solo' is the team of one agent.
      yield _train_game(
          f'agents/{ABLATED}/{len(roles)}', scale, seed, team=team)


def _roles(scale: str, seed: int) -> Iterator[Job]:
  """Roles trained apart, combined and swapped."""
  system = {'system': 'at_grpo_per_role'}
  trained_apart = {}
  for role, other in (('tool', 'planner'), ('planner', 'tool')):
    job = _train_game(
        f'roles/{ABLATED}/only_{role}', scale, seed,
        {'per_policy': ((other, 'model.trained', 'none'),)}, 0.5, **system)
    yield job
    yield _export(job, role)
    trained_apart[role] = job.path, role
  together = _train_game(_PER_ROLE, scale, seed, **system)
  swapped = {
      'tool': (together.path, 'planner'), 'planner': (together.path, 'tool')}
  combined, swapped = (
      _play(
          f'roles/{ABLATED}/{name}/seed-{seed}',
          _config(ABLATED, scale, **system),
          {'seed': seed, 'evaluation.test': 'test'}, exports,
          (together.key,))
      for name, exports in (('combined', trained_apart), ('swapped', swapped)))
  yield from (combined, _export(together, 'planner'), swapped)


# Mathematics and code.


def _problems(scale: str, seed: int) -> Iterator[Job]:
  for task, benchmarks in BENCHMARKS.items():
    folder = f'problems/{task}'
    if scale != 'nano':
      untrained = [x for x in PROBLEM_SYSTEMS[task] if x in UNTRAINED]
      for system, benchmark in itertools.product(untrained, benchmarks):
        yield _evaluate_benchmark(
            f'{folder}/{UNTRAINED[system]}', task, benchmark, scale, seed,
            system, {})
    for system in PROBLEM_SYSTEMS[task]:
      job = _train_problem(task, system, scale, seed)
      yield job
      if scale != 'nano':
        yield from _benchmarks(job, task, system, scale, seed)


def _train_problem(task: str, system: str, scale: str, seed: int) -> Job:
  file = 'contests' if task == 'contests' else 'maths'
  arguments = {'system': system}
  overrides = {
      'seed': seed, 'rollout.num_tasks': _num_tasks(
          file, scale, PROBLEM_SYSTEMS[task][system])}
  if scale == 'nano':
    overrides['evaluation.test'] = 'test'
  if scale == CODER:
    arguments['kind'] = task
    overrides['evaluation.validation'] = 'train[-2:]'  # Not used, but slow.
  folder = f'problems/{task}'
  return _train_after(
      f'{folder}/{AT_GRPO}/seed-{seed}', f'{folder}/{system}/seed-{seed}',
      _config(file, scale, **arguments), overrides)


def _benchmarks(
    job: Job, task: str, system: str, scale: str, seed: int) -> Iterator[Job]:
  """Evaluates a training on all benchmarks."""
  folder = f'{{out}}/{job.path}/export'
  models, last = {'model.folder': f'{folder}/shared'}, 'shared'
  if system == 'at_grpo_per_role':
    roles = _PROBLEM_TEAMS[task]['pair']
    last = roles[-1]
    models = {'per_policy': tuple(
        (role, 'model.folder', f'{folder}/{role}') for role in roles)}
  export = _export(job, last)
  yield export
  for benchmark in BENCHMARKS[task]:
    yield _evaluate_benchmark(
        f'problems/{task}/{system}', task, benchmark, scale, seed, system,
        models, needs=(export.key,))


def _evaluate_benchmark(
    row: str, task: str, benchmark: str, scale: str, seed: int, system: str,
    models: Mapping[str, Any], needs: tuple[Key, ...] = ()) -> Job:
  """Evaluates on a benchmark, with `models` instead of the config's."""
  arguments, changes = {'system': system}, {'seed': seed, **models}
  if task == 'contests':
    arguments['data'] = benchmark
  else:
    changes['evaluation.test'] = benchmark
  return Job(
      f'{row}/{benchmark}/seed-{seed}', _config(task, scale, **arguments),
      changes, mode='evaluate', needs=needs)


# MAGRPO's tasks.


def _joint(scale: str, seed: int) -> Iterator[Job]:
  for table, kinds in JOINT_TASKS.items():
    for kind in kinds:
      if (kind in _KINDS[scale] if scale in _KINDS
          else kind not in _KINDS['nano']):
        yield from _joint_kind(table, kind, scale, seed)


def _joint_kind(
    table: str, kind: str, scale: str, seed: int) -> Iterator[Job]:
  folder = f'{table}/{kind}'
  systems, num_timed = tuple(common.MAGRPO_SYSTEMS), _NUM_TIMED
  if scale == CODER:
    systems, num_timed = _CODER_SYSTEMS, _NUM_TIMED_OF_CODER
  timed = {'seed': seed, 'evaluation.num_timed': num_timed}
  # HumanEval has one split, of which a part is tested; arXiv has one split for
  # validation and test.
  is_humaneval, is_arxiv = 'humaneval' in kind, 'arxiv' in kind
  tested = {} if is_humaneval or is_arxiv else {'evaluation.test': 'test'}

  def size(is_single):
    return 'coder-7b' if is_single and scale == _LARGE_CODER else scale

  for team in _JOINT_TEAMS[table]:
    yield Job(
        f'{folder}/untrained_{team}/seed-{seed}',
        _config(table, size(team == 'solo'), kind=kind, team=team),
        timed | tested, mode='evaluate')
  for system in systems:
    job = _train_after(
        f'{folder}/{systems[0]}/seed-{seed}', f'{folder}/{system}/seed-{seed}',
        _config(table, size(system == 'sa_grpo'), kind=kind, system=system),
        {'seed': seed, **tested})
    yield job
    timed_tasks = {}
    if not is_humaneval:  # Its test has fewer tasks.
      split = 'val' if is_arxiv else 'test'
      timed_tasks = {'evaluation.test': f'{split}[:{_NUM_TIMED}]'}
    yield Job(
        job.path, job.config,
        {**timed, **timed_tasks, 'evaluation.name': 'timed'}, mode='evaluate',
        needs=(job.key,))
