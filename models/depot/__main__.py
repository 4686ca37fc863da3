"""Trains a base model of Depot, which knows the format and little else.

  python -m models.depot --seed 1 --out .cache/depot/1

--code, --num_items and --num_orders are keys of `environment.options`, and
--chain 1 makes a model for the preset `chain`. --seed is that of weights and
demonstrations.

For every choice, the right answer has a logit of 1 and each wrong one of 0; see
README.md. A scout after the first should repeat the word that it sees. All
words for a hidden order are equally likely, and so are all shelves after an
unknown word.
"""

from collections.abc import Mapping
import functools

import numpy as np

from environments.depot import env as depot
from models import pretrain

ALL_AT_ONCE = 'solo_all'  # The single agent that serves all orders at once.
_NUM_GROUPS = {  # Role -> prompts in each step.
    'scout': 8, 'picker': 16, 'solo': 16, ALL_AT_ONCE: 8,
    **dict.fromkeys(depot.TEAMS['septet'][1:-1], 2)}
_UNKNOWN = -1  # Index of an unknown right answer.


def demonstrate(
    rng: np.random.Generator, role: str, kinds: Mapping[str, float],
    group_size: int, *, num_items: int, num_orders: int, code: int,
    chain: int) -> pretrain.Demonstration:
  """Draws a prompt of a role, or of `ALL_AT_ONCE`, and answers to it."""
  del kinds  # All answers have one distribution.
  is_solo = role in ('solo', ALL_AT_ONCE)
  environment = depot.make_environment(
      team='solo' if is_solo else 'septet',
      max_turns=1 if role == ALL_AT_ONCE else num_orders,
      reward='chain' if chain else str(rng.choice(('mixed', 'boost'))),
      sandbox=None,
      num_items=num_items, num_orders=num_orders, code=code,
      prompt_limit=max(0, int(rng.integers(-num_orders, num_orders))))
  words, picks = environment.answers('scout'), environment.answers('picker')
  turn = int(rng.integers(environment.max_turns))
  state = depot.State(
      '', tuple(rng.integers(num_items, size=num_orders).tolist()),
      picks=(str(rng.choice(picks)),) * turn,
      word=str(rng.choice((*words, depot.UNKNOWN))))
  messages = environment.observe(state, 'solo' if is_solo else role)
  shown = shown_tokens(messages)
  if depot.SINGLE not in messages[0]['content']:
    picks = picks[:num_items]
  right_words, right_shelves = right_answers(environment, state)
  said = np.tile(
      [words.index(right_words[token]) if token in right_words else _UNKNOWN
       for token in shown], (group_size, 1))
  parts = []
  if role != 'picker':
    said = _draw(rng, said, num_items)
    parts.append(np.array(words)[said])
  if is_solo or role == 'picker':
    # The last entry is for an unknown word.
    shelves = np.array(
        [picks.index(right_shelves[word]) for word in words] + [_UNKNOWN])
    parts.append(np.array(picks)[_draw(rng, shelves[said], len(picks))])
  return pretrain.Demonstration(
      state, messages, tuple(map(' '.join, np.concatenate(parts, axis=1))))


def shown_tokens(messages: list[dict[str, str]]) -> list[str]:
  """The items or words of a prompt that its completion answers."""
  role, turn, *shown = messages[0]['content'].split()
  if role in ('picker', 'solo'):
    del shown[0]  # The flag.
  return shown if turn == depot.ALL_TURNS else shown[:1]


def right_answers(
    environment: depot.Depot,
    state: depot.State) -> tuple[dict[str, str], dict[str, str]]:
  """Maps a seen item or word to the right word, and a word to its shelf."""
  items = depot.names('i', len(environment.words))
  words = environment.words
  shift = environment.last_picks(state)[-1] * (environment.reward == 'chain')
  return (
      dict(zip((*items, *words), (*words[shift:], *words[:shift], *words))),
      dict(zip(words, environment.shelves)))


def _draw(
    rng: np.random.Generator, right: np.ndarray, num: int) -> np.ndarray:
  """Draws answers from 0 to `num` - 1, given the right ones or `_UNKNOWN`."""
  p_right = np.e / (np.e + num - 1)
  wrong = (right + rng.integers(1, num, size=right.shape)) % num
  answers = np.where(rng.random(right.shape) < p_right, right, wrong)
  return np.where(
      right == _UNKNOWN, rng.integers(num, size=right.shape), answers)


def make_recipe(
    seed: int = 0, code: int = 0, num_items: int = 8, num_orders: int = 6,
    chain: int = 0) -> pretrain.Recipe:
  """The recipe for these options of `environments.depot.env`."""
  # `chain` has no single agent that serves all orders at once.
  roles = ('scout', 'picker', 'solo') if chain else _NUM_GROUPS
  return pretrain.Recipe(
      seed=seed,
      tasks={'depot': functools.partial(
          demonstrate, num_items=num_items, num_orders=num_orders, code=code,
          chain=chain)},
      tokenizer=pretrain.Words((
          *depot.TEAMS['solo'], *depot.TEAMS['septet'],
          *depot.names('t', num_orders), depot.ALL_TURNS, *depot.FLAGS,
          depot.SERVED, depot.UNKNOWN, depot.BOOST,
          *depot.names('i', num_items), *depot.names('w', num_items),
          *depot.names('s', num_items))),
      phases={'preferences': pretrain.Phase(1500, 16, {'depot': {
          role: (_NUM_GROUPS[role], {}) for role in roles}})},
      prompt_buckets=tuple(sorted({4, 3 + chain + num_orders})),
      completion_buckets=tuple(sorted({2, 3, 1 + 2 * num_orders})),
      groups_per_batch=64,
      dims=dict(
          hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4,
          num_kv_heads=4, head_dim=16, rope_theta=10000.0, norm_eps=1e-6,
          tied_head=False, max_positions=128, init_std=0.02))


if __name__ == '__main__':
  pretrain.main(make_recipe, __doc__)
