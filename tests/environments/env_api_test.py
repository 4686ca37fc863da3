"""Texts of messages, and invalid options of environments."""

import pytest

from environments import env_api
from environments.boards.plan_path import env as plan_path
from environments.boards.sokoban import env as sokoban
from environments.boards.sudoku import env as sudoku
from environments.depot import env as depot
from environments.programming.contests import env as contests
from environments.programming.functions import env as functions
from environments.writing import env as writing


@pytest.mark.parametrize('module, options, named', [
    (plan_path, {}, {'team': 'duo'}), (contests, {}, {'reward': 'oracle'}),
    (sokoban, {}, {'max_turns': 0}), (sudoku, {}, {'size': 5}),
    (functions, {}, {'team': 'trio'}), (functions, {}, {'reward': 'mixed'}),
    (depot, {}, {'max_turns': 1}), (depot, {}, {'num_items': 1}),
    (depot, {}, {'num_orders': 0}), (depot, {}, {'prompt_limit': -1}),
    (depot, {}, {'code': -1}), (depot, {'team': 'solo'}, {'max_turns': 2}),
    (writing, {}, {'team': 'trio'}), (writing, {}, {'kind': 'arxiv'}),
    (writing, {}, {'reward': 'mixed'}), (writing, {}, {'max_turns': 2}),
    (writing, {'team': 'discussion'}, {'max_turns': 1})])
def test_invalid_options_are_named(module, options, named):
  given = {'team': 'pair', 'max_turns': 1, 'reward': 'outcome', 'sandbox': None}
  given |= {sudoku: {'size': 4}, writing: {'kind': 'tldr'}}.get(module, {})
  (key, value), = named.items()
  with pytest.raises(ValueError, match=f'{key}={value!r}'):
    module.make_environment(**given | options | named)


def test_text_of_a_message_has_its_tool_calls():
  call = {'type': 'function', 'function': {'name': 'f', 'arguments': {'a': 1}}}
  assert env_api.text_of({
      'role': 'assistant', 'content': 'I call.', 'tool_calls': [call]}) == (
          'I call.\n{"name": "f", "arguments": {"a": 1}}')
