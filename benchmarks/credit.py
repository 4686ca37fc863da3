"""How good is the credit that each algorithm gives? Measured exactly.

  python -m benchmarks.credit [--turns T,T] [--group_size K,K]
      [--team at_once] [--reward outcome] [--boost] [--calls N]
      [--rollouts N] [--seeds N] [--out FILE]

plays `environments.relay` with policies that are tables, through the same
rollout and the same advantages as training, and knows the true values of all
states. For each number of turns (T), group size (K) and way to give credit it
prints, and writes to FILE (benchmarks/results/credit.json),

  calls       answers that one rollout of all tasks samples
  bias        root mean square, over prompts and answers as they are visited, of
              the mean advantage less the true one
  deviation   root mean square of an advantage around its mean
  cosine      of the mean gradient to the exact one: 1 is no bias in direction
  step        mean cosine of the gradient of a single rollout to the exact one
  learned     return of the team, as a share of the best, after as many
              sampled answers as all others

Credit is measured where a team is halfway: each says the letter that it sees
with odds of 2 to 1. Learning starts from policies that know nothing. The true
values are of the team's rewards alone, so that what a local reward adds counts
as bias.

Advantages that are measured are rewards less the mean of the others of their
group (`leave_one_out`), in the unit of the true ones: a mean that is also of
the candidate itself would make them smaller by 1/K, and a deviation would give
each group a unit of its own. `learned` divides by the deviation (`std`), as
training does.

IAC and MAAC are those of training, with tables for critics. The advantages of
form v are measured as they are; to learn, those of a role and turn are divided
by their root mean square. An `exact` critic knows the true mean return of what
it is shown, before each rollout. To be measured, a `learned` one first learns
from as many other answers as it is then measured with. Its noise is then the
same in all rollouts: it counts as bias, and no standard error knows it. In
`learned` it learns from the same answers as the policies, after them.

A gradient is a mean over all candidates; with `an update for each turn`, and
where all branches have critics, it is the sum of the means over each turn's.

Methods that the game cannot be played with, such as all branches of many turns,
have no row, and a line says why.

Behind each number stands its standard error: of `step` and `learned` that of a
mean of rollouts and of seeds. Noise in the means of few rollouts would raise
bias and lower deviation and cosine; the jackknife over rollouts, which alone
are independent, takes this out and gives their errors. So an estimate of a
cosine can exceed 1, and one of a squared bias can be negative, printed as 0.
The error of a root is what it grows by with one error more of its square.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import gc
import json
import math
import pathlib
import sys

import numpy as np

from atgrpo_jax import errors
from atgrpo_jax.algorithms import credit as credit_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import tree as tree_lib
from benchmarks import credit_methods
from benchmarks import critics
from benchmarks import estimates
from benchmarks import tabular_runner
from environments.relay import env as relay

LEARNING_RATE = 1.0  # Of the logits; the same for all.
COLUMNS = ('bias', 'deviation', 'cosine', 'step', 'learned')


@dataclasses.dataclass(frozen=True)
class Credit:
  """One candidate: where it stood, what it said and what it got."""

  prompt: str
  turn: int
  answer: int
  advantage: float


@dataclasses.dataclass
class Laboratory:
  """A relay of which every value is known."""

  environment: relay.Relay

  def __post_init__(self):
    self.tasks = relay.tasks(self.environment.max_turns)
    self.prompts = relay.prompts(self.environment)
    self.indices = {
        place: index for index, place in enumerate(
            (prompt, answer) for prompt, answers in self.prompts.items()
            for answer in range(len(answers)))}
    self.executor = tabular_runner.Inline()

  def uniform(self) -> dict[str, np.ndarray]:
    """Logits of policies that know nothing."""
    return {prompt: np.zeros(len(a)) for prompt, a in self.prompts.items()}

  def halfway(self) -> dict[str, np.ndarray]:
    """Logits of policies that say the letter they see, with odds of 2 to 1."""
    return {
        prompt: np.array([
            math.log(2) * (answer == prompt.split()[2][0])
            for answer in answers])
        for prompt, answers in self.prompts.items()}

  def rollout(
      self, method: credit_methods.Method, logits: Mapping[str, np.ndarray], *,
      seed: int, step: int, measured: bool,
      critic: critics.Critic | None = None) -> tuple[list[tree_lib.Tree], int]:
    """A tree for each task, with advantages, and the answers it took."""
    roles = self.environment.roles
    runner = tabular_runner.TabularRunner(
        environment=self.environment, policy_map={role: role for role in roles},
        policies={
            role: policies_lib.SamplingPolicy(
                model=None, tokenizer=tabular_runner.Answers(
                    self.environment.answers(role)))
            for role in roles},
        buckets=batching.Buckets((1,), (1,), (1,), 1), max_new_tokens=1,
        temperature=1.0, seed=seed, train_step=step, executor=self.executor,
        table=probabilities(logits), rng=np.random.default_rng([seed, step]))
    trees = credit_lib.collect(
        runner, self.tasks, method.rollout,
        method.advantage(measured=measured), critic and critic.critics())
    return trees, runner.usage.model_calls

  def critic(
      self, method: credit_methods.Method,
      logits: Mapping[str, np.ndarray]) -> critics.Critic | None:
    """Of a method, before the first rollout."""
    if method.critic is None:
      return None
    critic = critics.Critic(self.environment, method.critic, method.rollout)
    if method.exact:
      critic.know(probabilities(logits))
    return critic

  def critic_to_measure(
      self, method: credit_methods.Method, logits: Mapping[str, np.ndarray],
      num_rollouts: int, num_calls: int) -> critics.Critic | None:
    """One that has learned from other rollouts of the same policies."""
    critic, step, used = self.critic(method, logits), 0, 0
    while critic and not method.exact and (
        step < num_rollouts or used < num_calls):
      trees, calls = self.rollout(
          method, logits, seed=1, step=step, measured=True, critic=critic)
      critic.learn(trees)
      step, used = step + 1, used + calls
    return critic

  def measure(
      self, method: credit_methods.Method, logits: Mapping[str, np.ndarray],
      num_rollouts: int, num_calls: int = 0) -> dict[str, float]:
    """Bias, deviation, cosines and errors; see the top of the file.

    From `num_rollouts`, or as many more as `num_calls` answers make.
    """
    policy = probabilities(logits)
    values = relay.exact_values(self.environment, policy)
    true = self._flat(values.advantages)
    exact = self._flat(values.gradient(policy))
    critic = self.critic_to_measure(method, logits, num_rollouts, num_calls)
    rollouts = []  # [4, N]: counts, sums, sums of squares and the gradient.
    used = 0
    while len(rollouts) < num_rollouts or used < num_calls:
      trees, calls = self.rollout(
          method, logits, seed=0, step=len(rollouts), measured=True,
          critic=critic)
      own = credits_of(trees)
      used += calls
      places = [self.indices[one.prompt, one.answer] for one in own]
      given = np.array([one.advantage for one in own])
      rollouts.append([
          *(np.bincount(places, given**power, len(self.indices))
            for power in range(3)),
          self._flat(gradient(own, policy, method.update_order))])
    rollouts = np.array(rollouts)

    def statistics(totals):
      """[3, ...] of [..., 4, N]."""
      counts, sums, squares, slopes = np.moveaxis(totals, -2, 0)
      weights = counts / counts.sum(axis=-1, keepdims=True)
      counts = np.maximum(counts, 1)
      means = sums / counts
      return np.stack([
          (weights * (means - true)**2).sum(axis=-1),
          (weights * (squares / counts - means**2)).sum(axis=-1),
          cosine(slopes, exact)])

    bias, deviation, direction = zip(*estimates.jackknife(statistics, rollouts))
    measured = {'calls': calls, 'rollouts': len(rollouts)}
    for name, (value, error) in {
        'bias': estimates.root(*bias), 'deviation': estimates.root(*deviation),
        'cosine': direction,
        'step': estimates.mean(cosine(rollouts[:, 3], exact))}.items():
      measured |= {name: value, f'{name}_error': error}
    return measured

  def learn(
      self, method: credit_methods.Method, *, seed: int,
      num_calls: int) -> float:
    """The team's return after learning from as many answers as `num_calls`."""
    logits, step, used = self.uniform(), 0, 0
    critic = self.critic(method, logits)
    while used < num_calls:
      trees, calls = self.rollout(
          method, logits, seed=seed, step=step, measured=False, critic=critic)
      slopes = gradient(
          credits_of(trees), probabilities(logits), method.update_order)
      for prompt, change in slopes.items():
        logits[prompt] = logits[prompt] + LEARNING_RATE * change
      if critic and method.exact:
        critic.know(probabilities(logits))
      elif critic:
        critic.learn(trees)
      step, used = step + 1, used + calls
    return relay.exact_values(
        self.environment, probabilities(logits)).team_return

  def best(self) -> float:
    """The largest return of the team."""
    turns = self.environment.max_turns
    if self.environment.delay:
      return 1 - 1 / turns  # Without a '+', or with one in the first turn.
    if not self.environment.boost:
      return 1.0
    return max(turns / 2, turns - 1) / turns

  def _flat(self, tree: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([
        tree.get(prompt, np.zeros(len(answers)))
        for prompt, answers in self.prompts.items()])


def probabilities(logits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The table of a softmax."""
  return {
      prompt: np.exp(x - x.max()) / np.exp(x - x.max()).sum()
      for prompt, x in logits.items()}


def gradient(
    credits: Sequence[Credit], policy: Mapping[str, np.ndarray],
    update_order: str) -> dict[str, np.ndarray]:
  """Of the mean of advantage * log-probability, for the logits.

  Of all candidates if `update_order` is 'mixed', else of each turn by itself;
  the prompts of turns differ, so their updates do in any order.
  """
  turns = [0 if update_order == 'mixed' else one.turn for one in credits]
  sizes, sums = collections.Counter(turns), {}
  for one, turn in zip(credits, turns):
    score = -policy[one.prompt]
    score[one.answer] += 1
    sums[one.prompt] = (
        sums.get(one.prompt, 0.0) + one.advantage / sizes[turn] * score)
  return sums


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """[...] of [..., N] and [N]; 0 where one is zero."""
  length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b)
  return a @ b / np.where(length, length, 1)


def credits_of(trees: Sequence[tree_lib.Tree]) -> list[Credit]:
  """Of all candidates of a rollout."""
  return [
      Credit(
          bytes(group.prompt).decode(), group.key.turn,
          int(candidate.completion[0]), float(candidate.advantage))
      for group in tree_lib.groups_of(trees) for candidate in group.candidates]


def playable(
    environment: relay.Relay, group_size: int) -> list[credit_methods.Method]:
  """The methods that a game can be played with; says which others are not."""
  found, refused = [], {}
  for method in credit_methods.methods(group_size):
    try:
      credit_lib.check(environment, method.rollout)
    except errors.UserError as error:
      refused.setdefault(str(error), []).append(method.name)
    else:
      found.append(method)
  for error, names in refused.items():
    print(f'\nNo row: {"; ".join(names)}. {error}')
  return found


def report(
    laboratory: Laboratory, group_size: int, *, num_rollouts: int,
    num_calls: int, seeds: Sequence[int]) -> list[dict]:
  """A row for each method; printed as they come."""
  turns = laboratory.environment.max_turns
  compared = playable(laboratory.environment, group_size)
  print(f'\nK = {group_size}, {laboratory.environment}\n\n'
        f'| credit | calls | {" | ".join(COLUMNS)} |\n'
        f'|---|---|{"---|" * len(COLUMNS)}')
  rows = []
  for method in compared:
    row = {'method': method.name, 'turns': turns, 'group_size': group_size}
    row |= laboratory.measure(
        method, laboratory.halfway(), num_rollouts, num_calls)
    row['learned'], row['learned_error'] = estimates.mean([
        laboratory.learn(method, seed=seed, num_calls=num_calls)
        / laboratory.best() for seed in seeds])
    print(f'| {method.name} | {row["calls"]} |', *(
        f'{row[name]:.3f} ± {row[f"{name}_error"]:.3f} |' for name in COLUMNS),
          flush=True)
    rows.append(row)
  return rows


def integers(text: str) -> list[int]:
  """Of a list with commas."""
  return [int(part) for part in text.split(',')]


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """The command line."""
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.credit', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--turns', type=integers, default=[2, 4], metavar='T,T')
  parser.add_argument(
      '--group_size', type=integers, default=[2, 4, 8], metavar='K,K')
  parser.add_argument('--team', choices=list(relay.TEAMS), default='pair')
  parser.add_argument(
      '--reward', choices=list(relay.REWARDS), default='mixed')
  parser.add_argument(
      '--boost', action='store_true', help='whether runners may say +')
  parser.add_argument(
      '--calls', type=int, default=10_000, metavar='N',
      help='sampled answers, to measure with and to learn from')
  parser.add_argument(
      '--rollouts', type=int, default=8, metavar='N',
      help='at least, to measure with')
  parser.add_argument(
      '--seeds', type=int, default=2, metavar='N', help='to learn with')
  parser.add_argument(
      '--out', type=pathlib.Path, metavar='FILE',
      default=pathlib.Path('benchmarks/results/credit.json'))
  args = parser.parse_args(argv)
  for name, least in (
      ('turns', 2 if args.team == 'at_once' else 1), ('group_size', 2),
      ('rollouts', 2), ('seeds', 2)):
    if np.min(getattr(args, name)) < least:
      parser.error(f'--{name} must be at least {least}.')
  return args


def main(argv: Sequence[str]) -> None:
  args = parse(argv)
  rows = []
  for turns in args.turns:
    laboratory = Laboratory(relay.make_environment(
        team=args.team, max_turns=turns, reward=args.reward, sandbox=None,
        boost=args.boost))
    for group_size in args.group_size:
      rows += report(
          laboratory, group_size, num_rollouts=args.rollouts,
          num_calls=args.calls, seeds=range(args.seeds))
  settings = {name: it for name, it in vars(args).items() if name != 'out'}
  options = [
      f'--{name} {",".join(map(str, it)) if isinstance(it, list) else it}'
      for name, it in settings.items() if name != 'boost']
  args.out.parent.mkdir(parents=True, exist_ok=True)
  args.out.write_text(json.dumps({
      'benchmark': 'credit',
      'command': ' '.join([
          'python -m benchmarks.credit', *options, *['--boost'] * args.boost]),
      'settings': {
          **settings, 'learning_rate': LEARNING_RATE,
          'advantage': {
              'measured': credit_methods.MEASURED,
              'learned': credit_methods.LEARNED,
              'measured with a critic': credit_methods.CRITIC_MEASURED,
              'learned with a critic': credit_methods.CRITIC_LEARNED},
          'critic_step_size': critics.STEP_SIZE},
      'rows': rows}, indent=2) + '\n')


if __name__ == '__main__':
  gc.set_threshold(100_000)  # What a rollout makes lives until its end.
  main(sys.argv[1:])
