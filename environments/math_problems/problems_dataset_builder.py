"""Shared base of the mathematics data sets of the Hugging Face hub."""

from __future__ import annotations

from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files

FEATURES = {'problem': tfds.features.Text(), 'answer': tfds.features.Text()}


class ProblemsBuilder(dataset_files.FilesBuilder, skip_registration=True):
  """Reads `problem` or `question` and `answer`; see `FilesBuilder`."""

  VERSION = tfds.core.Version('1.0.0')
  FEATURES = FEATURES

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    problem = row['problem' if 'problem' in row else 'question']
    return make_task(problem, str(row['answer']))


def make_task(problem: str, answer: str) -> dict[str, str]:
  """Returns a task without its id; ValueError if a text is empty."""
  fields = {'problem': problem.strip(), 'answer': answer.strip()}
  for name, value in fields.items():
    if not value:
      raise ValueError(f'the {name} is empty')
  return fields
