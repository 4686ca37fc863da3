"""The figures, commands, keys and links of README.md and docs/ are true.

  python -m tests.docs_test

prints the table of README's Results, made from the kept results.
"""

from collections.abc import Iterator, Sequence
import functools
import importlib.util
import json
import pathlib
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax import measures
from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import logprobs
from atgrpo_jax.rl import losses
from benchmarks import credit
from benchmarks import peer
from benchmarks import run
from benchmarks import sandbox
from benchmarks import timing
from configs import common
from configs import maths as maths_config
from configs import pod
from configs import sudoku
from environments.boards import board_game
from environments.writing import env as writing
from environments.writing import rewards
from paper import experiments
from paper import formats
from paper import published
from paper import records
from paper import rows as paper_rows
from paper import tables as paper_tables
from tests import checkout
from tests import command_line
from tests import specs

ROOT = checkout.ROOT
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [
        ROOT / 'README.md', *sorted((ROOT / 'models').glob('*/README.md')),
        *sorted((ROOT / 'docs').glob('*.md'))]}
ALGORITHMS, CONFIGURATION, CREDIT, SPEED = (
    PAGES[f'docs/{name}.md'] for name in (
        'algorithms', 'configuration', 'credit_laboratory', 'speed'))
RESULTS = ROOT / 'paper/results/nano'
GAMES = ('Plan-Path', 'Sokoban', 'Sudoku 4x4')  # As in experiments.GAMES.

# Contestant -> its name in docs/speed.md.
_OTHERS = {
    'tunix': 'tunix', 'comlrl': 'CoMLRL', 'lockstep': 'our lockstep mode',
    'python': '`python -c`'}
# Unit of a change in docs/speed.md -> case of `scaling`.
_GROWS = {
    'samples per prompt': '8 prompts x {} samples, prompt 1024, 64 new tokens',
    'prompt tokens': '8 prompts x 8 samples, prompt {}, 64 new tokens',
    'new tokens': '8 prompts x 8 samples, prompt 128, {} new tokens',
    'tokens, 64 used': '64 new tokens of a budget of {}',
    'turns, with growing prompts':
        'turns: {}, 8 prompts x 8 samples, prompt 128, 64 new tokens',
    'agents with one model each':
        'GRPO step, agents: {}, 8 prompts x 8 samples, prompt 128, '
        '64 new tokens',
}
# A column of a table of credit -> file, turns and what that file calls it.
_CREDIT = {
    'bias': ('credit', 4, 'bias'),
    'deviation': ('credit', 4, 'deviation'),
    'cosine of the mean gradient': ('credit', 4, 'cosine'),
    'cosine of one rollout': ('credit', 4, 'step'),
    'learned, T = 2': ('credit', 2, 'learned'),
    'cosine, outcome reward': ('credit_outcome', 4, 'cosine'),
    'cosine, boost': ('credit_boost', 4, 'cosine'),
}
_CREDIT_AT_ONCE = {
    column: ('credit_at_once', *found)
    for column, (file, *found) in _CREDIT.items() if file == 'credit'}
_GROUP_SIZE = 4  # Of the tables of credit.


def section(page: str, title: str) -> str:
  """What stands under a heading, up to the next one."""
  _, found, rest = page.partition(f'\n{title}\n')
  assert found, f'There is no heading {title!r}.'
  return re.split(r'^#+ ', rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(page: str, header: str) -> str:
  """The table that begins with the line `header`."""
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
  """`value` with as many decimals as the figure in `shown` has."""
  number, = numbers(shown)
  return f'{value:.{len(number.partition(".")[2])}f}'


def one_line(text: str) -> str:
  return ' '.join(text.split())


# The pages.


def test_readme_is_one_page():
  assert len(PAGES['README.md'].splitlines()) <= 120


def test_readme_names_every_page_and_folder():
  readme = PAGES['README.md']
  for name in PAGES:
    assert name == 'README.md' or name.startswith('models/') or (
        f']({name})' in readme), name
  tree = section(readme, '## Where to start reading')
  for path in [*ROOT.glob('*/*.py'), *ROOT.glob('atgrpo_jax/*/*.py')]:
    assert f'{path.parent.name}/' in tree, path


def test_links_resolve():
  for name, page in PAGES.items():
    links = re.findall(r'\]\(([^)\s]+)\)', page)
    for link in links:
      if not link.startswith('https://'):
        file, _, anchor = link.partition('#')
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), f'{name}: {link}'
        assert not anchor or anchor in _anchors(path.read_text()), link


def _anchors(page):
  headings = re.findall(r'^#+ (.*)$', page, re.MULTILINE)
  return {
      re.sub(r'[^\w -]', '', heading).lower().replace(' ', '-')
      for heading in headings}


def test_named_files_are_there():
  for name, page in PAGES.items():
    for path in re.findall(r'`((?:\w+/)+\w+\.(?:py|sh))`', page):
      assert any(
          (folder / path).exists() for folder in (ROOT, ROOT / 'atgrpo_jax')
      ), f'{name}: {path}'


# The keys.


def _leaves(config):
  """Name -> value of each leaf of a config."""
  leaves = {}
  for name, value in config.items():
    if hasattr(value, 'items'):
      leaves |= {f'{name}.{key}': x for key, x in _leaves(value).items()}
    else:
      leaves[name] = value
  return leaves


def test_named_keys_are_there():
  known = set()
  for config in (
      sudoku.get_config(), pod.get_config()):
    for name in _leaves(config):
      parts = name.split('.')
      known |= {'.'.join(parts[:i + 1]) for i in range(len(parts))}
  sections = '|'.join(common.base_config('nano'))
  for page, text in PAGES.items():
    named = re.findall(r'--config\.(\w+(?:\.\w+)*)', text)
    named += re.findall(rf'`((?:{sections})\.(?!py)\w+(?:\.\w+)*)[`=]', text)
    for name in set(named) - {'key'}:
      # The keys of options belong to the environment's module.
      assert name in known or name.startswith('environment.options.'), (
          f'{page}: {name}')


def test_all_arguments_of_a_config():
  named = set(re.findall(r'`([\w.]+)`', CONFIGURATION))
  assert {
      *common.SIZES, *common.SYSTEMS, *board_game.TEAMS, *writing.TEAMS,
      *common.MAGRPO_SYSTEMS, *common.MAGRPO_PRESETS, *rewards.SPECS} <= named
  for page in PAGES.values():
    assert set(re.findall(r'\bsystem=(\w+)', page)) <= (
        maths_config.SYSTEMS.keys() | common.MAGRPO_SYSTEMS.keys())
    assert set(re.findall(r'(?<!\.)\bsize=([\w.]+)', page)) <= {*common.SIZES}


# The worked example.


def test_worked_example():
  text = section(ALGORITHMS, '## Worked example')
  header = 'candidate', 'token', 'team', 'local', 'return', 'advantage'
  lines = rows(ALGORITHMS, *header)
  tokens = np.array(['abc'.index(token) for _, token, *_ in lines])
  team, local, returns, shown = np.array(
      [line[2:] for line in lines], np.float32).T
  np.testing.assert_allclose(team + local, returns)
  credited = advantages.group_advantages(
      returns, np.zeros(4, int), np.ones(4, bool), baseline='mean',
      scale='std')
  assert [f'{x:.3f}' for x in credited] == [f'{x:.3f}' for x in shown]
  assert f'{returns.mean():.1f}' == f'{returns.std():.1f}' == '0.6'

  def loss(logits, old):
    def score(x):
      return logprobs.token_logprobs(
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
  assert f'{ratios[0]:.1f} and {ratios[1]:.1f}' in one_line(text)


# The speed.


@pytest.fixture(scope='module')
def kept():
  """Name of a benchmark -> what is kept of it."""
  found = {}
  for path in (ROOT / 'benchmarks/results').glob('*.json'):
    if not path.stem.startswith(('credit', 'slices')):
      found[path.stem] = json.loads(path.read_text())
      assert found[path.stem]['benchmark'] == path.stem
  return found


def _case(result, name):
  case, = [case for case in result['cases'] if case['name'] == name]
  return case


def _best(case, contestant=timing.OURS):
  return case['contestants'][contestant]['best']


def test_times_beside_others(kept):
  shown = []
  for name, work, ours, other, ratio in rows(
      SPEED, 'NAME', 'work', 'ours', 'other', 'ratio'):
    name = name.strip('`')
    # The one case with the numbers that are shown of the work, in this order.
    fits = re.compile('.*'.join(rf'\b{x}\b' for x in numbers(work)))
    case, = [
        case for case in kept[name]['cases']
        if len(case['contestants']) > 1 and fits.search(case['name'])]
    shown.append((name, case['name']))
    contestant = list(case['contestants'])[1]  # Behind ours.
    seconds, theirs = _best(case), _best(case, contestant)
    assert ours == f'{rounded(seconds, ours)} s', work
    assert other == (
        f'{_OTHERS[contestant]}, '
        f'{rounded(theirs, other.rpartition(",")[2])} s'), work
    assert ratio == rounded(theirs / seconds, ratio), work
  # Whatever was compared has a row.
  assert sorted(shown) == sorted(
      (name, case['name']) for name, result in kept.items()
      for case in result['cases'] if len(case['contestants']) > 1)


def test_growth(kept):
  shown, grows = [], ''
  for name, what, growth, by in rows(
      SPEED, 'NAME', 'work', 'change', 'time grows by'):
    grows = what or grows  # An empty cell is like the one above it.
    less, more, of = re.fullmatch(
        r'(?:budget )?(\d+) -> (\d+) (.*)', growth).groups()
    shown.append(of)
    result = kept[name.strip('`')]
    small, large = (
        _case(result, _GROWS[of].format(num)) for num in (less, more))
    assert set(numbers(grows)) <= set(numbers(large['name'])), growth
    assert ('GRPO step' in grows) == ('GRPO step' in large['name'])
    assert by == rounded(_best(large) / _best(small), by), growth
  assert shown == list(_GROWS)


def test_shares_of_the_machine(kept):
  known = {64}  # Rows of a token, and the last candidates.
  for case in kept['sampling']['cases'] + kept['update']['cases']:
    if 'share_of_machine' in case:
      known.add(round(100 * case['share_of_machine']))
    elif 'product' in case['name']:
      rates = case['contestants'][timing.OURS]['per_second']
      known.add(round(rates['GFLOP']))
  shown = numbers(section(SPEED, '## Limits'))
  assert shown and known.issuperset(map(int, shown))


def test_each_row_of_the_speed_was_made_by_the_command_beside_it(kept):
  names = set(re.findall(r'^\| `(\w+)` \|', SPEED, re.MULTILINE))
  assert names | {'update'} == kept.keys()
  for name, result in kept.items():
    python, m, module, *args = shlex.split(result['command'])
    assert (python, m, module) == ('python', '-m', 'benchmarks.run')
    options = run.parse([*args, *(
        f'--peer_python={it}=python' for it in result['peers'])])
    assert (options.name, options.repeats) == (name, result['repeats'])
    for it in result['peers']:
      assert f'`pip install {peer.PEERS[it].install}`' in one_line(SPEED)


# The credit.


@pytest.fixture(scope='module')
def measured():
  """File -> what `benchmarks.credit` wrote to it."""
  return {
      path.stem: json.loads(path.read_text())
      for path in (ROOT / 'benchmarks/results').glob('credit*.json')}


def _row(result, method, turns, group_size):
  row, = [
      row for row in result['rows']
      if (row['method'], row['turns'], row['group_size'])
      == (method, turns, group_size)]
  return row


@pytest.mark.parametrize('columns', [_CREDIT, _CREDIT_AT_ONCE])
def test_table_of_credit(columns, measured):
  """A row has the numbers of one method of this mode and return type."""
  def fits(method, cells):
    for (file, turns, column), cell in zip(columns.values(), cells):
      row = _row(measured[file], method, turns, _GROUP_SIZE)
      if cell != rounded(row[column], cell):
        return False
    return True

  (file, *_), *_ = columns.values()
  methods = {
      row['method'] for row in measured[file]['rows']
      if (row['turns'], row['group_size']) == (4, _GROUP_SIZE)}
  for name, *cells in rows(CREDIT, 'credit', *columns):
    parts = re.sub(r'`| critic| \(.*\)', '', name).split(', ')
    found = [
        method for method in methods
        if method.startswith(', '.join(parts[:2])) and fits(method, cells)]
    if len(found) > 1:  # The row has the words of one of them.
      found = [it for it in found if set(parts) <= set(it.split(', '))]
    method, = found
    methods.remove(method)


def test_every_file_of_the_credit_is_shown(measured):
  assert measured.keys() == {
      file for columns in (_CREDIT, _CREDIT_AT_ONCE)
      for file, *_ in columns.values()}


def test_deviations_beside_those_of_grpo(measured):
  ratios = [
      _row(measured['credit'], 'parallel, episode_return, env', row['turns'],
           row['group_size'])['deviation'] / row['deviation']
      for row in measured['credit']['rows']
      if row['method'] == 'tree, immediate, greedy']
  assert (round(max(ratios)), round(min(ratios))) == (6, 2)
  assert 'a sixth to a half of that of GRPO' in one_line(CREDIT)


def test_commands_of_the_credit(measured):
  found = {}
  for _, module, args in python_commands():
    if module == 'benchmarks.credit':
      given = vars(credit.parse(args))
      found[given.pop('out')] = given
  assert found.keys() == {
      pathlib.Path('benchmarks/results', f'{name}.json') for name in measured}
  for path, given in found.items():
    settings = measured[path.stem]['settings']
    assert given == {name: settings[name] for name in given}


# The results.


def kept_tables() -> list[formats.Table]:
  """The tables of the systems, of the runs that are kept."""
  return paper_tables.main_tables(paper_rows.read_systems(
      records.read(RESULTS), experiments.GAMES))


def results_table(tables: Sequence[formats.Table]) -> str:
  """README's table of the systems, of those that `main_tables` makes.

  A cell is the success in per cent, with its interval, and the number of
  seeds. It is empty where nothing was run; so are whole rows left out.
  """
  games = {
      f'{name}: systems': game
      for name, game in zip(experiments.GAMES.values(), GAMES)}
  cells = {}
  for one in tables:
    for row in one.frame.to_dict('records'):
      if row['success %']:
        interval = row['95 %'] and f'{row["95 %"]}; '
        cells[row[''], games[one.title]] = (
            f'{row["success %"]} ({interval}{row["seeds"]})')
  lines = [['system', *GAMES]]
  for title in paper_rows.SYSTEMS:
    line = [cells.get((title, game), '') for game in GAMES]
    if any(line):
      lines.append([title, *line])
  header, *lines = [
      ''.join(f'| {cell} ' if cell else '| ' for cell in line) + '|\n'
      for line in lines]
  return ''.join([header, '|---' * (1 + len(GAMES)) + '|\n', *lines])


def test_results_are_those_of_the_records():
  header, rule, *lines = table(
      section(PAGES['README.md'], '## Results'), '| system |').splitlines()
  expected = results_table(kept_tables()).splitlines()
  assert [header, rule] == expected[:2] and len(lines) == 5
  assert set(lines) <= set(expected), (
      'Copy the rows that `python -m tests.docs_test` prints.')


def test_configs_say_what_is_kept_and_what_is_published():
  shown = {
      row[0]: [number for cell in row[1:] for number in numbers(cell)[:1]]
      for row in rows(PAGES['README.md'], 'system', *GAMES)}
  before, after = shown['Team'], shown['Team + AT-GRPO, shared']
  for task, *kept in zip(experiments.GAMES, before, after):
    config = importlib.import_module(f'configs.{task}').__doc__
    shown = re.search(
        r'from (\S+) to (\S+) %.*reports (\S+) % with 1.7B and (\S+) % with 8B',
        one_line(config)).groups()
    assert list(shown[:2]) == kept
    assert [float(number) for number in shown[2:]] == [
        table['shared'][task] for table in (
            published._TABLE_1, published._TABLE_2)]


# The commands.


@functools.cache
def commands() -> list[tuple[str, list[str]]]:
  """(page, words) of each command, be it in a block or in a sentence."""
  start = r'(?:[A-Z_]+=\S+ )*(?:python -m|bash launch/)'
  found = []
  for name, page in PAGES.items():
    page = page.replace('\\\n', ' ')
    lines = re.findall(rf'^ *({start}.*)$', page, re.MULTILINE)
    lines += re.findall(rf'`({start}[^`]*)`', page)
    assert len(lines) == len(re.findall(start, page)), (
        f'A command in {name} stands neither on a line of its own nor between '
        'backticks.')
    found += [(name, shlex.split(line, comments=True)) for line in lines]
  return found


def python_commands() -> Iterator[tuple[str, str, list[str]]]:
  """Page, module and arguments of each `python -m`."""
  for page, words in commands():
    while '=' in words[0]:
      words = words[1:]
    if words[0] == 'python':
      yield page, words[2], words[3:]


def _check_run(args):
  run.parse(['step' if word == 'NAME' else word for word in args])


def _flags(module, args):
  """Flags and values, of a module that defines such flags."""
  source = pathlib.Path(module.__file__).read_text()
  found = list(zip(args[::2], args[1::2], strict=True))
  for name, _ in found:
    assert re.search(rf"flags\.DEFINE_\w+\(\s*'{name[2:]}'", source), name
  return found


def _check_tables(args):
  for name, value in _flags(paper_tables, args):
    assert (ROOT / value).is_dir() or name == '--out', value


def _check_no_arguments(args):
  assert not args


def _check_measure(args):
  for name in args[1:]:
    assert importlib.util.find_spec(
        f'environments.math_problems.{name}.{name}_dataset_builder')


def _check_out(args):
  name, _ = args
  assert name == '--out'


def _check_one_argument(args):
  assert len(args) == 1


def _check_pytest(args):
  assert args[:2] == ['-m', 'long'] and (ROOT / args[2]).exists()


def test_commands_can_be_parsed(monkeypatch):
  checks = {
      'paper.tables': _check_tables, 'benchmarks.credit': credit.parse,
      'pytest': _check_pytest, 'benchmarks.run': _check_run,
      'benchmarks.sandbox': sandbox.parse,
      'atgrpo_jax.measures': measures.parse,
      'tests.viewer.screenshots': _check_one_argument,
      'environments.math_problems.measure': _check_measure,
      **{f'models.{name}.recipe': _check_out
         for name in ('nano', 'reckoner', 'writer')}}
  for page, module, args in python_commands():
    assert importlib.util.find_spec(module), module
    if module == 'atgrpo_jax.main':
      is_example = page == 'docs/environments.md' and 'guess_number' in args[1]
      values = command_line.parse_main(
          args, monkeypatch, ROOT / 'docs/examples' if is_example else ROOT)
      assert values.config.is_locked
      assert bool(values.step) == (values.mode == 'replay')
      assert values.workdir or values.mode == 'compile_check'
    else:
      checks.get(module, _check_no_arguments)(args)


def test_scripts_are_there():
  scripts = [words[1:] for _, words in commands() if words[0] == 'bash']
  assert {script for script, *_ in scripts} == {
      f'launch/{path.name}' for path in (ROOT / 'launch').glob('[a-z]*.sh')}
  for _, *args in scripts:
    assert all((ROOT / arg).exists() for arg in args
               if '/' in arg and '*' not in arg), args


if __name__ == '__main__':
  print(results_table(kept_tables()), end='')
