"""Numbers, commands, keys and files in the pages are correct.

  python -m tests.docs_test

prints the rows of the tables of docs/results.md.
"""

from collections.abc import Iterator
import functools
import importlib.util
import json
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import losses
from benchmarks import accelerator
from benchmarks import credit
from benchmarks import run
from benchmarks import sandbox
from configs import common
from configs import pod
from configs import sudoku
from tests import checkout
from tests import command_line
from tests import specs

ROOT = checkout.ROOT
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [
        ROOT / 'README.md', ROOT / 'CONTRIBUTING.md',
        *sorted((ROOT / 'models').glob('*/README.md')),
        *sorted((ROOT / 'docs').glob('*.md'))]}
ALGORITHMS, SPEED = (
    PAGES[f'docs/{name}.md'] for name in ('algorithms', 'hardware'))
TABLES = ''.join(
    '\n' + (ROOT / f'paper/results/{scale}/tables.md').read_text()
    for scale in ('nano', '135m'))
GAMES = ('Plan-Path', 'Sokoban', 'Sudoku')
# First cell of a table of docs/results.md -> title of the stored table and its
# columns in the other cells.
_RESULTS = {
    'Word problems': (
        'Word problems: problems',
        '{success %} ({95 %}) | {seeds} | {minus AT-GRPO} | {p (Holm)}'),
    'Recipes of `contests`': (
        'Recipes: problems',
        '{success %} ({95 %}) | {seeds} | {minus AT-GRPO} | {p (Holm)}'),
    'Recipes of `functions`': (
        'Recipes: functions',
        '{return %} ({95 %}) | {seeds} | {minus MAGRPO} | {p (Holm)} | '
        '{all tests %}'),
    'Posts': (
        'Posts: writing',
        '{return %} ({95 %}) | {seeds} | {minus MAGRPO} | {p (Holm)}'),
    'Passages': (
        'World Factbook: writing',
        '{return %} ({95 %}) | {seeds} | {minus MAGRPO, all combinations} | '
        '{p (Holm)}')}
_OF_DEPOT = (
    '{{seeds}} | {{low seeds}} | {{area %}} ({{95 % of the area}}) | '
    '{{p (Holm) of the area}} | {{return at {0} %}} '
    '({{95 % of the return at {0}}}) | {{p (Holm) of the return at {0}}}')
# Title of a stored table of Depot -> choices of its return.
_DEPOT = {
    'Depot: `mixed`, 8k choices': '4k', 'Depot: `outcome`, 60k choices': '60k',
    'Depot: `boost`, 60k choices': '60k', 'Depot: `chain`, 12k choices': '6k'}

# Contestant -> its name in docs/hardware.md.
_OTHERS = {'tunix': 'tunix', 'comlrl': 'CoMLRL'}
# Unit of a change in docs/hardware.md -> case of `scaling`.
_GROWS = {
    'candidates per prompt':
        '8 prompts x {} samples, prompt 1024, 64 new tokens',
    'prompt tokens': '8 prompts x 8 samples, prompt {}, 64 new tokens',
    'new tokens': '8 prompts x 8 samples, prompt 128, {} new tokens',
    'agents with one model each':
        'GRPO step, agents: {}, 8 prompts x 8 samples, prompt 128, '
        '64 new tokens',
}
# Column of a table in docs/when_at_grpo.md -> file and name there.
_CREDIT = {
    'bias': ('credit', 'bias'),
    'deviation': ('credit', 'deviation'),
    'cosine of the mean gradient': ('credit', 'cosine'),
    'cosine, outcome reward': ('credit_outcome', 'cosine'),
    'cosine, boost': ('credit_boost', 'cosine'),
}
_CREDIT_DEPOT = {
    f'`{reward}`': (file, 'step') for reward, file in {
        'mixed': 'credit', 'outcome': 'credit_outcome',
        'boost': 'credit_boost', 'chain': 'credit_chain'}.items()}
_CREDIT_STOP = {
    'bias, *stop*': ('credit_stop', 'bias'),
    'cosine of the mean gradient, *stop*': ('credit_stop', 'cosine')}


def section(page: str, title: str) -> str:
  """Text between a heading and the next one."""
  _, found, rest = page.partition(f'\n{title}\n')
  assert found, f'There is no heading {title!r}.'
  return re.split(r'^#+ ', rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(page: str, header: str) -> str:
  """The table whose first line is `header`."""
  _, found, rest = page.partition(f'\n{header}')
  assert found, f'There is no table with {header!r}.'
  return header + rest.split('\n\n')[0].rstrip('\n') + '\n'


def rows(page: str, *header: str) -> list[list[str]]:
  """The cells of the table with this header."""
  _, rule, *lines = table(page, f'| {" | ".join(header)} |\n').splitlines()
  assert rule == '|' + '---|' * len(header)
  cells = [
      [cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert cells and {len(row) for row in cells} == {len(header)}
  return cells


def numbers(text: str) -> list[str]:
  return re.findall(r'\d+(?:\.\d+)?', text)


def rounded(value: float, shown: str) -> str:
  """`value` with as many decimals as the number in `shown`."""
  number, = numbers(shown)
  return f'{value:.{len(number.partition(".")[2])}f}'


def test_named_files_exist():
  for name, page in PAGES.items():
    for path in re.findall(r'`((?:\w+/)+\w+\.(?:py|sh))`', page):
      assert any(
          (folder / path).exists() for folder in (ROOT, ROOT / 'atgrpo_jax')
      ), f'{name}: {path}'


def _leaves(config):
  """Names of the leaves of a config and of the sections around them."""
  for name, value in config.items():
    yield name
    if hasattr(value, 'items'):
      yield from (f'{name}.{key}' for key in _leaves(value))


def test_named_keys_exist():
  known = {*_leaves(sudoku.get_config()), *_leaves(pod.get_config())}
  sections = '|'.join(common.base_config('nano'))
  for page, text in PAGES.items():
    named = re.findall(r'--config\.(\w+(?:\.\w+)*)', text)
    named += re.findall(rf'`((?:{sections})\.(?!py)\w+(?:\.\w+)*)[`=]', text)
    for name in set(named) - {'key'}:
      # The keys of options belong to the environment's module.
      assert name in known or name.startswith('environment.options.'), (
          f'{page}: {name}')


def test_worked_example():
  text = section(ALGORITHMS, '## Worked example')
  header = 'candidate', 'token', 'team', 'local', 'return', 'advantage'
  lines = rows(ALGORITHMS, *header)
  tokens = np.array(['abc'.index(token) for _, token, *_ in lines])
  team, local, returns, shown = np.array(
      [line[2:] for line in lines], np.float32).T
  np.testing.assert_allclose(team + local, returns)
  credited = advantages.group_advantages(
      returns, np.zeros(4, int), np.ones(4, bool),
      baseline=advantages.minus_mean, scale=advantages.by_std)
  assert [f'{x:.3f}' for x in credited] == [f'{x:.3f}' for x in shown]
  assert f'{returns.mean():.1f}' == f'{returns.std():.1f}' == '0.6'

  def loss(logits, old):
    def score(x):
      return losses.token_logprobs(
          jnp.broadcast_to(x, (4, 1, 3)), tokens[:, None], 1.0)

    old = score(old)
    total, _ = losses.policy_loss(
        score(logits), old, old, jnp.zeros((4, 1)), jnp.asarray(credited),
        np.ones((4, 1), bool), None, specs.loss())
    return total / losses.num_units(np.ones(4, int), 'token_mean')

  before = jnp.log(jnp.array([0.5, 0.25, 0.25]))
  after = jnp.log(jnp.array([0.65, 0.175, 0.175]))
  gradient = jax.grad(loss)(before, before)
  assert [
      line[1].partition(' = ')[2]
      for line in rows(text, 'logit', 'gradient of the loss')
  ] == [f'{x:.3f}' for x in gradient]
  np.testing.assert_array_equal(jax.grad(loss)(after, before), 0.0)
  ratios = jnp.exp(after - before)
  assert f'{ratios[0]:.1f} and {ratios[1]:.1f}' in ' '.join(text.split())


@functools.cache
def stored(name: str) -> dict:
  """A stored result of a benchmark."""
  return json.loads((ROOT / f'benchmarks/results/{name}.json').read_text())


def _best(case, contestant=run.OURS):
  return case['contestants'][contestant]['best']


def test_times_beside_others():
  for name, work, ours, other, ratio in rows(
      SPEED, 'NAME', 'work', 'ours', 'other', 'ratio'):
    # The case whose name has the numbers of the work in this order.
    fits = re.compile('.*'.join(rf'\b{x}\b' for x in numbers(work)))
    case, = [
        case for case in stored(name.strip('`'))['cases']
        if len(case['contestants']) > 1 and fits.search(case['name'])]
    contestant = list(case['contestants'])[1]  # After ours.
    seconds, theirs = _best(case), _best(case, contestant)
    assert ours == f'{rounded(seconds, ours)} s', work
    assert other == (
        f'{_OTHERS[contestant]}, '
        f'{rounded(theirs, other.rpartition(",")[2])} s'), work
    assert ratio == rounded(theirs / seconds, ratio), work


def test_growth():
  shown = []
  for name, _, growth, by in rows(
      SPEED, 'NAME', 'work', 'change', 'time grows by'):
    less, more, unit = re.fullmatch(
        r'(\d+) -> (\d+) (.*)', growth).groups()
    shown.append(unit)
    cases = {case['name']: case for case in stored(name.strip('`'))['cases']}
    small, large = (
        _best(cases[_GROWS[unit].format(num)]) for num in (less, more))
    assert by == rounded(large / small, by), growth
  assert shown == list(_GROWS)


@pytest.mark.parametrize('columns', [_CREDIT, _CREDIT_DEPOT, _CREDIT_STOP])
def test_credit_equals_the_stored_records(columns):
  for name, *cells in rows(
      PAGES['docs/when_at_grpo.md'], 'credit', *columns):
    method = re.sub(r'`| \(.*\)', '', name)
    for (file, column), cell in zip(columns.values(), cells):
      row, = [
          row for row in stored(file)['rows']
          if (row['method'], row['turns'], row['group_size'])
          == (method, 4, 4)]
      assert cell == rounded(row[column], cell), (method, column)


def stored_rows(title: str) -> list[dict[str, str]]:
  """The rows of a stored table: column -> text."""
  header, _, *lines = [
      [cell.strip() for cell in line.split('|')[1:-1]]
      for line in section(TABLES, f'## {title}').splitlines()
      if line.startswith('|')]
  return [dict(zip(header, line, strict=True)) for line in lines]


def game_rows() -> Iterator[dict[str, str]]:
  """The systems of all games; a column starts with the name of its game."""
  for of_games in zip(
      *(stored_rows(f'{game}: systems') for game in GAMES), strict=True):
    if of_games[0]['success %']:
      yield of_games[0] | {
          f'{game} {column}': cell for game, row in zip(GAMES, of_games)
          for column, cell in row.items()}


def stored_tables() -> dict[tuple[str, str], list[str]]:
  """(page, first cell of a table) -> lines that it may have."""
  results, depot = 'docs/results.md', 'docs/when_at_grpo.md'
  found = {
      (results, name): (stored_rows(title), cells)
      for name, (title, cells) in _RESULTS.items()}
  found[results, 'Games'] = game_rows(), ' | '.join(
      [*(f'{{{x} success %}} ({{{x} 95 %}})' for x in GAMES), '{seeds}'])
  for title, choices in _DEPOT.items():
    found[depot, title.split(',')[0]] = (
        stored_rows(title), _OF_DEPOT.format(choices))
  return {
      key: [f'| {row[""]} | {cells.format_map(row)} |' for row in stored]
      for key, (stored, cells) in found.items()}


def test_tables_equal_the_stored_ones():
  for (page, name), known in stored_tables().items():
    _, _, *lines = table(PAGES[page], f'| {name} |').splitlines()
    assert lines and set(lines) <= set(known), (
        f'{name}: copy the rows that `python -m tests.docs_test` prints.')


def test_quoted_p_are_adjusted():
  titles = re.findall('^## (.*)$', TABLES, re.MULTILINE)
  adjusted = [
      float(p) for title in titles for row in stored_rows(title)
      for name, p in row.items()
      if name.startswith('p (Holm)') and p and '<' not in p]
  for page in ('docs/results.md', 'docs/when_at_grpo.md'):
    quoted = re.findall(r'\bp (\d\.\d+)', ' '.join(PAGES[page].split()))
    assert quoted
    for shown in quoted:
      assert shown in {rounded(p, shown) for p in adjusted}, (page, shown)


def commands() -> Iterator[tuple[str, list[str]]]:
  """(page, words) of each command in a block or a sentence."""
  start = r'(?:[A-Z_]+=\S+ )*(?:python -m|bash launch/)'
  for name, page in PAGES.items():
    page = page.replace('\\\n', ' ')
    lines = re.findall(rf'^ *({start}.*)$', page, re.MULTILINE)
    lines += re.findall(rf'`({start}[^`]*)`', page)
    assert len(lines) == len(re.findall(start, page)), (
        f'{name}: a command must be on a separate line or in backticks.')
    for line in lines:
      words = shlex.split(line, comments=True)
      while '=' in words[0]:
        words = words[1:]
      yield name, words


def test_commands_can_be_parsed(monkeypatch):
  parsers = {
      'benchmarks.accelerator': accelerator.parse,
      'benchmarks.credit': credit.parse, 'benchmarks.sandbox': sandbox.parse,
      'benchmarks.run': lambda args: run.parse(
          ['step' if word == 'NAME' else word for word in args])}
  for _, (program, *words) in commands():
    if program == 'bash':
      for path in words:
        assert (
            '/' not in path or '*' in path or path.startswith('runs/')
            or (ROOT / path).exists()), path
      continue
    _, module, *args = words
    assert importlib.util.find_spec(module), module
    if module == 'atgrpo_jax.main':
      if not re.search('--config[ =]', ' '.join(args)):
        # The workdir would hold a run of Plan-Path.
        args = ['--config=configs/plan_path.py', *args]
      is_example = args[1].startswith(('sums.py', 'guess_number/'))
      values = command_line.parse_main(
          args, monkeypatch, ROOT / 'docs/examples' if is_example else ROOT)
      assert values.config.is_locked
      assert bool(values.step) == (values.mode == 'replay')
      assert values.workdir or values.mode in ('compile_check', 'play')
    elif module in parsers:
      parsers[module](args)


if __name__ == '__main__':
  for (page_name, first_cell), lines_of_table in stored_tables().items():
    print('', f'{page_name}: {first_cell}', *lines_of_table, sep='\n')
