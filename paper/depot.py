"""Depot: compared systems and measures.

Each run starts from a base model of its own seed (`models.depot`). Its learning
curve is the return on held-out tasks against the choices that it has sampled in
training. Runs are compared by the area under the curve, the mean of the return
over the budget, and by the return at `REPORTED_AT` choices.

The learning rates in configs/depot.py are those of `SEARCH` with the largest
area. The search uses other seeds and tasks than the table.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

# Title -> system of configs/depot.py. The others are compared with the first.
ARMS = {
    'AT-GRPO': 'at_grpo',
    'AT-GRPO, uniform selection': 'tree_uniform',
    'AT-GRPO, continued to the next phase': 'tree_next_phase',
    'AT-GRPO, continued to the end': 'tree_monte_carlo',
    'GRPO, by task': 'mas_grpo',
    'GRPO, by task, agent and turn': 'mas_grpo_agent_turn',
    'GRPO, by task, agent and turn, return-to-go': 'mas_grpo_to_go',
    'GRPO, by task, agent and turn, immediate': 'mas_grpo_immediate',
    'GiGPO': 'gigpo',
    'MT-GRPO': 'mt_grpo',
    'MAGRPO, independent episodes': 'magrpo',
    'MAAC': 'maac',
    'Single agent, one answer + GRPO': 'sa_grpo',
    'Single agent, several turns + GRPO': 'sa_grpo_turns',
    'Single agent + AT-GRPO': 'sa_at_grpo',
}
DRAWN = (
    'AT-GRPO', 'AT-GRPO, continued to the next phase',
    'AT-GRPO, continued to the end', 'GRPO, by task',
    'GRPO, by task, agent and turn, immediate', 'GiGPO',
    'Single agent, one answer + GRPO', 'Single agent + AT-GRPO')
# Preset -> choices at which the return is compared.
REPORTED_AT = {
    'mixed': 4_000, 'outcome': 60_000, 'boost': 60_000, 'chain': 6_000}
# Preset -> title -> system. `chain` asks what the tree adds where the episodes
# of a task have different prompts.
ARMS_OF = dict.fromkeys(REPORTED_AT, ARMS) | {'chain': {
    title: system for title, system in ARMS.items() if system in (
        'at_grpo', 'tree_uniform', 'mas_grpo', 'mas_grpo_agent_turn',
        'mas_grpo_immediate', 'gigpo', 'mt_grpo', 'sa_at_grpo')}}
# Preset -> other arguments of configs/depot.py. `chain` has m^2 prompts of a
# scout.
ARGUMENTS = dict.fromkeys(REPORTED_AT, {}) | {'chain': {'m': '4'}}
# Preset -> title -> system with a learning rate of its own.
SEARCHED_SYSTEMS = ARMS_OF | {
    'mixed': ARMS | {'AT-GRPO, adapter per role': 'at_grpo_lora'}}
SEARCH = ('5e-4', '1e-3', '2e-3', '4e-3', '8e-3')  # Learning rates.
SEARCH_SEEDS = (100, 101)
# Preset -> choices of a run of the search.
SEARCH_BUDGETS = {
    'mixed': 8_000, 'outcome': 12_000, 'boost': 12_000, 'chain': 6_000}
SEARCHED = {
    'evaluation.validation': 'validation[:100]',
    'evaluation.test': 'validation[:200]'}
EVALUATED = {'evaluation.validation': 'test[:100]'}
NUM_TASKS = 100  # Held-out tasks of a point of a curve.

# Table -> row -> arguments of configs/depot.py and overrides. All train AT-GRPO
# in the preset `mixed`, with as many choices per step.
VARIANTS = {
    'agents': {
        '3': ({'team': 'trio'}, {}), '5': ({'team': 'quintet'}, {}),
        '7': ({'team': 'septet'}, {})},
    'policies': {
        'per role': ({'system': 'at_grpo_per_role'}, {}),
        'adapter per role': ({'system': 'at_grpo_lora'}, {})},
    'selection': {
        'team_greedy': ({}, {'rollout.selection': 'team_greedy'}),
        'epsilon_greedy': ({}, {'rollout.selection': 'epsilon_greedy'}),
        # A right answer pays 1/6.
        'softmax': ({}, {
            'rollout.selection': 'softmax',
            'rollout.selection_temperature': 0.1})},
    'group_size': {
        str(size): ({}, {
            'rollout.group_size': size, 'rollout.num_tasks': 16 // size})
        for size in (2, 4, 16)},
    'turns': {'3': ({'T': '3'}, {'rollout.num_tasks': 4})},
    'learning_rate': {
        rate: ({}, {'optimizer.learning_rate': float(rate)})
        for rate in ('2e-3', '4e-3', '8e-3')},
    # Orders that a prompt shows. The limit changes no prompt of a pair.
    'prompt_limit': {
        'single agent, 3 orders': (
            {'system': 'sa_at_grpo'}, {'environment.options.prompt_limit': 3})},
}
# AT-GRPO with its own rate, from the base models of the tables above. Those of
# `ARMS` in `mixed` were made again, on another processor.
_SAME = 'depot_learning_rate/mixed/8e-3'
# Table -> title of a row -> workdir. The others are compared with the first.
UNCHANGED = {
    'agents': {'2': _SAME, '1': 'depot/mixed/sa_at_grpo'},
    'policies': {'shared': _SAME},
    'selection': {'greedy': _SAME, 'uniform': 'depot/mixed/tree_uniform'},
    'group_size': {'8': _SAME}, 'learning_rate': {'8e-3': _SAME},
    'turns': {'6': _SAME},
    'prompt_limit': {'pair': _SAME, 'single agent': 'depot/mixed/sa_at_grpo'},
}

# Rows of `experiments._depot_roles`.
ROLES = (
    'together', 'only_scout', 'only_picker', 'combined', 'swapped', 'crossed')

# A curve: `choices` and `returns` of each evaluation, the last one after
# training, and other numbers of the run.
Curve = Mapping[str, Any]


def return_at(curve: Curve, num_choices: int) -> float:
  """Return after this many choices, interpolated between evaluations."""
  return float(np.interp(num_choices, curve['choices'], curve['returns']))


def area(curve: Curve, budget: int) -> float:
  """Mean of the return over the first `budget` choices."""
  choices = np.unique(np.minimum([*curve['choices'], budget], budget))
  returns = np.interp(choices, curve['choices'], curve['returns'])
  return float(np.trapezoid(returns, choices)) / budget


def choices_until(curve: Curve, threshold: float) -> float:
  """Choices of the first evaluation with this return; NaN if there is none."""
  reached = np.array(curve['returns']) >= threshold
  return curve['choices'][reached.argmax()] if reached.any() else float('nan')


def seeds_of(curves: Mapping[str, Curve], row: str) -> list[Curve]:
  """The curves `row/seed-<n>`, by workdir."""
  return [curves[path] for path in sorted(curves)
          if path.rpartition('/')[0] == row]


def search_areas(
    curves: Mapping[str, Curve], reward: str, system: str) -> dict[str, float]:
  """Learning rate -> mean area; empty if the search is incomplete."""
  areas = {}
  for rate in SEARCH:
    found = seeds_of(curves, f'depot_search/{reward}/{system}_{rate}')
    if len(found) < len(SEARCH_SEEDS):
      return {}
    areas[rate] = float(np.mean([
        area(curve, SEARCH_BUDGETS[reward]) for curve in found]))
  return areas
