"""The site of mkdocs.yml: all pages, no warning, no link that leads nowhere."""

import html
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest

from tests import checkout

ROOT = checkout.ROOT
CONFIG = ROOT / 'mkdocs.yml'
_NEEDED = ('material', 'mkdocs_api_autonav', 'mkdocstrings_handlers')

needs_mkdocs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, _NEEDED)),
    reason='mkdocs-material, mkdocs-api-autonav or mkdocstrings-python is not '
    'installed; the extras docs and test have them')


def build(folder: pathlib.Path, site: pathlib.Path):
  """What mkdocs says of the checkout `folder`, whose site goes to `site`."""
  return subprocess.run(
      [sys.executable, '-m', 'mkdocs', 'build', '--site-dir', site],
      cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp('built') / 'site'
  built = build(ROOT, folder)
  assert built.returncode == 0, built.stdout
  return folder


def test_the_site_names_each_page():
  named = re.findall(r'^ +- [\w ]+: (\S+\.md)$', CONFIG.read_text(), re.M)
  assert all((ROOT / name).is_file() for name in named)
  assert sorted(named) == sorted([
      'README.md', 'CHANGELOG.md', 'paper/results/nano/tables.md', *(
          path.relative_to(ROOT).as_posix()
          for pattern in ('docs/*.md', 'models/*/README.md')
          for path in ROOT.glob(pattern))])


@needs_mkdocs
def test_each_public_module_has_a_page(site):
  for package in ('atgrpo_jax', 'environments'):
    for path in (ROOT / package).rglob('*.py'):
      name = path.relative_to(ROOT).with_suffix('.html').as_posix()
      name = name.replace('__init__', 'index')
      assert (site / 'api' / name).is_file(), name


def _text(page):
  """What is to be read on a page, as one line."""
  return ' '.join(html.unescape(re.sub('<[^>]*>', '', page)).split())


@needs_mkdocs
def test_docstrings_are_rendered(site):
  api = site / 'api'
  losses = (api / 'atgrpo_jax/rl/losses.html').read_text()
  # A formula in a docstring, and the type and the shape of an argument.
  assert re.search('<code>.*surrogate = -w min', losses)
  assert 'mask (Array) – [B, T] bool, True where' in _text(losses)
  protocol = _text((api / 'environments/env_api.html').read_text())
  # A comment, and the fields of a class.
  assert "NO_EFFECT = 'no_effect' Well formed, but the state is" in protocol
  assert 'done (bool) – the episode is over.' in protocol


@needs_mkdocs
def test_each_link_of_the_site_leads_somewhere(site):
  anchors, links = {}, {}
  for path in site.rglob('*.html'):
    page = path.read_text()
    anchors[path] = set(re.findall(r'\bid="?([^\s">]+)', page))
    links[path] = set(
        re.findall(r'<[^>]*? (?:href|src)="?([^\s">]+)', page))
  assert len(links) > 100
  for path, found in links.items():
    if path.name == '404.html':
      continue  # Its links begin at the root of a server.
    for link in map(html.unescape, found):
      parts = urllib.parse.urlsplit(link)
      if not parts.scheme:
        target = (path.parent / parts.path).resolve() if parts.path else path
        assert target.is_file(), f'{path}: {link}'
        assert not parts.fragment or parts.fragment in anchors[target], (
            f'{path}: {link}')


@needs_mkdocs
def test_pages_load_nothing_from_elsewhere(site):
  for path in site.rglob('*.html'):
    loaded = re.findall(
        r'<(?:script|img|iframe|link)\b[^>]*? (?:href|src)="?([^\s">]+)',
        path.read_text())
    assert loaded and not [it for it in loaded if '//' in it], path


@needs_mkdocs
def test_each_fault_is_an_error(tmp_path):
  """A small checkout with one fault of each kind."""
  (tmp_path / 'docs').mkdir()
  for path in (CONFIG, ROOT / 'docs/mkdocs_hooks.py'):
    shutil.copy(path, tmp_path / path.relative_to(ROOT))
  for package in ('atgrpo_jax', 'environments'):
    (tmp_path / package).mkdir()
  (tmp_path / 'environments/__init__.py').touch()
  (tmp_path / 'atgrpo_jax/__init__.py').write_text('''
def area(width: float) -> float:
  """Of a square. [Other][atgrpo_jax.other]

  Args:
    height: of it.
  """
''')
  (tmp_path / 'README.md').write_text(
      '# A\n\n[gone](docs/gone.md) [nowhere](docs/sandbox.md#nowhere)\n')
  for name in ('sandbox', 'unnamed'):
    (tmp_path / f'docs/{name}.md').write_text('# B\n')
  built = build(tmp_path, tmp_path / 'site')
  assert built.returncode == 1
  warnings = re.findall(r'^WARNING -  (.*(?:\n  - .*)*)', built.stdout, re.M)
  for words in (
      "'height' does not appear", "target 'atgrpo_jax.other'",
      "'docs/gone.md', but the target is not found",
      "does not contain an anchor '#nowhere'", '- docs/unnamed.md',
      "'CHANGELOG.md' is included in the 'nav' configuration"):
    assert any(words in it for it in warnings), (words, built.stdout)
