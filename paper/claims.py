"""Writes docs/claims.md: the claims of both papers, reviews, and our records.

  python -m paper.claims

The page states the rule that gives a verdict. To add a line, add a `Claim`, or
the arguments of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import itertools
import textwrap

from paper import evidence
from paper import experiments
from paper import published
from paper import records as records_lib
from paper import table as table_lib
from paper.evidence import Claim
from paper.evidence import Curves
from paper.evidence import Laboratory
from paper.evidence import Rows
from paper.evidence import Untestable

PAGE = evidence.ROOT / 'docs/claims.md'
_SCALES = ('nano', '135m')
_COLUMNS = (
    'claim', 'source', 'published', 'ours (95 %)', 'seeds', 'p (Holm)',
    'verdict', 'command')


# AT-GRPO (arXiv 2510.11062).

_GRPO, _AT_GRPO, _LOOK_AHEAD, _BY_TURN = (
    'parallel, episode_return, env', 'tree, immediate, greedy',
    'tree, monte_carlo 4, greedy',
    'parallel, episode_return, env+agent+turn')
_MIXED = 'depot/mixed'
_NO_WEIGHTS = Untestable('Qwen3 weights out of reach')
_NO_CODER = Untestable('Qwen2.5-Coder weights out of reach')
_TIMED = Untestable('timed beside other programs')
_TEXT = Untestable('concerns the text, not results')


def _numbers(first: str, second: str, task: str) -> str:
  """Success of two rows of the paper's tables, where both are known."""
  benchmark = next((
      f'{names[task]}, ' for names in experiments.BENCHMARKS.values()
      if task in names), '')
  pairs = zip(('1.7B', '8B'), published.qwen3_success(first, task),
              published.qwen3_success(second, task))
  return benchmark + ', '.join(
      f'{size}: {x} against {y}' for size, x, y in pairs if x and y)


def _at_grpo_claims() -> Iterator[Claim]:
  """The claims of the paper."""
  maths, code = 'problems/maths', 'problems/contests'
  plan = f'main/{experiments.ABLATED}'
  per_role = f'{plan}/at_grpo_per_role'
  domains = [
      (game, f'main/{task}', task)
      for task, game in experiments.GAMES.items()]
  problems = [
      ('Code', code, 'code_contests'), ('Math', maths, 'aime24')]
  for game, folder, task in domains:
    yield Claim(
        f'{game}: a team with AT-GRPO beats one agent with GRPO', 'Tables 1, 2',
        _numbers('shared', 'SA+GRPO', task),
        Rows(f'{folder}/at_grpo', f'{folder}/sa_grpo'))
  yield Claim(
      'Code: a team with AT-GRPO beats one agent with GRPO', 'abstract',
      'per role, 1.7B: +3.87, 8B: +7.62',
      Rows(f'{code}/at_grpo', f'{code}/sa_grpo'))
  yield Claim(
      'Math: a team with AT-GRPO beats one agent with GRPO', 'abstract',
      'per role, 1.7B: +9.0, 8B: +17.93',
      Rows(f'{maths}/at_grpo', f'{maths}/sa_grpo'))
  for domain, folder, task in domains + problems:
    yield Claim(
        f'{domain}: AT-GRPO beats plain GRPO on the same team', 'Tables 1, 2',
        _numbers('shared', 'MAS+GRPO', task),
        Rows(f'{folder}/at_grpo', f'{folder}/mas_grpo'))
  for domain, folder, task in domains + problems:
    yield Claim(
        f'{domain}: AT-GRPO improves the untrained team', 'Tables 1, 2',
        _numbers('shared', 'MAS', task),
        Rows(f'{folder}/at_grpo', f'{folder}/at_grpo before'))
  for domain, folder, task in problems:
    yield Claim(
        f'{domain}: plain GRPO makes the untrained team worse', 'Table 2',
        _numbers('MAS', 'MAS+GRPO', task),
        Rows(f'{folder}/mas_grpo before', f'{folder}/mas_grpo'))
  for task, game in experiments.GAMES.items():
    folder = f'main/{task}'
    yield Claim(
        f'{game}: groups by agent and turn beat groups by task', 'Algorithm 1',
        '', Rows(f'{folder}/mas_grpo_agent_turn', f'{folder}/mas_grpo'))
    yield Claim(
        f'{game}: AT-GRPO beats plain GRPO with groups by agent and turn',
        'Algorithm 1', '',
        Rows(f'{folder}/at_grpo', f'{folder}/mas_grpo_agent_turn'))
  yield from itertools.starmap(Claim, (
      ("A rollout of AT-GRPO estimates the gradient better than plain GRPO's",
       'Algorithm 1', '', Laboratory('credit', _AT_GRPO, _GRPO, 'step')),
      ('A prompted team beats a prompted agent', 'Tables 1, 2',
       _numbers('MAS', 'SA', 'plan_path'),
       Untestable('our demonstrations decide it')),
      ('Code: a policy per role beats a shared policy', 'Tables 1, 2',
       _numbers('per role', 'shared', 'code_contests'),
       Rows(f'{code}/at_grpo_per_role', f'{code}/at_grpo')),
      ('Math: a policy per role loses less than 3 points', 'Tables 1, 2',
       _numbers('per role', 'shared', 'aime24'),
       Rows(f'{maths}/at_grpo_per_role', f'{maths}/at_grpo', -0.03))))
  for task, game in experiments.GAMES.items():
    yield Claim(
        f'{game}: a policy per role loses less than 3 points', 'Tables 1, 2',
        _numbers('per role', 'shared', task), Rows(
            f'main/{task}/at_grpo_per_role', f'main/{task}/at_grpo', -0.03))
  for row, text in (
      ('only_tool', 'the tool agent trained alone'),
      ('only_planner', 'the planner trained alone'),
      ('combined', 'roles trained apart and combined'),
      ('swapped', 'the same team with swapped policies')):
    yield Claim(
        f'A team trained together beats {text}', 'Table 4',
        f'1.7B: 96 against {published.QWEN3_1_7B[row]["plan_path"]:g}',
        Rows(per_role, f'roles/{experiments.ABLATED}/{row}'))
  for task, game in experiments.GAMES.items():
    yield Claim(
        f'{game}: outcome rewards alone lose less than 5 points', 'Table 6',
        _numbers('outcome', 'shared', task), Rows(
            f'reward/{task}/outcome', f'main/{task}/at_grpo', -0.05))
  yield Claim(
      'A trained single agent is worse with several turns', 'Tables 7, 8',
      'LiveCodeBench, 1.7B: 18.8 against 10.4',
      Rows(f'{plan}/sa_grpo', f'{plan}/sa_grpo_turns'))
  yield Claim(
      'Seven agents beat three', 'ablation', 'AIME24, 8B: 47.7 against 18.2',
      Rows(f'agents/{experiments.ABLATED}/7',
           f'agents/{experiments.ABLATED}/3'))
  for rival, numbers, reason in (
      ('MAPoRL', 'GSM8K: 88.7 against 81.0', 'Phi-3 weights out of reach'),
      ('MARFT', 'math: 87.1 against 78.7', _NO_CODER.reason),
      ('CURE', 'CodeContests: 34.2 against 25.9', '7B weights out of reach')):
    yield Claim(
        f'AT-GRPO beats {rival}', 'ablation', numbers, Untestable(reason))
  yield from itertools.starmap(Claim, (
      ('The rewards of both roles rise together', 'Figure 6', '',
       Untestable('records lack rewards by role')),
      ('Games: a step of a team takes less time than of one agent',
       'cost section', '1.5 against 2.8 minutes', _TIMED),
      ('Code: a team doubles the minutes of a step', 'cost section',
       '8 + 2 against 4 + 1 minutes', _TIMED),
      ('AIME24 and AIME25 reach 57 and 40 %', 'Table 2', '8B, per role',
       _NO_WEIGHTS)))

  for text, source, first, second in (
      ('a team with AT-GRPO beats one agent with GRPO', 'Tables 1, 2',
       'at_grpo', 'sa_grpo'),
      ('AT-GRPO beats plain GRPO on the same team', 'Tables 1, 2', 'at_grpo',
       'mas_grpo'),
      ('groups by agent and turn beat groups by task', 'Algorithm 1',
       'mas_grpo_agent_turn', 'mas_grpo'),
      ('AT-GRPO beats plain GRPO with groups by agent and turn', 'Algorithm 1',
       'at_grpo', 'mas_grpo_agent_turn'),
      ('the tree beats independent episodes with its rewards and groups',
       'Algorithm 1', 'at_grpo', 'mas_grpo_immediate'),
      ('greedy selection beats uniform selection', 'Algorithm 1', 'at_grpo',
       'tree_uniform'),
      ('a trained single agent is worse with several turns', 'Tables 7, 8',
       'sa_grpo', 'sa_grpo_turns')):
    yield Claim(
        f'Depot: {text}', source, '',
        Curves(f'{_MIXED}/{first}', f'{_MIXED}/{second}'))
  yield from itertools.starmap(Claim, (
      ('Depot: outcome rewards alone lose less than 5 points', 'Table 6', '',
       Curves('depot/outcome/at_grpo', f'{_MIXED}/at_grpo', -0.05)),
      ('Depot: seven agents beat three', 'ablation', '',
       Curves('depot_agents/mixed/7', 'depot_agents/mixed/3')),
      ('Depot: a policy per role loses less than 3 points', 'Tables 1, 2', '',
       Curves('depot_policies/mixed/per role', f'{_MIXED}/at_grpo', -0.03))))
  for row, text in (
      ('only_scout', 'a scout trained alone'),
      ('only_picker', 'a picker trained alone'),
      ('combined', 'roles trained apart and combined'),
      ('swapped', 'swapped policies, whose answers are mostly invalid')):
    yield Claim(
        f'Depot: a team trained together beats {text}', 'Table 4', '', Curves(
            'depot_roles/outcome/together', f'depot_roles/outcome/{row}',
            is_last=True))


def _at_grpo_objections() -> Iterator[Claim]:
  """The reviews R1 to R4 and the meta-review of the paper."""
  maths, code = 'problems/maths', 'problems/contests'
  ablated = experiments.ABLATED
  plan = f'main/{ablated}'
  for domain, folder in (('Math', maths), ('Code', code)):
    yield Claim(
        f'{domain}: with equal tokens plain GRPO loses less than 5 points',
        'R1, R3', '', Rows(f'{folder}/mas_grpo', f'{folder}/at_grpo', -0.05))
  yield from itertools.starmap(Claim, (
      ("AT-GRPO's advantages are more biased than plain GRPO's by turn",
       'R1, meta', '', Laboratory('credit', _AT_GRPO, _BY_TURN, 'bias')),
      ("AT-GRPO's advantages vary more than plain GRPO's by turn", 'R1, meta',
       '', Laboratory('credit', _AT_GRPO, _BY_TURN, 'deviation')),
      ('Seven agents gain less than 5 points over two', 'R1', '',
       Rows(f'{plan}/at_grpo', f'agents/{ablated}/7', -0.05)),
      ('MAPoRL and CURE would match AT-GRPO', 'R1', '',
       Untestable('their weights out of reach')),
      ('An agent with the tool loses less than 5 points to the team', 'R2, R3',
       '', Rows(f'{maths}/sa_tool_grpo', f'{maths}/at_grpo', -0.05)),
      ('A coder alone loses less than 5 points to the team', 'R2, R3', '',
       Rows(f'{code}/sa_grpo', f'{code}/at_grpo', -0.05)),
      ('Several turns would help the single agent', 'R2, R3', '',
       Rows(f'{plan}/sa_grpo_turns', f'{plan}/sa_grpo')),
      ('Without oracle rewards AT-GRPO loses more than 5 points', 'R2, R3', '',
       Rows(f'{plan}/at_grpo', f'reward/{ablated}/outcome', 0.05)),
      ("Without local rewards plain GRPO's gradient points better", 'R2, R3',
       '', Laboratory('credit_outcome', _GRPO, _AT_GRPO, 'cosine')),
      ('The team reward has two contradictory weights', 'R2', '', _TEXT),
      ('A rollout of GiGPO estimates the gradient better', 'R3', '',
       Laboratory('credit', 'GiGPO', _AT_GRPO, 'step')),
      ('Posts: a central critic loses less than 5 points to AT-GRPO', 'R3', '',
       Rows('writing/posts/maac', 'writing/posts/at_grpo', -0.05, 'return'))))
  for text, file in (
      ('With immediate rewards', 'credit'),
      ('Without local rewards', 'credit_outcome')):
    yield Claim(
        f'{text} a rollout with a central critic estimates the gradient better',
        'R3', '', Laboratory(
            file, 'MAAC, lambda 0.95, learned, first', _AT_GRPO, 'step'))
  yield from itertools.starmap(Claim, (
      ('A team costs too much time', 'R3', '', _TIMED),
      ("If a choice pays later, plain GRPO's gradient points better",
       'R4, meta', '',
       Laboratory('credit_boost', _GRPO, _AT_GRPO, 'cosine')),
      ('If a choice pays later, continuations improve the gradient', 'R4, meta',
       '', Laboratory('credit_boost', _LOOK_AHEAD, _AT_GRPO, 'cosine')),
      ('The loss needs a clip', 'R4', '',
       Untestable('one update, ratio always one'))))
  for text, source, preset, row, margin in (
      ('with equal choices plain GRPO loses less than 5 points', 'R1, R3',
       'mixed', 'mas_grpo_agent_turn', -0.05),
      ('the tree without a team loses less than 5 points', 'R2, R3', 'mixed',
       'sa_at_grpo', -0.05),
      ('a single agent with several turns loses less than 5 points', 'R2, R3',
       'mixed', 'sa_grpo_turns', -0.05),
      ('GiGPO loses less than 5 points', 'R3', 'mixed', 'gigpo', -0.05),
      ('a central critic loses less than 5 points', 'R3', 'mixed', 'maac',
       -0.05),
      ('uniform selection loses less than 5 points', 'R4', 'mixed',
       'tree_uniform', -0.05),
      ('without local rewards plain GRPO beats AT-GRPO', 'R2, R3', 'outcome',
       'mas_grpo_agent_turn', 0.0),
      ('without local rewards a central critic beats AT-GRPO', 'R3', 'outcome',
       'maac', 0.0),
      ('if a choice pays later, plain GRPO beats AT-GRPO', 'R4, meta', 'boost',
       'mas_grpo_agent_turn', 0.0),
      ('without local rewards looking one phase ahead improves AT-GRPO',
       'R4, meta', 'outcome', 'tree_next_phase', 0.0),
      ('if a choice pays later, continuing to the end improves AT-GRPO',
       'R4, meta', 'boost', 'tree_monte_carlo', 0.0)):
    yield Claim(
        f'Depot: {text}', source, '',
        Curves(f'depot/{preset}/{row}', f'depot/{preset}/at_grpo', margin))
  yield from itertools.starmap(Claim, (
      ('Depot: seven agents gain less than 5 points over two', 'R1', '',
       Curves(f'{_MIXED}/at_grpo', 'depot_agents/mixed/7', -0.05)),
      ('Depot: six turns cost more than 5 points over three', 'R1', '',
       Curves('depot_turns/mixed/3', f'{_MIXED}/at_grpo', 0.05)),
      ('Notation and figures are unclear', 'R4', '', _TEXT)))


# MAGRPO (arXiv 2508.04652).


def _magrpo_claims() -> Iterator[Claim]:
  """The claims of the paper."""
  posts, recipes = 'writing/posts', 'functions/recipes'
  critics = published.JOINT['writing']['arXiv 2601.21972, return %']['tldr']
  yield Claim(
      'Summaries: MAGRPO beats one untrained agent', 'TL;DR table',
      '94.5 against 36.7',
      Rows(f'{posts}/magrpo', f'{posts}/untrained_solo', measure='return'))
  for row, title in (
      ('untrained_pair', 'Parallel generation'),
      ('untrained_pipeline', 'Sequential pipeline'),
      ('untrained_discussion', 'One-round discussion')):
    yield Claim(
        f'Summaries: MAGRPO beats the untrained {title.lower()}',
        'arXiv 2601.21972', f'{critics["MAGRPO"]} against {critics[title]}',
        Rows(f'{posts}/magrpo', f'{posts}/{row}', measure='return'))
  yield from itertools.starmap(Claim, (
      ('A pretrained pair: MAGRPO beats parallel generation',
       'arXiv 2601.21972',
       f'{critics["MAGRPO"]} against {critics["Parallel generation"]}',
       Rows('writing/factbook/magrpo_cross',
            'writing/factbook/magrpo_cross before', measure='return',
            scale='135m')),
      ('Introductions: MAGRPO beats one agent and parallel generation',
       'arXiv table', '93.1 against 44.9 and 59.6', _NO_WEIGHTS),
      ('MAGRPO answers three times as fast as one larger agent',
       'TL;DR table', '202.3 tokens/s', _TIMED),
      ('Structure, style and coherence reach 98.7, 95 and 78.5 %',
       'TL;DR table', '', _NO_WEIGHTS),
      ('Functions: MAGRPO beats naive concatenation', 'coding table',
       'HumanEval: 83.7 against 53.9', Rows(
           f'{recipes}/magrpo', f'{recipes}/untrained_pair',
           measure='return')),
      ('Functions: MAGRPO passes all tests of more tasks than one agent',
       'version 1', '74.6 (two turns) against 63.4 % of single tests',
       Rows(f'{recipes}/magrpo', f'{recipes}/untrained_solo')),
      ('Two turns beat one', 'coding table', 'HumanEval: 86.7 against 83.7',
       Untestable('recipes have one turn')),
      ('CoopHumanEval gives a higher return than HumanEval', 'coding table',
       '88.5 against 86.7, two turns', _NO_CODER),
      ('The agents invent schemes such as a fallback around the helper',
       'discussion', '', _NO_CODER)))


def _magrpo_objections() -> Iterator[Claim]:
  """The follow-up paper, and what a reading of the released code suggests."""
  posts, recipes = 'writing/posts', 'functions/recipes'
  follow_up, code = 'arXiv 2601.21972', 'released code'
  critics = published.JOINT['writing'][f'{follow_up}, return %']['tldr']
  magrpo = critics['MAGRPO']
  yield from itertools.starmap(Claim, (
      ('Summaries: a trained single agent loses less than 5 points', follow_up,
       f'{critics["Single agent + GRPO"]} against {magrpo}',
       Rows(f'{posts}/sa_grpo', f'{posts}/magrpo', -0.05, 'return')),
      ('Functions: a trained single agent loses less than 5 points', follow_up,
       '', Rows(f'{recipes}/sa_grpo', f'{recipes}/magrpo', -0.05)),
      ('The baselines are untrained: training one agent beats them too',
       follow_up,
       f'{critics["Single agent + GRPO"]} against '
       f'{critics["Parallel generation"]}',
       Rows(f'{posts}/sa_grpo', f'{posts}/untrained_pair', measure='return'))))
  for row in ('IAC', 'MAAC'):
    yield Claim(
        f'Summaries: {row} beats MAGRPO', follow_up,
        f'{critics[row]} against {magrpo}',
        Rows(f'{posts}/{row.lower()}', f'{posts}/magrpo', measure='return'))
  yield from itertools.starmap(Claim, (
      ('Formulas with transition words earn coherence', code, '',
       Untestable('records hold no texts')),
      ('The evaluation repeats the first four items', code, '',
       Untestable('their records out of reach')),
      ('The loss skips the last token and counts padding', code, '',
       Untestable('our loss does neither'))))


# Title -> claims, and a note on their sources.
LEDGER: Mapping[str, tuple[Sequence[Claim], str]] = {
    'Claims of AT-GRPO': (
        list(_at_grpo_claims()),
        'Sources are parts of arXiv 2510.11062. Published: success in %. '
        '1.7B and 8B are sizes of Qwen3. AT-GRPO has one shared policy unless '
        'the line says otherwise.'),
    'Objections to AT-GRPO': (
        list(_at_grpo_objections()),
        'R1 to R4 are the reviewers of ICLR 2026, in the order of their '
        'scores 6, 2, 4 and 4; *meta* is the meta-review. The reviews ask for '
        'comparisons; the claims of these lines are ours.'),
    'Claims of MAGRPO': (
        list(_magrpo_claims()),
        'Sources are parts of arXiv 2508.04652, or its authors\' paper on '
        'critics. Published: return in %.'),
    'Objections to MAGRPO': (
        list(_magrpo_objections()),
        'No reviews are public. The objections follow from its authors\' paper '
        'on critics and from the code, CoMLRL.'),
}

_HEAD = """\
# Which claims of the papers hold here?

{nums}

This command writes the page from `paper/results` and `benchmarks/results`:

    python -m paper.claims

Each tested line states that one row of our records exceeds another, or that one
method of the [credit laboratory](credit_laboratory.md) exceeds another. The
test treats seeds and tasks as drawn at random
([statistics.py](../paper/statistics.py)). Every p is adjusted for all {num_p}
comparisons of this page (Holm).

| verdict | rule |
|---|---|
{rules}

- A verdict is about a direction in models of about one million parameters
  (135 million for the pretrained pair), not about Qwen3.
- Rows of plain GRPO with the return of an episode, GiGPO and MT-GRPO, and
  their lines of the laboratory, were paid less than AT-GRPO for the same
  episode. They will be run again, and these verdicts may change.
- An objection is *reproduced* if our records agree with it.
- *Loses less than 5 points*: the first row is at most 5 points below the
  second. If both rows are above 95 %, no loss could show, and the claim is *not
  visible at this scale*.
- A trained row *finds no reward* if it is below 5 % before and after training.
  This page does not test it. Untrained rows are tested at any level.
- *ours*: success in % (for recipes of `functions`, passing all tests), or the
  return in % for posts, passages and recipes. Columns of the laboratory are
  for T = 4 and K = 4; cosines above 1 are shown as 1. Depot: the mean of the
  return over the training, in % of the maximum, or the last return for roles
  trained apart. Rows with different budgets are compared over the smaller
  budget, so an area may differ from that in tables.md. The test treats only
  seeds as drawn at random. A *pilot* has fewer than five seeds.
"""


def page() -> str:
  """The text of docs/claims.md."""
  records = {
      scale: records_lib.read(evidence.ROOT / f'paper/results/{scale}')
      for scale in _SCALES}
  lines = evidence.judge(
      [claim for claims, _ in LEDGER.values() for claim in claims], records)
  verdicts = [line.verdict.partition(':')[0] for line in lines]
  nums = ', '.join(
      f'{verdicts.count(verdict)} are {verdict}'
      for verdict in evidence.VERDICTS)
  head = _HEAD.format(
      nums=textwrap.fill(
          f'The ledger has {len(lines)} claims and objections: {nums}.', 80),
      num_p=sum(line.p != '' for line in lines),
      rules='\n'.join(
          f'| {verdict} | {rule} |'
          for verdict, rule in evidence.VERDICTS.items()))
  rest = iter(lines)
  return '\n'.join([head, *(
      table_lib.Table.create(
          title, _COLUMNS, [_cells(next(rest)) for _ in claims], note
      ).markdown() for title, (claims, note) in LEDGER.items())])


def _cells(line: evidence.Line) -> dict[str, str]:
  claim, command = line.claim, line.claim.evidence.command()
  return dict(zip(_COLUMNS, (
      claim.text, claim.source, claim.published, line.outcome.ours,
      line.outcome.seeds, line.p, line.verdict,
      f'`{command}`' if command else '')))


if __name__ == '__main__':
  PAGE.write_text(page())
