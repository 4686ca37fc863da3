"""The cells of MAGRPO's tasks (arXiv 2508.04652).

Tables:

  writing      teams that write: untrained ones, MAGRPO, and the others with as
               many tokens as MAGRPO. Each of them is also timed, one task at a
               time
  functions    the same for a helper and the function that uses it
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

from configs import functions as functions_config
from configs import writing as writing_config
from environments.programming.functions import env as functions
from environments.writing import env as writing
from paper import cell as cell_lib

# Table -> kind of task, as in the config of this name -> its name in tables.
TASKS = {
    'writing': {
        'posts': 'Posts', 'tldr': 'TL;DR', 'arxiv_a': 'arXiv, window to 1.3',
        'arxiv_b': 'arXiv, window to 1.6'},
    'functions': {
        'recipes': 'Recipes', 'humaneval': 'HumanEval',
        'coop_humaneval': 'CoopHumanEval', 'mbpp': 'MBPP'},
}
_SMALL = ('posts', 'recipes')  # For nano; the others are for larger models.
_SYSTEMS = {
    'writing': writing_config.SYSTEMS, 'functions': functions_config.SYSTEMS}
_TEAMS = {'writing': writing.TEAMS, 'functions': functions.TEAMS}
# The row that comes first; tasks that are timed, and the result of that.
MAGRPO, _NUM_TIMED, TIMED = 'magrpo', 50, 'evals/timed.json'


def make(scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  """All cells, each behind those it needs."""
  for table, kinds in TASKS.items():
    for kind in kinds:
      if (kind in _SMALL) == (scale == 'nano'):
        yield from _make_kind(table, kind, scale, seed)


def _make_kind(
    table: str, kind: str, scale: str, seed: int) -> Iterator[cell_lib.Cell]:
  folder, changes = f'{table}/{kind}', {
      'seed': seed, 'evaluation.num_timed': _NUM_TIMED}
  # HumanEval trains on what is left of its one split, and arXiv has one for
  # validation and test.
  has_test = 'humaneval' not in kind and 'arxiv' not in kind
  tested = {'evaluation.test': 'test'} if has_test else {}
  for team in _TEAMS[table]:
    yield cell_lib.Cell(
        f'{folder}/untrained_{team}/seed-{seed}',
        cell_lib.config_of(table, scale, kind=kind, team=team),
        {**changes, **tested}, mode='evaluate', result='evals/evaluation.json')
  magrpo = f'{folder}/{MAGRPO}/seed-{seed}'
  for system in _SYSTEMS[table]:  # MAGRPO is the first.
    path = f'{folder}/{system}/seed-{seed}'
    cell = cell_lib.Cell(
        path, cell_lib.config_of(table, scale, kind=kind, system=system),
        {'seed': seed, **tested}, budget_of='' if path == magrpo else magrpo)
    yield cell
    # Both splits of HumanEval that are tested are smaller.
    split = 'val' if 'arxiv' in kind else 'test'
    timed = ({} if 'humaneval' in kind else
             {'evaluation.test': f'{split}[:{_NUM_TIMED}]'})
    yield dataclasses.replace(
        cell, mode='evaluate', result=TIMED, budget_of='',
        overrides={**changes, **timed, 'evaluation.name': 'timed'})
