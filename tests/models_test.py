"""Recipes of the small models and their demonstrations."""

import dataclasses
import hashlib
import importlib
import json

import jax
import numpy as np
import pytest

from atgrpo_jax import model
from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from environments.boards import board_game
from environments.depot import env as depot
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from models import pretrain
from models.depot import __main__ as depot_model
from models.nano import demonstrations
from models.reckoner import programs
from models.reckoner import stories

RECIPES = {
    name: importlib.import_module(f'models.{name}.recipe').RECIPE
    for name in ('nano', 'reckoner', 'writer')} | {
        'depot': depot_model.make_recipe(seed=0)}


def test_recipe_of_words_trains_a_model_that_loads(tmp_path):
  recipe = RECIPES['depot']
  pretrain.train(dataclasses.replace(
      recipe, optimizer=dict(recipe.optimizer, warmup_updates=0),
      phases={'answers': pretrain.Phase(
          2, 4, {'depot': {'solo': (1, {})}})}), tmp_path / 'x')
  config = hub.load_config(tmp_path / 'x')
  tokenizer = tokenizer_lib.Tokenizer(tmp_path / 'x')
  assert tokenizer.vocab_size <= config.vocab_size
  params = safetensors_lib.load_params(tmp_path / 'x', config)
  initial = model.init_params(jax.random.key(recipe.seed), config)
  assert all(jax.tree.leaves(jax.tree.map(
      lambda x, y: (x != y).any(), params, initial)))


@pytest.mark.parametrize('name, expected', [
    ('nano', 'b8cd992aa3da9891'), ('reckoner', '3bae82ff6ee09d78'),
    ('writer', '160b3a9806ed3faa'), ('depot', '498a1f4f67af53da')])
def test_demonstrations_of_a_seed_do_not_change(name, expected):
  """If they must change, train the stored weights again."""
  digest = hashlib.sha256()
  for phase in RECIPES[name].phases:
    drawn = pretrain.draw(RECIPES[name], phase, np.random.default_rng(0))
    for _, messages, completions in drawn:
      digest.update(json.dumps([messages, completions]).encode())
  assert digest.hexdigest()[:16] == expected


def test_right_programs_solve_their_tasks(sandbox):
  rng, right = np.random.default_rng(0), {'right': 1.0}
  for task in (
      demonstrations.PLAN_PATH, demonstrations.SOKOBAN, demonstrations.SUDOKU):
    game = board_game.BoardGame(
        task.rules, board_game.TEAMS['pair'], {}, sandbox, max_turns=1)
    state = board_game.State('', task.random_board(rng))
    for program in task.programs:
      if program.kind == 'right':
        step = game.step(state, {'tool': program.reply})
        assert step.reward_terms['plan_solved']
  mathematics = maths.make_environment(
      team='pair', max_turns=2, reward='outcome', sandbox=sandbox)
  contest = contests.make_environment(
      team='solo', max_turns=2, reward='mixed', sandbox=sandbox)
  for _ in range(3):
    shown = stories.demonstrate(rng, 'tool', right, 1)
    step = mathematics.step(shown.state, {'tool': shown.completions[0]})
    assert int(step.state.attempts[-1].output) == eval(shown.state.gold)
    shown = programs.demonstrate_contest(rng, 'solo', right, 1)
    step = contest.step(shown.state, {'solo': shown.completions[0]})
    assert step.reward_terms['golden'] == 1


@pytest.mark.parametrize('reward', ['mixed', 'chain'])
def test_right_answers_of_depot_earn_everything(reward):
  environment = depot.make_environment(
      team='pair', max_turns=6, reward=reward, sandbox=None, code=5)
  state = environment.reset(
      {'task_id': '', 'orders': [7500, 2500, 9000, 0, 6000, 1500]})
  for _ in range(6):
    word_of, shelf_of = depot_model.right_answers(environment, state)
    item, = depot_model.shown_tokens(environment.observe(state, 'scout'))
    told = environment.step(state, {'scout': word_of[item]})
    assert told.reward_terms['told'] == 1 / 6
    step = environment.step(
        told.state, {'picker': shelf_of[word_of[item]]})
    state = step.state
  assert step.success
