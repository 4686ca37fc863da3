"""Measures the advantages of each algorithm against exact ones.

  python -m benchmarks.credit [--turns T] [--group_size K] [--team at_once]
      [--reward outcome] [--boost] [--chain] [--stop]
      [--odds N] [--calls N] [--rollouts N] [--switch KEY=VALUE ...]
      [--out FILE]

The game is `environments.relay`, where every true value is known. Policies are
tables; rollouts and advantages are those of training. For each method the
command prints these numbers and writes them to FILE
(benchmarks/results/credit.json):

  calls       candidates that one rollout of all tasks samples
  bias        root mean square, over visited prompts and candidates, of the mean
              advantage minus the true one
  deviation   root mean square of an advantage around its mean
  cosine      of the mean gradient with the exact one; 1 is an unbiased
              direction
  step        mean cosine of a single rollout's gradient with the exact one

A standard error follows each number. The noise of few rollouts raises the bias
and lowers deviation and cosine; a jackknife over rollouts removes it. An
estimated cosine can therefore exceed 1, and a negative squared bias counts as
0. With --switch the only rows are AT-GRPO and AT-GRPO with these switches, such
as functions of the user. docs/when_at_grpo.md explains the game and the rows.
"""

import argparse
import ast
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import gc
import itertools
import json
import math
import pathlib
import sys
from typing import Any

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax import rules
from atgrpo_jax import settings
from atgrpo_jax.algorithms import credit as credit_lib
from atgrpo_jax.algorithms import play as play_lib
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.rollout import tree as tree_lib
from benchmarks import tabular
from configs import common
from environments.relay import env as relay

COLUMNS = ('bias', 'deviation', 'cosine', 'step')
_CONFIG = common.game_config('plan_path', 'size=nano')
GAE_LAMBDA = 0.95
# Keys of the config for --switch.
SWITCHES = [
    f'{section}.{field.name}' for section, spec in {
        'rollout': spec_lib.RolloutSpec, 'advantage': spec_lib.AdvantageSpec,
    }.items() for field in dataclasses.fields(spec)
    if field.name != 'group_size']
# Row -> key of `common.SYSTEMS`.
RIVALS = {'GiGPO': 'gigpo', 'HGPO': 'hgpo', 'MT-GRPO': 'mt_grpo'}
CRITICS = {'IAC': common.IAC, 'MAAC': common.MAAC}


@dataclasses.dataclass(frozen=True)
class Method:
  """How tasks are played and credit is assigned."""

  name: str  # Row of the table.
  rollout: spec_lib.RolloutSpec
  advantage: spec_lib.AdvantageSpec
  critic: spec_lib.CriticSpec | None  # None without a critic.
  # 'mixed', one gradient of all candidates, or 'last_turn', one gradient per
  # turn.
  update_order: str = 'mixed'
  # The critic knows the true mean returns instead of learning them.
  exact: bool = False
  # An action has the sum of the advantages from its step to the end of its
  # episode. Only for independent episodes whose roles act in sequence.
  sums_later: bool = False

  @property
  def num_estimates(self) -> float:
    """Number of estimates of the advantage that are added up."""
    if self.advantage.combination == 'mean':
      return 1.0
    return 1.0 + sum(weight for *_, weight in self.advantage.extra_terms)


def make_method(
    name: str, group_size: int, switches: Mapping[str, Any],
    **fields) -> Method:
  """AT-GRPO with keys of the config changed."""
  config = _CONFIG.copy_and_resolve_references()
  config.update_from_flattened_dict({
      'advantage.baseline': 'leave_one_out', 'advantage.scale': 'none',
      **switches, 'rollout.group_size': group_size})
  rollout = settings.rollout_spec(config)
  advantage = spec_lib.AdvantageSpec(**config.advantage)
  critic = spec_lib.CriticSpec(**config.critic)
  spec_lib.check_critic(critic, rollout, advantage)
  return Method(
      name, rollout, advantage, None if critic.kind == 'none' else critic,
      **fields)


def methods(group_size: int) -> list[Method]:
  """All valid modes, selections, return types and critics."""
  found = []
  turn = 'env', 'agent', 'turn'

  def add(name, group_key, switches=(), fields=(), **rollout):
    found.append(make_method(name, group_size, {
        'advantage.group_key': group_key, **dict(switches),
        **{f'rollout.{key}': value for key, value in rollout.items()}},
        **dict(fields)))

  selections = spec_lib.SELECTIONS['tree']
  for selection in selections:
    add(f'tree, immediate, {selection}', turn, selection=selection)
  for selection, num in itertools.product(selections, (1, 4)):
    add(f'tree, monte_carlo {num}, {selection}', turn, selection=selection,
        return_type='monte_carlo', num_continuations=num)
  add('tree, monte_carlo 1 to the next phase, greedy', turn,
      return_type='monte_carlo', num_continuations=1, continuation_phases=1)
  for return_type, group_key in (
      ('episode_return', ('env',)), ('episode_return', ('env', 'agent')),
      ('immediate', turn), ('return_to_go', turn), ('episode_return', turn)):
    add(f'parallel, {return_type}, {"+".join(group_key)}', group_key,
        mode='parallel', selection='all', return_type=return_type)
  add('parallel, sum of later immediate', turn, fields={'sums_later': True},
      mode='parallel', selection='all', return_type='immediate')
  for name, system in RIVALS.items():
    found.append(make_method(name, group_size, common.SYSTEMS[system]))
  branch = *turn, 'branch'
  for update_order, suffix in (
      ('mixed', ''), ('last_turn', ', an update for each turn')):
    add(f'joint, return_to_go, all{suffix}', branch,
        fields={'update_order': update_order}, mode='joint', selection='all',
        return_type='return_to_go')
  for selection in ('team_greedy', 'uniform', 'first'):
    add(f'joint, immediate, {selection}', branch, mode='joint',
        selection=selection, return_type='immediate')
  for name, (gae_lambda, selection), kind in itertools.product(
      CRITICS, [(0.0, 'first'), (GAE_LAMBDA, 'first'), (GAE_LAMBDA, 'all')],
      ['exact', 'learned']):
    # The group key of a value critic only selects what is scaled together.
    add(f'{name}, lambda {gae_lambda:g}, {kind}, {selection}',
        ('agent', 'turn'), {**CRITICS[name], 'critic.gae_lambda': gae_lambda}, {
            'exact': kind == 'exact',
            'update_order': 'last_turn' if selection == 'all' else 'mixed'},
        mode='joint', selection=selection)
  return found


@dataclasses.dataclass(frozen=True)
class Credit:
  """The advantage of one candidate."""

  prompt: str
  turn: int
  answer: int
  advantage: float


@dataclasses.dataclass
class Laboratory:
  """A relay game with known values."""

  environment: relay.Relay
  odds: float = 2.0  # Of the right letter.

  def __post_init__(self):
    self.tasks = relay.tasks(self.environment.max_turns)
    self.prompts = relay.prompts(self.environment)
    self.indices = {
        key: index for index, key in enumerate(
            (prompt, answer) for prompt, answers in self.prompts.items()
            for answer in range(len(answers)))}
    # Prompt -> probabilities, which prefer the right letter.
    self.policy = {
        prompt: _softmax(math.log(self.odds) * (np.array(answers) == (
            relay.right_answer(prompt, self.environment.chain))))
        for prompt, answers in self.prompts.items()}

  def rollout(
      self, method: Method, *, seed: int, step: int,
      critic: tabular.TabularCritic | None = None,
  ) -> tuple[list[tree_lib.Tree], int]:
    """A tree per task with advantages, and the number of candidates."""
    runner = tabular.make_runner(
        self.environment, self.policy, alpha=method.rollout.alpha, seed=seed,
        step=step)
    trees = credit_lib.assign_advantages(
        play_lib.play(
            runner, self.tasks, method.rollout, critic and critic.bind()),
        method.advantage, method.rollout)
    if method.sums_later:
      trees = list(map(with_later_advantages, trees))
    return trees, runner.usage.model_calls

  def rollouts(
      self, method: Method, num_rollouts: int, num_calls: int, *, seed: int,
      critic: tabular.TabularCritic | None,
  ) -> Iterator[tuple[list[tree_lib.Tree], int]]:
    """`num_rollouts`, or more until they have sampled `num_calls` candidates.
    """
    step = used = 0
    while step < num_rollouts or used < num_calls:
      trees, calls = self.rollout(method, seed=seed, step=step, critic=critic)
      yield trees, calls
      step, used = step + 1, used + calls

  def critic(
      self, method: Method, num_rollouts: int = 0,
      num_calls: int = 0) -> tabular.TabularCritic | None:
    """An exact critic, or one that has learned from other rollouts."""
    if method.critic is None:
      return None
    critic = tabular.TabularCritic(
        self.environment, method.critic, method.rollout)
    if method.exact:
      critic.set_exact(self.policy)
      return critic
    for trees, _ in self.rollouts(
        method, num_rollouts, num_calls, seed=1, critic=critic):
      critic.learn(trees)
    return critic

  def measure(
      self, method: Method, num_rollouts: int,
      num_calls: int = 0) -> dict[str, float]:
    """Bias, deviation and cosines with errors; see the module docstring."""
    values = relay.exact_values(self.environment, self.policy)
    true = self._flat(values.advantages)
    exact = self._flat(values.gradient(self.policy))
    critic = self.critic(method, num_rollouts, num_calls)
    rollouts = []  # [4, N]: counts, sums, sums of squares and the gradient.
    for trees, calls in self.rollouts(
        method, num_rollouts, num_calls, seed=0, critic=critic):
      credits = credits_of(trees)
      indices = [self.indices[x.prompt, x.answer] for x in credits]
      advantages = np.array(
          [x.advantage for x in credits]) / method.num_estimates
      rollouts.append([
          *(np.bincount(indices, advantages**power, len(self.indices))
            for power in range(3)),
          self._flat(gradient(credits, self.policy, method.update_order))])
      measured = {'calls': calls, 'rollouts': len(rollouts)}
    rollouts = np.array(rollouts)

    def statistics(totals):
      """[3, ...] from [..., 4, N]."""
      counts, sums, squares, slopes = np.moveaxis(totals, -2, 0)
      weights = counts / counts.sum(axis=-1, keepdims=True)
      counts = np.maximum(counts, 1)
      means = sums / counts
      return np.stack([
          (weights * (means - true)**2).sum(axis=-1),
          (weights * (squares / counts - means**2)).sum(axis=-1),
          cosine(slopes, exact)])

    bias, deviation, direction = zip(*jackknife(statistics, rollouts))
    for name, (value, error) in {
        'bias': root(*bias), 'deviation': root(*deviation),
        'cosine': direction,
        'step': mean_and_error(cosine(rollouts[:, 3], exact))}.items():
      measured |= {name: value, f'{name}_error': error}
    return measured

  def _flat(self, tree: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([
        tree.get(prompt, np.zeros(len(answers)))
        for prompt, answers in self.prompts.items()])


def _softmax(logits: np.ndarray) -> np.ndarray:
  weights = np.exp(logits - logits.max())
  return weights / weights.sum()


def with_later_advantages(tree: tree_lib.Tree) -> tree_lib.Tree:
  """Adds to each advantage those of the later steps of its episode."""
  later, nodes = {}, []
  for index, node in reversed(list(enumerate(tree.nodes))):
    group, = node.groups
    candidates = tuple(
        dataclasses.replace(
            candidate,
            advantage=candidate.advantage + later.get((index, action), 0.0))
        for action, candidate in enumerate(group.candidates))
    later[node.parent, node.joint_action] = candidates[0].advantage
    nodes.append(dataclasses.replace(
        node, groups=(dataclasses.replace(group, candidates=candidates),)))
  return dataclasses.replace(tree, nodes=tuple(reversed(nodes)))


def credits_of(trees: Sequence[tree_lib.Tree]) -> list[Credit]:
  """Credits of all candidates of a rollout."""
  return [
      Credit(
          bytes(group.prompt).decode(), group.key.turn,
          int(candidate.completion[0]), float(candidate.advantage))
      for group in tree_lib.groups_of(trees) for candidate in group.candidates]


def gradient(
    credits: Sequence[Credit], policy: Mapping[str, np.ndarray],
    update_order: str) -> dict[str, np.ndarray]:
  """Gradient of the mean of advantage * log-probability for the logits.

  The mean is over all candidates if `update_order` is 'mixed', otherwise over
  each turn. Turns share no prompts, so their updates commute.
  """
  turns = [0 if update_order == 'mixed' else x.turn for x in credits]
  sizes, sums = collections.Counter(turns), {}
  for credit, turn in zip(credits, turns):
    score = -policy[credit.prompt]
    score[credit.answer] += 1
    sums[credit.prompt] = (
        sums.get(credit.prompt, 0.0) + credit.advantage / sizes[turn] * score)
  return sums


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """[...] from [..., N] and [N]; 0 if either is zero."""
  length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b)
  return a @ b / np.where(length, length, 1)


def jackknife(
    statistics: Callable[[np.ndarray], np.ndarray],
    parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Estimates [S] without the bias of noise, and their standard errors [S].

  Args:
    statistics: totals [..., M, N] -> [S, ...], for any number of parts.
    parts: [R, M, N], independent parts of the total.
  """
  num, total = len(parts), parts.sum(axis=0)
  without = statistics(total - parts)  # [S, R]
  return (
      num * statistics(total) - (num - 1) * without.mean(axis=-1),
      np.sqrt((num - 1) * without.var(axis=-1)))


def root(square: float, error: float) -> tuple[float, float]:
  """Root of an estimate and its increase with one more standard error."""
  value = math.sqrt(max(square, 0.0))
  return value, math.sqrt(value**2 + error) - value


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
  """Mean of independent values and its standard error."""
  return np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))


def report(
    laboratory: Laboratory, method: Method, num_rollouts: int,
    num_calls: int) -> Iterator[dict]:
  """Measures and prints the row of a method, if it can play the game."""
  try:
    play_lib.check(laboratory.environment, method.rollout)
  except errors.UserError as error:
    print(f'No row: {method.name}. {error}', file=sys.stderr)
    return
  row = {
      'method': method.name, 'turns': laboratory.environment.max_turns,
      'group_size': method.rollout.group_size, **laboratory.measure(
          method, num_rollouts, num_calls)}
  print(f'| {method.name} | {row["calls"]} |', *(
      f'{row[name]:.3f} ± {row[f"{name}_error"]:.3f} |' for name in COLUMNS),
        flush=True)
  yield row


def switch(text: str) -> tuple[str, Any]:
  """The key and value of 'key=value'."""
  key, _, value = text.partition('=')
  with contextlib.suppress(ValueError, SyntaxError):  # Other text is a name.
    value = ast.literal_eval(value)
  if key not in SWITCHES:
    raise argparse.ArgumentTypeError(f'{key!r}: expected one of {SWITCHES}.')
  return key, value


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.credit', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  for name, kind, default, help_text in (
      ('turns', int, 4, 'turns of an episode'),
      ('group_size', int, 4, 'candidates of a prompt'),
      ('odds', float, 2.0, 'N to 1 for the right letter'),
      ('calls', int, 10_000, 'minimum number of sampled candidates'),
      ('rollouts', int, 8, 'minimum number of measured rollouts')):
    parser.add_argument(
        f'--{name}', type=kind, default=default, metavar='N', help=help_text)
  parser.add_argument('--team', choices=list(relay.TEAMS), default='pair')
  parser.add_argument(
      '--reward', choices=list(relay.REWARDS), default='mixed')
  for name, help_text in (
      ('boost', 'whether runners may say +'),
      ('chain', 'whether the right letter depends on the last answer'),
      ('stop', 'whether runners may end the episode')):
    parser.add_argument(f'--{name}', action='store_true', help=help_text)
  parser.add_argument(
      '--switch', type=switch, action='append', default=[],
      metavar='KEY=VALUE', help='of the config, without --config.')
  parser.add_argument(
      '--out', type=pathlib.Path, metavar='FILE',
      help='default: benchmarks/results/credit.json; none with --switch')
  args = parser.parse_args(argv)
  if not args.out and not args.switch:
    args.out = pathlib.Path('benchmarks/results/credit.json')
  for name, min_value in (
      ('turns', 2 if args.team == 'at_once' else 1), ('group_size', 2),
      ('rollouts', 2)):
    if (value := getattr(args, name)) < min_value:
      parser.error(f'--{name}={value}: expected at least {min_value}.')
  return args


def main(argv: Sequence[str]) -> None:
  args = parse(argv)
  switches = dict(args.switch)
  # All methods, or AT-GRPO without and with the switches.
  compared = methods(args.group_size) if not switches else [
      make_method('AT-GRPO', args.group_size, {}), make_method(
          ' '.join(f'{key}={value}' for key, value in switches.items()),
          args.group_size, switches)]
  laboratory = Laboratory(relay.make_environment(
      team=args.team, max_turns=args.turns, reward=args.reward, sandbox=None,
      boost=args.boost, chain=args.chain, stop=args.stop), args.odds)
  print(f'K = {args.group_size}, {laboratory.environment}\n\n'
        f'| credit | calls | {" | ".join(COLUMNS)} |\n'
        f'|---|---|{"---|" * len(COLUMNS)}')
  rows = [
      row for method in compared
      for row in report(laboratory, method, args.rollouts, args.calls)]
  if not args.out:
    return
  args.out.parent.mkdir(parents=True, exist_ok=True)
  args.out.write_text(json.dumps({
      'benchmark': 'credit',
      'command': ' '.join(['python -m benchmarks.credit', *argv]),
      'settings': {
          **{name: x for name, x in vars(args).items() if name != 'out'},
          'rules': rules.digests(spec_lib.rule_names(
              compared[-1].rollout, compared[-1].advantage))},
      'rows': rows}, indent=2) + '\n')


if __name__ == '__main__':
  gc.set_threshold(100_000)  # Trees live until the end of a rollout.
  main(sys.argv[1:])
