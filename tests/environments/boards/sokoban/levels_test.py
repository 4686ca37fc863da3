"""Text levels of Boxoban and Microban, and levels that cannot be read."""

import json

import pytest

from environments import datasets
from environments.boards.sokoban import sokoban_levels_dataset_builder as levels

BOXOBAN = """
; 0
##########
#  #######
#  #######
# $@######
#  $.#####
#   ######
#. #######
## #######
## #######
##########

; 1
##########
#@$.######
##########
"""
MICROBAN = """\ufeff####
# .#
#  ###
#*@  #
#  $ #
#  ###
####

; 1 Title: A # in a title

  #####
###   #
#-_$+#
######
"""


def _copy(tmp_path, files):
  for name, content in files.items():
    path = tmp_path / 'downloads/manual/sokoban_levels' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())


def _load(tmp_path, split):
  return datasets.load(levels.__name__, split, str(tmp_path))


def test_files_and_folders_become_splits(tmp_path):
  _copy(tmp_path, {
      'Microban-1.txt': MICROBAN.replace('\n', '\r\n'),
      'train/000.txt': BOXOBAN, 'train/deep/001.txt': MICROBAN,
      'train/README.md': '#@'})
  first, second = _load(tmp_path, 'Microban_1')
  assert json.loads(json.dumps(first)) == {
      'task_id': 'sokoban_levels/Microban_1/0',
      'grid': ['######', '#..###', '#..###', '#....#', '#....#', '#..###',
               '######'],
      'player': [3, 2], 'boxes': [[3, 1], [4, 3]], 'goals': [[1, 2], [3, 1]]}
  assert (second['grid'], second['player'], second['goals']) == (
      ['#######', '###...#', '#....##', '#######'], [2, 4], [[2, 4]])
  train = _load(tmp_path, 'train')
  assert [len(task['boxes']) for task in train] == [2, 1, 2, 1]
  assert train[0]['goals'] == [[4, 4], [6, 1]]
  # A changed file is read again.
  _copy(tmp_path, {'Microban-1.txt': BOXOBAN})
  assert len(_load(tmp_path, 'Microban_1')[0]['grid']) == 10


@pytest.mark.parametrize('rows, words', [
    ('#####\n# $.#\n#####', '0 players'),
    # An opening on each side.
    ('#####\n#@$.#\n### #', 'not enclosed'), ('####\n#@$.\n####', 'enclosed'),
    (' ####\n@ $.#\n ####', 'not enclosed'), ('#@$.#\n#####', 'enclosed'),
    ('########\n#@$.## #\n#####$.#\n########', 'free cells'),
    ('#####\n#@$.#\n#  x#\n#####', 'not enclosed')])
def test_a_level_that_cannot_be_played_is_named_by_its_line(
    rows, words, tmp_path):
  path = tmp_path / 'levels.txt'
  path.write_text(f'Title\n\n{rows}\n')
  with pytest.raises(ValueError, match=f'levels.txt, line 3: .*{words}'):
    list(levels.read_levels(path))


def test_missing_and_ambiguous_files_are_named(tmp_path):
  with pytest.raises(ValueError, match='sokoban_levels has no levels'):
    _load(tmp_path, 'train')
  _copy(tmp_path, {'a-b.txt': MICROBAN, 'a_b.txt': MICROBAN})
  with pytest.raises(ValueError, match="another file or folder .*'a_b'"):
    _load(tmp_path, 'train')
