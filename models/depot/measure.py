"""Measures the preferences of a base model of Depot at temperature 1.

  python -m models.depot.measure models/depot

prints the probability of the right answer to each kind of choice, and the
expected return of an untrained pair in the presets `mixed` and `outcome`.
"""

import argparse
import itertools
import pathlib

import jax
import numpy as np

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from environments.depot import env as depot

_NUM_ITEMS, _NUM_ORDERS = 8, 6


def measure(folder: str | pathlib.Path) -> dict[str, np.ndarray]:
  """Returns kind of choice -> probabilities [turns, items, answers].

  The prompt is about an item or its word. Answers are words or shelves in the
  order of the items, so the right answers are on the diagonal of a turn.
  """
  team, turns, at_once = (
      depot.make_environment(
          team=name, max_turns=num_turns, reward='mixed', sandbox=None)
      for name, num_turns in (
          ('septet', _NUM_ORDERS), ('solo', _NUM_ORDERS), ('solo', 1)))
  config = hub.load_config(folder)
  params = safetensors_lib.load_params(folder, config)
  tokenizer = tokenizer_lib.Tokenizer(folder)
  words, shelves = team.words, team.shelves
  rng = np.random.default_rng(0)
  rows = []  # Kind, prompt with the start of the completion, and answers.
  for turn, item in itertools.product(range(_NUM_ORDERS), range(_NUM_ITEMS)):
    orders = rng.integers(_NUM_ITEMS, size=_NUM_ORDERS).tolist()
    said = [words[i] for i in rng.integers(_NUM_ITEMS, size=_NUM_ORDERS)]
    said[turn], orders[turn] = words[item], item
    state = depot.State('', tuple(orders), ('s1',) * turn, words[item])
    rows += [(role, _prompt(team, state, role), words)
             for role in team.roles[:-1]]
    seen = _prompt(team, state, 'picker')
    rows += [(f'picker, {flag}', seen.replace(depot.PLAIN, flag), shelves)
             for flag in depot.FLAGS]
    alone = _prompt(turns, state, 'solo')
    rows += [
        ('solo, word', alone, words),
        ('solo, shelf', f'{alone} {words[item]}', shelves)]
    alone = _prompt(at_once, depot.State('', state.orders), 'solo')
    rows += [
        ('solo at once, word', ' '.join((alone, *said[:turn])), words),
        ('solo at once, shelf', ' '.join((alone, *said, *shelves[:turn])),
         shelves)]
  inputs = [
      tokenizer.encode_prompt([{'role': 'user', 'content': text}])
      for _, text, _ in rows]
  tokens = np.zeros((len(rows), 1, max(map(len, inputs))), np.int32)
  for row, ids in zip(tokens, inputs):
    row[0, :len(ids)] = ids
  hidden, _ = jax.jit(model.forward, static_argnums=1)(params, config, tokens)
  last = hidden[np.arange(len(rows)), 0, [len(ids) - 1 for ids in inputs]]
  probs = np.asarray(jax.nn.softmax(model.unembed(params, config, last)))
  measured = {}
  for (kind, _, answers), row in zip(rows, probs):
    ids = [tokenizer.encode_completion(answer)[0] for answer in answers]
    measured.setdefault(kind, []).append(row[ids])
  return {
      kind: np.reshape(x, (_NUM_ORDERS, _NUM_ITEMS, _NUM_ITEMS))
      for kind, x in measured.items()}


def _prompt(
    environment: depot.Depot, state: depot.State, role: str) -> str:
  message, = environment.observe(state, role)
  return message['content']


def right(probs: np.ndarray) -> np.ndarray:
  """The probabilities [turns, items] of the right answers."""
  return np.diagonal(probs, axis1=1, axis2=2)


def pair_return(measured: dict[str, np.ndarray]) -> float:
  """Expected return of a pair without '+', over all orders."""
  return float(np.einsum(
      'tiw,twi->ti', measured['scout'],
      measured[f'picker, {depot.PLAIN}']).mean())


def main() -> None:
  parser = argparse.ArgumentParser(prog='python -m models.depot.measure')
  parser.add_argument('folder', help='Of a model from python -m models.depot.')
  measured = measure(parser.parse_args().folder)
  print('| choice | mean | minimum | maximum |\n|---|---|---|---|')
  for kind, probs in measured.items():
    values = right(probs)
    print(f'| {kind} | {values.mean():.3f} | {values.min():.3f} | '
          f'{values.max():.3f} |')
  print(f'return of an untrained pair: {pair_return(measured):.4f}')


if __name__ == '__main__':
  main()
