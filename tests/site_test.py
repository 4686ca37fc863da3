"""The documentation site builds without a warning and has no broken link."""

import html
import importlib.util
import re
import subprocess
import sys
import urllib.parse

import pytest

from tests import checkout

_NEEDED = ('material', 'mkdocs_api_autonav', 'mkdocstrings_handlers')


@pytest.mark.long
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, _NEEDED)),
    reason='mkdocs-material, mkdocs-api-autonav or mkdocstrings-python is not '
    'installed; the extras docs and test have them')
def test_links_of_the_site_resolve(tmp_path):
  # Strict mode fails for broken links in Markdown and for pages that the
  # navigation lacks. Links in HTML are checked here.
  built = subprocess.run(
      [sys.executable, '-m', 'mkdocs', 'build', '--site-dir', tmp_path],
      cwd=checkout.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True)
  assert built.returncode == 0, built.stdout
  anchors, links = {}, {}
  for path in tmp_path.rglob('*.html'):
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
