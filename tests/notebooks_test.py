"""The notebooks run from their first cell to their last."""

import nbclient
import nbformat

from tests import checkout

FOLDER = checkout.ROOT / 'notebooks'
# The second notebook reads the run of the first.
NAMES = 'train_a_team', 'read_a_run', 'write_an_environment'
# Smaller settings for the test.
CHANGES = {
    'num_tasks = 8': 'num_tasks = 2', 'num_steps = 8': 'num_steps = 1',
    'validate_every = 4': 'validate_every = 1',
    'checkpoint_every = 4': 'checkpoint_every = 1',
    'validation[:32]': 'validation[:4]', 'test[:50]': 'test[:4]'}


def _printed(notebook):
  """Output of each code cell."""
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
    if name == 'train_a_team':
      settings = notebook.cells[3]
      for old, new in CHANGES.items():
        assert old in settings.source
        settings.source = settings.source.replace(old, new)
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


def test_the_page_shows_the_environment_of_the_example():
  page = (checkout.ROOT / 'docs/environments.md').read_text()
  example = checkout.ROOT / 'docs/examples/guess_number/env.py'
  assert f'```python\n{example.read_text()}```' in page
