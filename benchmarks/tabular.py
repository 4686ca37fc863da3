"""Tables instead of models: a runner and critics for `benchmarks.credit`.

A completion is one id, the index of an answer of `environments.relay`.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses

import numpy as np

from atgrpo_jax import types
from atgrpo_jax.algorithms import actor_critic
from atgrpo_jax.algorithms import spec as spec_lib
from atgrpo_jax.learner import batching
from atgrpo_jax.rollout import policies as policies_lib
from atgrpo_jax.rollout import runner as runner_lib
from atgrpo_jax.rollout import tree as tree_lib
from atgrpo_jax.sampling import engine as engine_lib
from environments import env_api
from environments.relay import env as relay

CRITIC_STEP_SIZE = 0.5  # Moves the table, which starts at 0, to the mean.


class InlineExecutor(futures.Executor):
  """Runs a submitted function immediately."""

  def submit(self, function, /, *args, **kwargs):
    done = futures.Future()
    done.set_result(function(*args, **kwargs))
    return done


@dataclasses.dataclass(frozen=True)
class AnswerTokenizer:
  """A tokenizer whose ids are the answers of a role."""

  answers: Sequence[str]
  opening = ''

  def decode(self, ids: np.ndarray) -> str:
    return self.answers[ids[0]]


@dataclasses.dataclass
class TabularRunner(runner_lib.EpisodeRunner):
  """Samples from {prompt: probabilities} instead of a model."""

  table: Mapping[str, np.ndarray] = dataclasses.field(kw_only=True)
  table_rng: np.random.Generator = dataclasses.field(kw_only=True)

  def sample(
      self, states: Mapping[types.GroupKey, env_api.State], *,
      group_size: int) -> runner_lib.PendingSamples:
    groups = []
    for key, state in states.items():
      message, = self.observe(state, key)
      prompt = message['content']
      probability = self.table[prompt]
      drawn = self.table_rng.choice(
          len(probability), size=group_size, p=probability)
      self.usage.model_calls += group_size
      groups.append(engine_lib.SampledGroup(
          engine_lib.Request(
              tag=None, prompt=np.frombuffer(prompt.encode(), np.uint8),
              key_ids=None, budget=1),
          completions=tuple(drawn[:, None]),
          logprobs=tuple(np.log(probability[drawn])[:, None])))
    return runner_lib.PendingSamples(groups)

  def has_room(self, *_) -> bool:
    return True


def make_runner(
    environment: relay.Relay, table: Mapping[str, np.ndarray], *, alpha: float,
    seed: int, step: int) -> TabularRunner:
  """A runner with one policy per role."""
  roles = environment.roles
  return TabularRunner(
      environment=environment, policy_map={role: role for role in roles},
      policies={
          role: policies_lib.SamplingPolicy(
              model=None, tokenizer=AnswerTokenizer(environment.answers(role)))
          for role in roles},
      buckets=batching.Buckets((1,), (1,), (1,), 1), max_new_tokens=1,
      temperature=1.0, seed=seed, train_step=step, executor=InlineExecutor(),
      alpha=alpha, table=table, table_rng=np.random.default_rng([seed, step]))


@dataclasses.dataclass
class TabularCritic:
  """Critics with a table of values: input -> mean later return.

  Independent critics share the table, because their prompts name the role.
  """

  environment: relay.Relay
  spec: spec_lib.CriticSpec
  rollout: spec_lib.RolloutSpec
  table: dict[str, float] = dataclasses.field(default_factory=dict)

  def bind(self) -> actor_critic.Critics:
    bound = actor_critic.BoundCritic('table', self, self.values)
    return actor_critic.Critics(self.spec, dict.fromkeys(
        [actor_critic.CENTRAL, *self.environment.roles], bound))

  def encode_prompt(self, messages: Sequence[env_api.Message]) -> np.ndarray:
    """[S] uint8, the text itself."""
    return np.frombuffer(_text(messages).encode(), np.uint8)

  def values(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """[N] values of encoded inputs; 0 for unknown ones."""
    return np.array([
        self.table.get(bytes(ids).decode(), 0.0) for ids in inputs])

  def learn(self, trees: Sequence[tree_lib.Tree]) -> None:
    """Moves the table towards the mean targets of a rollout."""
    targets = {}
    for example in tree_lib.value_examples_of(trees):
      targets.setdefault(bytes(example.inputs).decode(), []).append(
          example.target)
    for text, found in targets.items():
      before = self.table.get(text, 0.0)
      self.table[text] = before + CRITIC_STEP_SIZE * (np.mean(found) - before)

  def set_exact(self, policy: relay.Policy) -> None:
    """Fills the table with the true mean returns of a policy."""
    environment = self.environment
    sums, weights = {}, {}
    expected = {}  # State -> {view: mean return}.
    for position, probability, tables in reversed(
        relay.visited(environment, policy)):
      phase = environment.phases.index(position.roles)
      joint = relay.joint_probabilities(tables)
      expected[position.state] = {}
      for indices, step in position.steps.items():
        after = {} if step.done else expected[step.state]
        for view, messages in actor_critic.critic_prompts(
            environment, self.spec.kind, position.state, phase,
            task_id=position.state.task_id, turn=position.state.turn).items():
          return_ = self._reward(step, view) + self.rollout.discount * (
              after[view] if view in after
              else np.mean(list(after.values()) or [0.0]))
          text, weight = _text(messages), probability * joint[indices]
          sums[text] = sums.get(text, 0.0) + weight * return_
          weights[text] = weights.get(text, 0.0) + weight
          expected[position.state][view] = (
              expected[position.state].get(view, 0.0)
              + joint[indices] * return_)
    self.table = {
        text: total / weights[text] for text, total in sums.items()
        if weights[text]}

  def _reward(self, step: env_api.Step, view: str) -> float:
    local = step.local_rewards
    return self.rollout.alpha * step.team_reward + (
        np.mean(list(local.values())) if view == actor_critic.CENTRAL
        else local[view])


def _text(messages: Sequence[env_api.Message]) -> str:
  return '\n'.join(message['content'] for message in messages)
