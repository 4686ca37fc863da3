"""How good is the credit that each algorithm gives? Measured exactly.

  python -m benchmarks.credit [--turns 4] [--boost] [--json FILE]

plays `environments.relay` with policies that are tables, through the same
rollout and the same advantages as training, and knows the true values of all
states. For each way to give credit it prints

  calls       answers that one rollout of all tasks samples
  bias        root mean square, over prompts and answers as they are visited, of
              the mean advantage less the true one
  deviation   root mean square of an advantage around its mean
  cosine      of the mean gradient to the exact one: 1 is no bias in direction
  step        mean cosine of the gradient of a single rollout to the exact one
  learned     return of the team, as a share of the best, after as many
              sampled answers as all others (mean and standard error of seeds)

Credit is measured where a team is halfway: each says the letter that it sees
with odds of 2 to 1. Learning starts from policies that know nothing. The true
values are of the team's rewards alone, so that what a local reward adds counts
as bias. Advantages are rewards less the mean of their group, without a scale
(`none`), but for `learned`, which divides by the deviation (`std`), as training
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import json
import math
import pathlib
import zlib

from absl import app
from absl import flags
import numpy as np

from atgrpo_jax import types
from atgrpo_jax.rl import advantages
from atgrpo_jax.rollout import at_grpo
from atgrpo_jax.rollout import batching
from atgrpo_jax.rollout import interaction as interaction_lib
from environments.relay import env as relay

_TURNS = flags.DEFINE_integer('turns', 4, 'Turns of an episode.')
_BOOST = flags.DEFINE_bool('boost', False, 'Whether runners may say +.')
_GROUP_SIZES = flags.DEFINE_multi_integer('group_size', [4], 'K.')
_REWARD = flags.DEFINE_enum(
    'reward', 'mixed', list(relay.REWARDS), 'Local rewards.')
_ROLLOUTS = flags.DEFINE_integer('rollouts', 400, 'To measure credit with.')
_CALLS = flags.DEFINE_integer('calls', 60_000, 'Sampled answers, to learn.')
_SEEDS = flags.DEFINE_integer('seeds', 5, 'To learn with.')
_JSON = flags.DEFINE_string('json', None, 'File for all numbers.')

LEARNING_RATE = 1.0  # Of the logits; the same for all.


@dataclasses.dataclass(frozen=True)
class Method:
  """A way to give credit: the switches of the rollout and the baseline."""

  name: str
  rollout: at_grpo.RolloutSpec
  group_key: str


def methods(group_size: int) -> list[Method]:
  """Every rollout, selection, target and group key that go together."""
  def tree(name, **switches):
    return Method(
        f'tree, {name}',
        at_grpo.RolloutSpec(group_size=group_size, **switches),
        'env+agent+turn')

  def parallel(target, group_key):
    return Method(
        f'parallel, {target}, {group_key}',
        at_grpo.RolloutSpec(
            rollout='parallel', group_size=group_size, target=target),
        group_key)

  return [
      *(tree(f'immediate, {selection}', selection=selection)
        for selection in at_grpo.SELECTIONS),
      *(tree(f'monte_carlo {num}, {selection}', selection=selection,
             target='monte_carlo', num_continuations=num)
        for selection in ('acting_greedy', 'uniform') for num in (1, 4)),
      parallel('episode_return', 'env'),
      *(parallel(target, 'env+agent+turn')
        for target in ('immediate', 'return_to_go', 'episode_return')),
  ]


@dataclasses.dataclass
class TabularInteraction(interaction_lib.Interaction):
  """Answers from a table of probabilities in the place of a model."""

  table: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def ask(
      self, asks: Sequence[interaction_lib.Ask], *, step: int,
      group_size: int) -> interaction_lib.Asked:
    answers = []
    for ask in asks:
      task_id, role, turn, branch = ask.key
      message, = self.environment.observe(ask.state, role)
      prompt = message['content']
      said = self.environment.answers(role)
      rng = np.random.default_rng([
          self.seed, step, turn, branch,
          *(zlib.crc32(text.encode()) for text in (task_id, role))])
      drawn = rng.choice(len(said), size=group_size, p=self.table[prompt])
      self.counters.model_calls += group_size
      answers.append(interaction_lib.Answer(
          prompt=np.frombuffer(prompt.encode(), np.uint8),
          completions=tuple(drawn[:, None]),
          logprobs=tuple(np.log(self.table[prompt][drawn])[:, None]),
          texts=tuple(said[i] for i in drawn)))
    return interaction_lib.Asked(answers)


class Inline(futures.Executor):
  """Does at once what it is given."""

  def submit(self, function, /, *args, **kwargs):
    done = futures.Future()
    done.set_result(function(*args, **kwargs))
    return done


@dataclasses.dataclass(frozen=True)
class Credit:
  """One candidate: where it stood, what it said and what it got."""

  prompt: str
  answer: int
  advantage: float


@dataclasses.dataclass
class Laboratory:
  """A relay of which every value is known."""

  environment: relay.Relay

  def __post_init__(self):
    self.tasks = relay.tasks(self.environment.max_turns)
    self.prompts = relay.prompts(self.environment)
    self.executor = Inline()

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
      self, method: Method, logits: Mapping[str, np.ndarray], *, seed: int,
      step: int, normaliser: str) -> tuple[list[Credit], int]:
    """All candidates of one rollout of all tasks, and the answers it took."""
    roles = self.environment.roles
    interaction = TabularInteraction(
        environment=self.environment,
        policy_map=dict.fromkeys(roles, 'table'), policies={},
        buckets=batching.Buckets((1,), (1,), (1,), 1), max_new_tokens=1,
        temperature=1.0, seed=seed, executor=self.executor,
        table=probabilities(logits))
    groups = at_grpo.collect(
        interaction, self.tasks, step=step, spec=method.rollout).groups
    credits = advantages.of_groups(
        groups, group_key=method.group_key, normaliser=normaliser,
        of_episodes=method.rollout.target == 'episode_return')
    return (
        list(_credits(groups, credits)), interaction.counters.model_calls)

  def measure(
      self, method: Method, logits: Mapping[str, np.ndarray],
      num_rollouts: int) -> dict[str, float]:
    """Bias, deviation and cosines; see the top of the file."""
    policy = probabilities(logits)
    values = relay.exact_values(self.environment, policy)
    exact = self._flat(values.gradient(policy))
    seen = {
        (prompt, i): [] for prompt, answers in self.prompts.items()
        for i in range(len(answers))}
    steps, calls = [], 0
    for step in range(num_rollouts):
      own, calls = self.rollout(
          method, logits, seed=0, step=step, normaliser='none')
      steps.append(self._flat(gradient(own, policy)))
      for one in own:
        seen[one.prompt, one.answer].append(one.advantage)
    squares, spread, weights = [], [], []
    for (prompt, answer), given in seen.items():
      if given:
        true = values.advantages[prompt][answer]
        squares.append((np.mean(given) - true)**2)
        spread.append(np.var(given))
        weights.append(len(given))
    return {
        'calls': calls,
        'bias': math.sqrt(np.average(squares, weights=weights)),
        'deviation': math.sqrt(np.average(spread, weights=weights)),
        'cosine': cosine(np.mean(steps, axis=0), exact),
        'step': float(np.mean([cosine(one, exact) for one in steps])),
    }

  def learn(self, method: Method, *, seed: int, num_calls: int) -> float:
    """The team's return after learning from as many answers as `num_calls`."""
    logits, step, used = self.uniform(), 0, 0
    while used < num_calls:
      own, calls = self.rollout(
          method, logits, seed=seed, step=step, normaliser='std')
      for prompt, change in gradient(own, probabilities(logits)).items():
        logits[prompt] = logits[prompt] + LEARNING_RATE * change
      step, used = step + 1, used + calls
    return relay.exact_values(
        self.environment, probabilities(logits)).team_return

  def best(self) -> float:
    """The largest return of the team."""
    turns = self.environment.max_turns
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
    credits: Sequence[Credit],
    policy: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Of the mean of advantage * log-probability, for the logits."""
  sums = {}
  for one in credits:
    score = -policy[one.prompt]
    score[one.answer] += 1
    sums[one.prompt] = (
        sums.get(one.prompt, 0.0) + one.advantage / len(credits) * score)
  return sums


def cosine(a: np.ndarray, b: np.ndarray) -> float:
  """0 where one is zero."""
  length = np.linalg.norm(a) * np.linalg.norm(b)
  return float(a @ b / length) if length else 0.0


def _credits(
    groups: Sequence[types.Group],
    credits: Sequence[np.ndarray]) -> Iterator[Credit]:
  for group, own in zip(groups, credits):
    prompt = bytes(group.prompt).decode()
    for completion, advantage in zip(group.completions, own):
      yield Credit(prompt, int(completion[0]), float(advantage))


def report(
    laboratory: Laboratory, group_size: int, *, num_rollouts: int,
    num_calls: int, seeds: Sequence[int]) -> list[dict]:
  """A row for each method; printed as they come."""
  rows = []
  print(f'K = {group_size}, {laboratory.environment}\n\n'
        '| credit | calls | bias | deviation | cosine | step | learned |\n'
        '|---|---|---|---|---|---|---|')
  for method in methods(group_size):
    row = {'method': method.name, 'group_size': group_size}
    row |= laboratory.measure(method, laboratory.halfway(), num_rollouts)
    learned = [
        laboratory.learn(method, seed=seed, num_calls=num_calls)
        / laboratory.best() for seed in seeds]
    row |= {
        'learned': float(np.mean(learned)),
        'error': float(np.std(learned, ddof=1) / math.sqrt(len(learned)))}
    print('| {method} | {calls} | {bias:.3f} | {deviation:.3f} | {cosine:.3f} '
          '| {step:.3f} | {learned:.3f} ± {error:.3f} |'.format(**row),
          flush=True)
    rows.append(row)
  return rows


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}.')
  laboratory = Laboratory(relay.make_environment(
      team='pair', max_turns=_TURNS.value, reward=_REWARD.value, sandbox=None,
      boost=_BOOST.value))
  rows = []
  for group_size in _GROUP_SIZES.value:
    rows += report(
        laboratory, group_size, num_rollouts=_ROLLOUTS.value,
        num_calls=_CALLS.value, seeds=range(_SEEDS.value))
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
  app.run(main)
