"""MBPP: google-research-datasets/mbpp of the hub (arXiv 2108.07732)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
import textwrap
from typing import Any

import tensorflow_datasets as tfds

from environments import dataset_files
from environments.programming import problems_dataset_builder as base

TIME_LIMIT = 3.0  # As of HumanEval.


class Builder(base.ProblemsBuilder):
  """The official splits of both versions.

  The config `sanitized` has 120 tasks to train, 43 to validate, 257 to test and
  7 for prompts; `full` has 374, 90, 500 and 10. Those whose tests use a class
  are left out, since values go to a program as literals. A statement has the
  first test, as an example; the official prompt shows all.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'Text, tests and code of each row.'}
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='sanitized', description='427 tasks.'),
      tfds.core.BuilderConfig(name='full', description='974 tasks.')]
  HUB_REPO = 'google-research-datasets/mbpp'
  HUB_REVISION = 'main'

  @property
  def SPLIT_FILES(self) -> dict[str, tuple[str, ...]]:
    return {
        split: (f'{self.builder_config.name}/{split}-*.parquet',)
        for split in ('train', 'validation', 'test', 'prompt')}

  @property
  def FIELDS(self) -> Mapping[str, tuple[dataset_files.FieldType, ...]]:
    shared = {'code': (str,), 'test_list': (list[str],)}
    if self.builder_config.name == 'full':
      return {'text': (str,), 'test_setup_code': (str,), **shared}
    return {'prompt': (str,), 'test_imports': (list[str],), **shared}

  def task(self, row: dataset_files.Row) -> dict[str, Any]:
    if self.builder_config.name == 'full':
      text, setup = row['text'], row['test_setup_code']
    else:
      text, setup = row['prompt'], '\n'.join(row['test_imports'])
    function = _tested_function(row['code'], setup, row['test_list'])
    name, setup = function.name, setup.strip()
    stub = _make_stub(function, text.strip(), row['test_list'][0])
    asserts = '\n'.join(
        ast.unparse(ast.parse(test)) for test in row['test_list'])
    check = f'def check({name}):\n' + textwrap.indent(asserts, '    ')
    return base.make_task(
        statement=stub, comparison='check',
        tests=base.pack_check(f'{setup}\n{check}\n', name),
        time_limit=TIME_LIMIT,
        starter_code=stub, entry_point=name, preamble=f'{setup}\n',
        reference=row['code'].replace('\r\n', '\n'))


def _tested_function(
    code: str, setup: str, tests: list[str]) -> ast.FunctionDef:
  """The function of the reference that the tests call."""
  try:
    names = {
        node.id for test in tests for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.Name)}
    functions = [
        node for node in ast.parse(code).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and node.name in names]
    classes = [
        node.name for node in ast.parse(setup).body
        if isinstance(node, ast.ClassDef)]
  except SyntaxError as error:
    raise base.UnusableRowError(
        f'its code or a test is no Python: {error}') from error
  classes += [
      node.name for node in functions if isinstance(node, ast.ClassDef)]
  if classes:
    raise base.UnusableRowError(
        f'its tests use the class {classes[0]}, of which nothing can be handed '
        'to a program')
  if len(functions) != 1:
    raise base.UnusableRowError(
        f'its tests call {len(functions)} functions of its code, not one')
  return functions[0]


def _make_stub(function: ast.FunctionDef, text: str, example: str) -> str:
  """The head of the function, and the text as its documentation."""
  head = f'def {function.name}({ast.unparse(function.args)}):'
  example = example.strip().replace('\n', '\n        ')
  documentation = f'{text}\n\n>>> {example}'.replace('\\', '\\\\')
  documentation = documentation.replace('"""', "'''")
  return f'{head}\n' + textwrap.indent(
      f'"""{documentation}\n"""\n', '    ')
