"""Programs run outside the checkout, and a plain install has few names."""

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile

import pytest

from tests import checkout

ROOT = checkout.ROOT
_BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # Each build changes sys.argv.
build_meta.build_wheel(folder + '/plain')
build_meta.build_editable(folder + '/editable')
"""


def test_python_example_of_the_docs_runs(tmp_path):
  page = (ROOT / 'docs/running.md').read_text()
  start = page.index('    from atgrpo_jax import api\n')
  program = textwrap.dedent(page[start:page.index('\n|', start)])
  head, found, _ = program.partition('results = run.train()')
  assert found
  (tmp_path / 'program.py').write_text(
      f"{head}print(run.experiment.policies['shared'].folder)\n")
  printed = subprocess.run(
      [sys.executable, 'program.py'], cwd=tmp_path, text=True, check=True,
      # The path that an editable install makes.
      stdout=subprocess.PIPE, env=os.environ | {'PYTHONPATH': str(ROOT)}).stdout
  assert printed.strip() == str(ROOT / 'models/nano')


def test_only_an_editable_install_adds_configs(tmp_path):
  pytest.importorskip('setuptools', minversion='77')
  copy = tmp_path / 'checkout'
  for name in 'atgrpo_jax', 'environments', 'configs', 'paper', 'models':
    shutil.copytree(
        ROOT / name, copy / name,
        ignore=shutil.ignore_patterns('results', '*.safetensors'))
  for name in 'setup.py', 'pyproject.toml':
    shutil.copy(ROOT / name, copy)
  subprocess.run([sys.executable, '-c', _BUILD, tmp_path], cwd=copy, check=True)
  wheel, = (tmp_path / 'plain').glob('*.whl')
  names = zipfile.ZipFile(wheel).namelist()
  assert {name.partition('/')[0] for name in names} == {
      'atgrpo_jax', 'environments', 'atgrpo_jax-0.1.0.dist-info'}
  assert 'atgrpo_jax/viewer/static/style.css' in names
  wheel, = (tmp_path / 'editable').glob('*.whl')
  with zipfile.ZipFile(wheel) as file:
    path, = (name for name in file.namelist() if name.endswith('.pth'))
    assert file.read(path).decode().strip() == str(copy)
