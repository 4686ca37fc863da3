"""Recipes of the small models and their demonstrations."""

import dataclasses
import hashlib
import importlib
import json

import jax
import numpy as np
import pytest

from atgrpo_jax.huggingface import hub
from atgrpo_jax.huggingface import safetensors as safetensors_lib
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from environments import sandbox as sandbox_lib
from environments.boards import board_game
from environments.math_problems import env as maths
from environments.programming.contests import env as contests
from models import pretrain
from models.nano import demonstrations
from models.reckoner import programs
from models.reckoner import stories

RECIPES = {
    name: importlib.import_module(f'models.{name}.recipe').RECIPE
    for name in ('nano', 'reckoner', 'writer')}


@pytest.fixture(scope='module')
def sandbox():
  with sandbox_lib.SandboxServer() as server:
    yield sandbox_lib.Sandbox(server.address)


def test_recipe_trains_a_model_that_loads(tmp_path):
  recipe = RECIPES['writer']
  lessons = {'posts': {'concise': pretrain.Lesson(1, {'text': 1.0})}}
  recipe = dataclasses.replace(
      recipe, tokenizer=dataclasses.replace(recipe.tokenizer, num_steps=5),
      prompt_buckets=(768,),
      completion_buckets=(256,), groups_per_batch=4, dims=dict(
          recipe.dims, hidden_size=16, intermediate_size=16, num_layers=1,
          num_heads=2, num_kv_heads=1, head_dim=8),
      optimizer=dict(recipe.optimizer, warmup_updates=0),
      phases={'texts': pretrain.Phase(2, 4, lessons)})
  pretrain.train(recipe, tmp_path / 'model')
  config = hub.load_config(tmp_path / 'model')
  assert config.hidden_size == 16
  assert tokenizer_lib.Tokenizer(
      tmp_path / 'model').vocab_size <= config.vocab_size
  params = safetensors_lib.load_params(tmp_path / 'model', config)
  initial = pretrain.model.init_params(jax.random.key(recipe.seed), config)
  assert all(jax.tree.leaves(jax.tree.map(
      lambda x, y: (x != y).any(), params, initial)))


@pytest.mark.parametrize('name, expected', [
    ('nano', 'b8cd992aa3da9891'), ('reckoner', '3bae82ff6ee09d78'),
    ('writer', '160b3a9806ed3faa')])
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
