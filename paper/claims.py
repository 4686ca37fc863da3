"""Writes docs/claims.md: what our records say about claims of both papers.

  python -m paper.claims

A claim says that one row of the records exceeds another. The page has all
claims that the records decide or could decide, wins and losses alike.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

import numpy as np

from atgrpo_jax import statistics
from configs import depot as depot_config
from paper import depot
from paper import records as records_lib
from paper import rows as rows_lib
from paper import tables

_ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = _ROOT / 'docs/claims.md'
_COLUMNS = (
    'claim', 'source', 'task', 'first (95 %)', 'second (95 %)', 'seeds',
    'p (Holm)', 'holds')
_TASKS = {
    'writing/factbook': 'passages, return', 'writing/posts': 'posts, return',
    'functions/humaneval': 'HumanEval, return',
    'functions/recipes': 'recipes, all tests',
    'problems/stories': 'word problems', 'problems/gsm8k': 'GSM8K',
    'problems/maths': 'small word problems'}


@dataclasses.dataclass(frozen=True)
class Claim:
  """Says that the row `first` exceeds `second`.

  A row is `<table>/<task>/<row>`, with ' before' if it is untrained.
  """

  text: str
  source: str
  first: str
  second: str
  scale: str = 'nano'


# Text, source, first and second row, and the tasks where it is claimed.
_GENERATED = (
    ('MAGRPO improves the untrained pair', 'arXiv 2601.21972', 'magrpo',
     'untrained_pair', 'writing/posts'),
    ('AT-GRPO beats GRPO by task †', 'Table 2', 'at_grpo', 'mas_grpo',
     'problems/maths'),
    ('An untrained team beats GRPO by task †', 'Table 2', 'mas_grpo before',
     'mas_grpo', 'problems/maths'),
    ('A trained pair beats a trained agent', 'arXiv 2601.21972', 'magrpo',
     'sa_grpo', 'writing/posts'),
    ('A trained pair beats a trained agent', 'arXiv 2508.04652', 'magrpo',
     'sa_grpo', 'functions/recipes'),
    ('IAC beats MAGRPO', 'arXiv 2601.21972', 'iac', 'magrpo', 'writing/posts'),
    ('A central critic (MAAC) beats MAGRPO', 'arXiv 2601.21972', 'maac',
     'magrpo', 'writing/posts'))
# Preset, what AT-GRPO beats, source, and its row.
_DEPOT = (
    ('chain', 'GRPO by task', 'Table 2', 'mas_grpo'),
    ('chain', 'GRPO with immediate rewards', 'Algorithm 1',
     'mas_grpo_immediate'),
    ('chain', 'uniform selection', 'R4', 'tree_uniform'),
    ('chain', 'an agent with the tree', 'R2, R3', 'sa_at_grpo'),
    ('chain', 'GiGPO', 'R3', 'gigpo'),
    ('chain', 'MT-GRPO', 'related work', 'mt_grpo'),
    ('mixed', 'an agent with one answer and GRPO', 'Tables 1, 2', 'sa_grpo'),
    ('mixed', 'an agent with the tree', 'R2, R3', 'sa_at_grpo'),
    ('mixed', 'a central critic', 'R3', 'maac'),
    ('mixed', 'MAGRPO, independent episodes', 'related work', 'magrpo'),
    ('outcome', 'GRPO by task', 'R2, R3', 'mas_grpo'),
    ('outcome', 'GRPO with return-to-go', 'R4, meta', 'mas_grpo_to_go'),
    ('outcome', 'an agent with the tree', 'R2, R3', 'sa_at_grpo'),
    ('outcome', 'GiGPO', 'R3', 'gigpo'),
    ('outcome', 'MT-GRPO', 'related work', 'mt_grpo'),
    ('outcome', 'a central critic', 'R3', 'maac'),
    ('outcome', 'MAGRPO, independent episodes', 'related work', 'magrpo'),
    ('outcome', 'its continuation to the next phase', 'R4, meta',
     'tree_next_phase'),
    ('boost', 'an agent with one answer and GRPO', 'Tables 1, 2', 'sa_grpo'),
    ('boost', 'GiGPO', 'R3', 'gigpo'),
    ('boost', 'a central critic', 'R3', 'maac'),
    ('boost', 'MAGRPO, independent episodes', 'related work', 'magrpo'))
# Title -> claims, and a note.
LEDGER: Mapping[str, tuple[Sequence[Claim], str]] = {
    'Pretrained models': (
        [
            Claim('MAGRPO improves the untrained pair', 'arXiv 2601.21972',
                  'writing/factbook/magrpo_cross',
                  'writing/factbook/magrpo_cross before', '135m'),
            Claim('MAGRPO improves the untrained pair', 'coding table',
                  'functions/humaneval/magrpo_cross',
                  'functions/humaneval/magrpo_cross before', 'coder-0.5b'),
            *(Claim(f'AT-GRPO {text}', source, f'problems/{kind}/at_grpo',
                    f'problems/{kind}/{row}', 'coder-0.5b')
              for kind in ('stories', 'gsm8k') for text, source, row in (
                  ('improves the untrained pair', 'Tables 1, 2',
                   'at_grpo before'),
                  ('beats GRPO by task', 'Table 2', 'mas_grpo'),
                  ('beats the tool agent alone', 'R2, R3', 'sa_tool_grpo')))],
        'Passages: SmolLM2, 135 million parameters, seeds 0 to 2. Others: '
        'Qwen2.5-Coder, 494 million.'),
    'Generated tasks': (
        [Claim(text, source, f'{task}/{first}', f'{task}/{second}')
         for text, source, first, second, *tasks in _GENERATED
         for task in tasks],
        'Models have 0.9 to 1.05 million parameters and know the form of an '
        'answer before the training.'),
    'Depot': (
        [*(Claim(f'AT-GRPO beats {text}', source, f'depot/{preset}/at_grpo',
                 f'depot/{preset}/{row}')
           for preset, text, source, row in _DEPOT),
         *(Claim(f'Roles trained together beat {text}', 'Table 4',
                 'depot_roles/outcome/together', f'depot_roles/outcome/{row}')
           for text, row in (
               ('a scout trained alone', 'only_scout'),
               ('a picker trained alone', 'only_picker'),
               ('roles trained apart', 'combined')))],
        'Numbers are the mean return over the training. For roles trained '
        'together or apart they are the last return. These rows use returns '
        'that look ahead, because AT-GRPO stalls here. A role trained alone '
        'sampled half as many choices. Rows of `mixed` are from the second of '
        'two sets of runs, which [disagree]'
        '(when_at_grpo.md#rewards-at-once-mixed-and-chain). In `boost` the '
        'agent with one answer ends far above AT-GRPO (95.0 against 58.5). '
        'Five seeds against five cannot decide a claim here. All rows and '
        'their last returns are in '
        '[tables.md](../paper/results/nano/tables.md).'),
}

_HEAD = """\
# Which claims of the papers hold here?

Of {num} claims, {yes} hold, {no} fail, {undecided} are undecided, and
{untested} could not be tested. This command writes the page from
`paper/results`:

    python -m paper.claims

A claim says that the first of two rows of our records is higher. If p is below
0.05, the claim holds when the first row is higher, and fails when it is lower.
Otherwise it is undecided. p is adjusted for all {num_p} tests of this page
(Holm). It treats seeds as drawn at random, and, except on Depot, tasks
([statistics.py](../atgrpo_jax/statistics.py)). A claim with fewer than two
seeds is not tested. A *pilot* has fewer than five.

**A claim that training improves an untrained team says little.**

Depot's `mixed` has two sets of runs. This page uses the second; in the first,
only the claim against an agent with one answer holds.

- Numbers are success or return in % of the maximum.
- A row that training improves may have learned the form of its answers only, as
  on [GSM8K and Passages](results.md).
- † Both rows were trained with earlier rewards. They will be run again.
- R2 to R4 are reviewers of AT-GRPO (ICLR 2026), and *meta* is the meta-review;
  the direction of the claim is ours. The coding table is MAGRPO's (arXiv
  2508.04652), and arXiv 2601.21972 its authors' paper on critics. Other tables
  and Algorithm 1 are AT-GRPO's (arXiv 2510.11062).
- We left out [games](results.md#games), which nearly every trained team solves,
  tasks that one row never solves, swapped roles, rows without † that had
  earlier rewards, and claims that need Qwen3, larger coders, the papers' data
  or undisturbed timing.
"""


@dataclasses.dataclass(frozen=True)
class Result:
  """Two rows side by side; without numbers if one has fewer than two seeds."""

  claim: Claim
  cells: Mapping[str, str]
  excess: float = 0.0  # By how much `first` exceeds `second`.
  p: float | None = None


def compare(claim: Claim, records: records_lib.Records) -> Result:
  """Reads both rows of a claim."""
  is_depot = claim.first.startswith('depot')
  if is_depot:  # The rows are learning curves instead of evaluations.
    preset = claim.first.split('/')[1]
    budget = depot_config.BUDGETS[preset][0]
    task = f'`{preset}`'
    values = [
        np.array([
            curve['returns'][-1] if claim.first.startswith('depot_roles')
            else depot.area(curve, budget)
            for curve in depot.seeds_of(records.curves, path)])
        for path in (claim.first, claim.second)]
  else:
    task = _TASKS[claim.first.rpartition('/')[0]]
    rows = [
        rows_lib.read_row(records, path.removesuffix(' before'), 'before')
        if path.endswith(' before') else rows_lib.read_last(records, path)
        for path in (claim.first, claim.second)]
    rows_lib.check_comparable(f'{claim.first} and {claim.second}', [
        evaluation for row in rows if row is not None
        for evaluation in row.evaluations])
    values = [
        np.zeros((0, 1)) if row is None
        else tables.returns(row, claim.first.split('/')[0])
        if task.endswith('return') else row.successes.astype(float)
        for row in rows]
  counts = [rows_lib.seeds(len(row)) for row in values]
  cells = {'task': task, 'seeds': ' and '.join(dict.fromkeys(counts))}
  if min(map(len, values)) < 2:
    return Result(claim, cells)
  if is_depot:
    intervals = [
        statistics.interval_of_seeds(row, depot.NUM_TASKS) for row in values]
    p = statistics.p_value_of_seeds(*values)
  else:
    clusters = rows[0].clusters
    intervals = [statistics.interval(row, clusters) for row in values]
    p = float(statistics.p_value(*values, clusters))
  for name, row, interval in zip(('first', 'second'), values, intervals):
    cells[f'{name} (95 %)'] = (
        f'{rows_lib.percent(row.mean())} ({rows_lib.between(*interval)})')
  return Result(claim, cells, values[0].mean() - values[1].mean(), p)


def judge(results: Sequence[Result]) -> list[dict[str, str]]:
  """The cells of each line; p is adjusted for all of them."""
  adjusted = iter(statistics.holm([
      result.p for result in results if result.p is not None]))
  lines = []
  for result in results:
    claim = result.claim
    line = {
        'claim': claim.text, 'source': claim.source, **result.cells,
        'holds': 'not tested'}
    if result.p is not None:
      p = next(adjusted)
      line['p (Holm)'] = rows_lib.p_text(p)
      line['holds'] = (
          'undecided' if p >= 0.05 else 'yes' if result.excess > 0 else 'no')
    lines.append(line)
  return lines


def page() -> str:
  """The text of docs/claims.md."""
  records = {
      folder.name: records_lib.read(folder)
      for folder in (_ROOT / 'paper/results').iterdir()}
  claims = [claim for claims, _ in LEDGER.values() for claim in claims]
  lines = judge([compare(claim, records[claim.scale]) for claim in claims])
  verdicts = [line['holds'] for line in lines]
  rest = iter(lines)
  return '\n'.join([
      _HEAD.format(
          num=len(lines), yes=verdicts.count('yes'), no=verdicts.count('no'),
          undecided=verdicts.count('undecided'),
          untested=verdicts.count('not tested'),
          num_p=len(lines) - verdicts.count('not tested')),
      *(rows_lib.Table(
          title, _COLUMNS, [next(rest) for _ in claims], note).markdown()
        for title, (claims, note) in LEDGER.items())])


if __name__ == '__main__':
  PAGE.write_text(page())
