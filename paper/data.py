"""Which files of the hub cells need, and how many bytes of them are here."""

from __future__ import annotations

from collections.abc import Iterable
import importlib
import os
import pathlib

from environments import dataset_files
from environments.math_problems.maths import maths_dataset_builder as maths
from paper import cell as cell_lib


def describe(cells: Iterable[cell_lib.Cell]) -> list[str]:
  """A line for each data set of the hub that cells read, and its bytes.

  What is not here has no number: nobody is asked for it.
  """
  repositories = {}
  for given in dict.fromkeys(cell.config for cell in cells):
    file, _, argument = given.partition(':')
    module = importlib.import_module(file.removesuffix('.py').replace('/', '.'))
    dataset = module.get_config(argument).dataset
    for builder in _builders(dataset.builder, dataset.config):
      repositories[builder.HUB_REPO] = builder
  root = pathlib.Path(
      os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')).expanduser()
  lines = []
  for repository, builder in sorted(repositories.items()):
    folder = root / 'downloads' / 'manual' / builder.name
    sizes = [x.stat().st_size for x in folder.rglob('*') if x.is_file()]
    found = f'{sum(sizes):,} bytes' if sizes else 'nothing'
    lines.append(f'{repository}: {found} in {folder}')
  return lines


def _builders(
    name: str, config: str) -> list[type[dataset_files.FilesBuilder]]:
  """The builder of files that a config names, or those that it is made of."""
  builder = importlib.import_module(name).Builder
  if builder is maths.Builder:
    parts = (config or builder.DEFAULT_BUILDER_CONFIG_NAME, *maths.TESTS)
    return [
        importlib.import_module(maths.module_of(part)).Builder
        for part in parts]
  return [builder] if issubclass(builder, dataset_files.FilesBuilder) else []
