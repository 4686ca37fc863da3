"""The notebooks run from their first cell to their last."""


import nbclient
import nbformat

from tests import checkout

FOLDER = checkout.ROOT / 'notebooks'
# In the order in which they are read; the second reads the run of the first.
NAMES = 'train_a_team', 'read_a_run', 'write_an_environment'


def _printed(notebook):
  """What each code cell printed."""
  return [
      ''.join(output.get('text', '') for output in cell.outputs)
      for cell in notebook.cells if cell.cell_type == 'code']


def test_notebooks_run(tmp_path, monkeypatch):
  for name in ('models', 'docs'):
    (tmp_path / name).symlink_to(checkout.ROOT / name)
  monkeypatch.setenv('PYTHONPATH', str(checkout.ROOT))
  printed = {}
  for name in NAMES:
    notebook = nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600,
        resources={'metadata': {'path': str(tmp_path)}}).execute()
    printed[name] = _printed(notebook)
  assert 'held-out success: before' in printed['train_a_team'][2]
  assert printed['train_a_team'][4].count('\n' + '-' * 40 + '\n') == 2
  assert 'turn 1, tool' in printed['read_a_run'][2]
  assert printed['read_a_run'][4] == 'runs/notebook/report.html\n'
  assert 'turn 1, advisor: You are the advisor.' in (
      printed['write_an_environment'][3])
  assert (tmp_path / 'runs/notebook/report.html').exists()
