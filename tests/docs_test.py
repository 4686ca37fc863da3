"""Numbers, commands, keys and files in the pages are correct."""

from collections.abc import Iterator
import functools
import importlib.util
import itertools
import json
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax.io import workdir as workdir_lib
from atgrpo_jax.rl import advantages
from atgrpo_jax.rl import losses
from benchmarks import accelerator
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
RESULTS = {
    name: PAGES[f'docs/{name}.md'] for name in ('results', 'when_at_grpo')}
STORED_TABLES = ''.join(
    '\n' + (ROOT / f'paper/results/{scale}/tables.md').read_text()
    for scale in ('nano', '135m'))

# Contestant -> its name in docs/hardware.md.
_OTHERS = {'tunix': 'tunix', 'comlrl': 'CoMLRL'}


def section(page: str, title: str) -> str:
  """Text between a heading and the next one."""
  _, found, rest = page.partition(f'\n{title}\n')
  assert found, f'There is no heading {title!r}.'
  return re.split(r'^#+ ', rest, maxsplit=1, flags=re.MULTILINE)[0]


def tables(page: str) -> Iterator[tuple[list[str], list[list[str]]]]:
  """The cells of the header and of the rows of each table."""
  for block in re.findall(r'(?:^\|.*\n)+', page, re.MULTILINE):
    header, rule, *lines = [
        [cell.strip() for cell in line.split('|')[1:-1]]
        for line in block.splitlines()]
    assert {len(header)} == {len(cells) for cells in (rule, *lines)}, block
    yield header, lines


def rows(page: str, *header: str) -> list[list[str]]:
  """The rows of the table with this header."""
  found, = [lines for cells, lines in tables(page) if cells == [*header]]
  return found


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


def test_links_lead_to_files_and_headings():
  for name, page in PAGES.items():
    for path, anchor in re.findall(r'\]\(([^)\s#:]*)#?([\w-]*)\)', page):
      target = (ROOT / name).parent / path if path else ROOT / name
      assert target.exists(), f'{name}: {path}'
      if anchor:
        titles = re.findall('^#+ (.*)', target.read_text(), re.MULTILINE)
        # As GitHub does.
        assert anchor in {
            re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
            for title in titles}, f'{name}: {path}#{anchor}'


def test_named_keys_exist():
  known = set().union(*(
      workdir_lib.flatten(x.get_config().to_dict()) for x in (sudoku, pod)))
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
  lines = rows(
      ALGORITHMS, 'candidate', 'token', 'team', 'local', 'return', 'advantage')
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


def test_times_beside_others():
  for name, work, ours, other, ratio in rows(
      SPEED, 'NAME', 'work', 'ours', 'other', 'ratio'):
    # The case whose name has the numbers of the work in this order.
    fits = re.compile('.*'.join(rf'\b{x}\b' for x in numbers(work)))
    case, = [
        case for case in stored(name.strip('`'))['cases']
        if len(case['contestants']) > 1 and fits.search(case['name'])]
    (_, our), (contestant, their), *_ = case['contestants'].items()
    assert ours == f'{rounded(our["best"], ours)} s', work
    assert other == (
        f'{_OTHERS[contestant]}, '
        f'{rounded(their["best"], other.rpartition(",")[2])} s'), work
    assert ratio == rounded(their['best'] / our['best'], ratio), work


def test_cells_of_slices_equal_the_stored_records():
  def text(cell):
    return f'{cell["spare_gib"]:.1f}' if cell['fits'] else 'does not fit'

  (header, lines), = [
      table for table in tables(SPEED) if table[0][0] == 'Qwen3']
  for size, policies, *cells in lines:
    for name, cell in zip(header[2:], cells):
      key = (f'configs/pod.py:size={size.lower()},policies={policies},'
             f'topology={name}')
      found = stored('slices').get(key)
      assert cell == (text(found) if found else ''), key


def stored_tables() -> dict[str, tuple[list[str], dict[str, list[str]]]]:
  """Title -> (header, first cell -> other cells).

  'Games' and 'Depot' join the tables of all games, and of all presets.
  """
  found, joined = {}, {'Games': ([], {}), 'Depot': ([], {})}
  for title in re.findall('^## (.*)$', STORED_TABLES, re.MULTILINE):
    (header, lines), = tables(section(STORED_TABLES, f'## {title}'))
    found[title] = header[1:], {name: cells for name, *cells in lines}
    group = (
        'Games' if title.endswith(': systems') else
        'Depot' if title.startswith('Depot: `') else '')
    if group:
      for name, *cells in lines:
        joined[group][1].setdefault(name, []).extend(cells)
  return found | joined


def test_numbers_of_a_row_are_in_the_row_of_one_stored_table():
  def signed(cells):
    return {*re.findall(r'[−+]?\d+(?:\.\d+)?', ' | '.join(cells))}

  known = [lines for _, lines in stored_tables().values()]
  num_tables = 0
  for header, lines in itertools.chain(*map(tables, RESULTS.values())):
    if 'seeds' in header:
      num_tables += 1
      assert any(
          all(name in stored_lines and signed(cells) <= signed(
              stored_lines[name]) for name, *cells in lines)
          for stored_lines in known), (
              f'{header}: copy the numbers from paper/results/*/tables.md.')
  assert num_tables >= 9


def test_quoted_p_are_adjusted():
  adjusted = [
      float(cell) for header, lines in stored_tables().values()
      for cells in lines.values() for name, cell in zip(header, cells)
      if name.startswith('p (Holm)') and cell and '<' not in cell]
  for name, page in RESULTS.items():
    quoted = re.findall(r'\bp (\d\.\d+)', ' '.join(page.split()))
    assert quoted
    for shown in quoted:
      assert shown in {rounded(p, shown) for p in adjusted}, (name, shown)


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
      'benchmarks.sandbox': sandbox.parse,
      'benchmarks.run': lambda args: run.parse(
          ['step' if word == 'NAME' else word for word in args])}
  for _, (program, *words) in commands():
    if program == 'bash':
      for path in words:
        assert (
            '/' not in path or '*' in path or path.startswith('runs/')
            or (ROOT / path.partition(':')[0]).exists()), path
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
