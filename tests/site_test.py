"""The site of mkdocs.yml: all pages, no warning, no link that leads nowhere."""

import html
import importlib.util
import pathlib
import re
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
