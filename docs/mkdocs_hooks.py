"""Hooks of mkdocs.yml: which files the site has, and how sources are read.

A page has the same path as in the checkout, so its links work in both. Linked
files are added to the site. A linked folder becomes a page with the text of its
files. A linked file that is neither Markdown nor a picture becomes a page too.
"""

import itertools
import logging
import pathlib
import re
import textwrap

import griffe
from mkdocs.config import defaults
from mkdocs.structure import files as files_lib
from mkdocs.structure import pages

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The path in a link to a file or folder of the checkout.
_LINK = re.compile(r'(?<=\]\()[^)\s#:]+(?=[)#])')

# The plugin logs a line per module.
logging.getLogger('mkdocs.plugins.api-autonav').setLevel(logging.WARNING)


def on_files(
    files: files_lib.Files, *, config: defaults.MkDocsConfig
) -> files_lib.Files:
  """Replaces the files of docs/ by all pages and the files they link to."""
  paths = [
      *(ROOT / f'{x}.md' for x in ('README', 'CONTRIBUTING', 'CHANGELOG')),
      *sorted(ROOT.glob('docs/*.md')),
      *sorted(ROOT.glob('models/*/README.md'))]
  found = [file for file in files if file.src_dir != config.docs_dir]
  for path in paths:  # Grows in the loop.
    name = path.relative_to(ROOT).as_posix()
    if _is_shown(path):
      found.append(files_lib.File.generated(
          config, f'{name}.md', content=_page_of(path),
          inclusion=files_lib.InclusionLevel.NOT_IN_NAV))
    else:
      found.append(
          files_lib.File.generated(config, name, abs_src_path=str(path)))
    if path.suffix == '.md':
      for link in _LINK.findall(path.read_text('utf-8')):
        target = (path.parent / link).resolve()
        if target.exists() and target not in paths:
          paths.append(target)
  return files_lib.Files(found)


def on_page_markdown(markdown: str, *, page: pages.Page, **_) -> str:
  """Redirects links to folders and files to the pages that show them."""
  folder = (ROOT / page.file.src_uri).parent
  return _LINK.sub(
      lambda link: link[0] + '.md' * _is_shown(folder / link[0]), markdown)


def _is_shown(path: pathlib.Path) -> bool:
  return path.is_dir() or path.is_file() and path.suffix not in ('.md', '.png')


def _page_of(path: pathlib.Path) -> str:
  """Markdown with the text of a file, or of each file in a folder."""
  parts = [f'# {path.name}\n']
  for file in sorted(path.glob('*.*')) if path.is_dir() else [path]:
    if text := file.read_text('utf-8'):
      parts += [f'## `{file.name}`\n'] * path.is_dir()
      parts.append(f'~~~~{file.suffix.removeprefix(".")}\n{text}~~~~\n')
  return '\n'.join(parts)


class HouseStyle(griffe.Extension):
  """Converts docstrings and comments to the form that mkdocstrings renders."""

  def on_object(self, *, obj: griffe.Object, **_) -> None:
    if obj.docstring:
      obj.docstring.value = _indent_more(obj.docstring.value)

  def on_attribute(self, *, attr: griffe.Attribute, **_) -> None:
    """Uses the comment of an attribute as its docstring."""
    if not attr.docstring and (comment := _comment(attr)):
      attr.docstring = griffe.Docstring(
          comment, lineno=attr.lineno, parent=attr)


def _indent_more(docstring: str) -> str:
  """Indents code and tables by four, as Markdown needs, instead of two."""
  return '\n\n'.join(
      textwrap.indent(part, '  ') if re.match(r'  [^\s\d-]', part) else part
      for part in docstring.split('\n\n'))


def _comment(attr: griffe.Attribute) -> str:
  """The comment at the end of an attribute's line, or in the lines above."""
  lines = attr.filepath.read_text('utf-8').splitlines()
  _, found, comment = lines[attr.endlineno - 1].partition('  # ')
  if found:
    return comment
  above = itertools.takewhile(
      lambda line: line.startswith('# '),
      map(str.strip, reversed(lines[:attr.lineno - 1])))
  return '\n'.join(line.removeprefix('# ') for line in [*above][::-1])
