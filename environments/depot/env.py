"""Depot: 2 T independent choices of one token, with known optimal returns.

An episode has T orders, each for one of m items. A table from items to shelves
is the same in all tasks, and so is a code that gives each item one of m words.
Both are random permutations, so the names of items, words and shelves say
nothing about each other. No prompt shows them. Otherwise looking up an entry
would be one skill shared by all choices, and learning it would be a single
bandit instead of 2 T choices.

In each turn a team serves one order. In a `pair`, a *scout* sees the order and
says a word; a *picker* sees the word, the turn and the flag, and names a shelf.
`trio` to `septet` have two to six scouts; each scout after the first sees the
word of the scout before it, and the right word is the same for all. In `solo`
one agent sees all open orders, says a word and names a shelf. With
`max_turns=1` it serves all orders in one completion of 2 T tokens: first all
words, then all shelves.

Reward terms, all in [0, 1]:

  name    role    value                                               sees
  picked  team    points of the picks / maximum points of an episode  the order
  told    scout,  ratio of the T words that are right: the code gives the order
          solo    them to the ordered item; weight 0 in `outcome`

A right pick has one point. In the preset `boost` a picker may say '+' instead
of a shelf. It has no points and sets the flag: each later right pick has two.
A second '+' only loses a pick. Presets (`REWARDS`):

  mixed    picked and told
  outcome  picked; any one-to-one use of the words is as good as the code, so
           teams that learned different ones do not understand each other
  boost    mixed, with '+'
  chain    mixed, but the right answers depend on the last pick

In `chain`, after a pick of shelf p the right word and shelf for item i are
those of item i + p - 1, modulo m. Before the first valid pick, p is 1. The
prompt of the first scout or the single agent ends with the last pick. So the
episodes of a task have different prompts, and need different answers.

The maximum is T without '+', and 2 (T - 1) with '+' in the first turn. With
T = 6 a team that never says '+' has at most 6 / 10 = 0.60 of the maximum.

If both agents of a pair choose right with probability p, the expected return is
p^2 + (1 - p)^2 / (m - 1), because the picker may name the ordered shelf after a
wrong word. Without the word it is 1 / m.

`success`: the episode has the maximum of points. A completion with a missing or
unknown token is a PARSE_ERROR; this token is wrong, the others count.
"""

from collections.abc import Mapping
import dataclasses
import itertools

import numpy as np

from environments import env_api
from environments import sandbox as sandbox_lib

BOOST = '+'
UNKNOWN = '?'  # An invalid word, or an order beyond the prompt limit.
SERVED = '.'  # A served order in the prompt of a single agent.
FLAGS = PLAIN, SINGLE, DOUBLE = 'plain', 'single', 'double'
ALL_TURNS = 'all'  # The turn in a prompt that asks for all orders.
MAX_ORDERS = 24  # Orders of a task; an episode serves the first of them.
ORDER_RANGE = 10_000  # A task's order x is the item x * m // ORDER_RANGE.

# Team -> roles, in the order in which they act.
TEAMS = {'solo': ('solo',)} | {
    name: ('scout', *(f'scout_{i}' for i in range(2, num)), 'picker')
    for num, name in enumerate(
        ('pair', 'trio', 'quartet', 'quintet', 'sextet', 'septet'), 2)}
REWARDS = ('boost', 'chain', 'mixed', 'outcome')


@dataclasses.dataclass(frozen=True)
class State:
  task_id: str
  orders: tuple[int, ...]  # Items, from 0 to m - 1.
  picks: tuple[str, ...] = ()  # The answers to the served orders.
  word: str = ''  # The last word about the current order; '' without one.


@dataclasses.dataclass(frozen=True)
class Depot(env_api.Sequential):
  """The environment; see `environments.env_api.Environment`."""

  roles: tuple[str, ...]
  max_turns: int
  num_orders: int  # T.
  words: tuple[str, ...]  # The code: the word of each item.
  shelves: tuple[str, ...]  # The table: the shelf of each item.
  reward: str  # One of `REWARDS`.
  prompt_limit: int  # Orders that a prompt shows.

  team_reward_range = (0.0, 1.0)

  @property
  def max_points(self) -> int:
    boosted = 2 * (self.num_orders - 1)
    return max(self.num_orders, boosted * (self.reward == 'boost'))

  def answers(self, role: str) -> tuple[str, ...]:
    """The valid words of a scout, or the valid picks of a picker."""
    if role == 'picker':
      return names('s', len(self.shelves)) + (BOOST,) * (
          self.reward == 'boost')
    return names('w', len(self.words))

  def last_picks(self, state: State) -> list[int]:
    """The last valid pick before each served order and the next, from 0."""
    shelves, found = self.answers('picker'), [0]
    for pick in state.picks:
      found.append(shelves.index(pick) if pick in shelves else found[-1])
    return found

  def wanted(self, state: State) -> tuple[int, ...]:
    """The items whose word and shelf are right: one for each order.

    In `chain` only for the orders that were served, and the next.
    """
    if self.reward != 'chain':
      return state.orders
    return tuple(
        (item + shelf) % len(self.shelves)
        for item, shelf in zip(state.orders, self.last_picks(state)))

  def points(self, state: State) -> int:
    """Points of the served orders."""
    points, value = 0, 1
    for item, pick in zip(self.wanted(state), state.picks):
      points += value * (pick == self.shelves[item])
      value = 2 if pick == BOOST else value
    return points

  def reset(self, task: env_api.Task) -> State:
    return State(task['task_id'], tuple(
        x * len(self.words) // ORDER_RANGE
        for x in task['orders'][:self.num_orders]))

  def observe(self, state: State, role: str) -> list[env_api.Message]:
    turn = len(state.picks)
    flag = PLAIN
    if self.reward == 'boost':
      flag = DOUBLE if BOOST in state.picks else SINGLE
    items = names('i', len(self.words))
    orders = [items[item] for item in state.orders]
    parts = [role, f't{turn + 1}']
    if role == 'solo':
      if self.max_turns == 1:
        parts[1] = ALL_TURNS
      orders[self.prompt_limit:] = [UNKNOWN] * len(orders[self.prompt_limit:])
      parts += [flag, *orders[turn:], *[SERVED] * turn]
    elif role == 'scout':
      parts.append(orders[turn])
    elif role == 'picker':
      parts += [flag, state.word]
    else:
      parts.append(state.word)
    if self.reward == 'chain' and role in ('scout', 'solo'):
      parts.append(self.answers('picker')[self.last_picks(state)[-1]])
    return [{'role': 'user', 'content': ' '.join(parts)}]

  def step(self, state: State, actions: Mapping[str, str]) -> env_api.Step:
    (role, action), = actions.items()
    num = self.num_orders if self.max_turns == 1 else 1
    turn = len(state.picks)
    items = self.wanted(state)[turn:turn + num]
    has_word, has_pick = role != 'picker', role in ('picker', 'solo')
    tokens = action.split()
    words = tokens[:num * has_word]
    picks = tokens[num * has_word:][:num * has_pick]
    valid = {*self.answers('picker')}
    is_valid = len(tokens) == num * (has_word + has_pick) and (
        {*words} <= {*self.words} and {*picks} <= valid)
    terms, after = {}, state
    if has_word:
      terms['told'] = sum(
          word == self.words[item]
          for word, item in zip(words, items)) / self.num_orders
      word = words[0] if words and words[0] in self.words else UNKNOWN
      after = dataclasses.replace(after, word=word)
    if has_pick:
      picks += [UNKNOWN] * (num - len(picks))
      after = dataclasses.replace(after, word='', picks=state.picks + tuple(
          pick if pick in valid else UNKNOWN for pick in picks))
      terms['picked'] = (
          self.points(after) - self.points(state)) / self.max_points
    done = len(after.picks) == self.num_orders
    success = done and self.points(after) == self.max_points
    return env_api.Step(
        state=after, team_reward=terms.get('picked', 0.0),
        local_rewards={
            role: (self.reward != 'outcome') * terms.get('told', 0.0)},
        reward_terms=terms, done=done, success=success,
        truncated=done and not success, outcomes={
            role: env_api.Outcome.OK if is_valid
            else env_api.Outcome.PARSE_ERROR})

  def show(self, state: State) -> dict[str, str]:
    """Draws a row for each order and a column for each shelf.

    'o' is the ordered shelf, '*' a right and 'x' a wrong pick, and '+' a boost
    instead of the order.
    """
    rows = []
    for item, pick in itertools.zip_longest(self.wanted(state), state.picks):
      shelf = self.shelves[item]
      row = dict.fromkeys(names('s', len(self.shelves)), '.') | {shelf: 'o'}
      if pick == BOOST:
        row[shelf] = BOOST
      elif pick in row:
        row[pick] = '*' if pick == shelf else 'x'
      rows.append(''.join(row.values()))
    return {
        'board': '\n'.join(rows), 'word': state.word,
        'picks': ' '.join(state.picks), 'points': str(self.points(state))}


def make_environment(
    *, team: str, max_turns: int, reward: str,
    sandbox: sandbox_lib.Sandbox | None, num_items: int = 8,
    num_orders: int = 6, prompt_limit: int = 0, code: int = 0) -> Depot:
  """Builds the environment of a config.

  Args:
    team: a key of `TEAMS`.
    max_turns: `num_orders`, or 1 for a single agent that serves all orders at
      once, which `chain` does not allow.
    reward: one of `REWARDS`.
    sandbox: not used.
    num_items: m, the number of items, words and shelves.
    num_orders: T, the number of orders of an episode.
    prompt_limit: number of orders that fit into a prompt; 0 for all. A single
      agent does not see the others. Each prompt of a larger team has at most
      one order.
    code: number of the code, a seed. Codes differ by a permutation of words.
  """
  del sandbox
  env_api.check_options(
      max_turns, team=(team, TEAMS), reward=(reward, REWARDS))
  for name, value, low, high in (
      ('num_items', num_items, 2, 100),
      ('num_orders', num_orders, 1, MAX_ORDERS),
      ('prompt_limit', prompt_limit, 0, MAX_ORDERS), ('code', code, 0, 2**32)):
    if not low <= value <= high:
      raise ValueError(
          f'environment.options.{name}={value!r}: expected a number from {low} '
          f'to {high}.')
  if max_turns != num_orders and (team, max_turns) != ('solo', 1):
    raise ValueError(
        f'environment.max_turns={max_turns}: expected {num_orders}, one turn '
        "for each order, or 1 with the team 'solo'.")
  if reward == 'chain' and max_turns == 1 < num_orders:
    raise ValueError(
        f"environment.max_turns=1 with environment.reward='chain': expected "
        f'{num_orders}, because a word depends on the pick before it.')
  return Depot(
      roles=TEAMS[team], max_turns=max_turns, num_orders=num_orders,
      words=_permuted('w', num_items, (1, code)),
      shelves=_permuted('s', num_items, (0,)),
      reward=reward, prompt_limit=prompt_limit or MAX_ORDERS)


def names(prefix: str, num: int) -> tuple[str, ...]:
  """Names of items ('i'), words ('w') or shelves ('s'), in order."""
  return tuple(f'{prefix}{i + 1}' for i in range(num))


def _permuted(prefix: str, num: int, seed: tuple[int, ...]) -> tuple[str, ...]:
  rng = np.random.default_rng(seed)
  return tuple(rng.permutation(names(prefix, num)).tolist())
