"""MBPP (arXiv 2108.07732): the official splits of both versions.

The config `sanitized` has 120 tasks to train, 43 to validate, 257 to test and 7
for prompts; `full` has 374, 90, 500 and 10. Tasks whose tests use a class are
left out, because values reach a program as literals. A statement shows the
first test as an example; the official prompt shows all.
"""

from __future__ import annotations

import ast
import textwrap

import tensorflow_datasets as tfds

from environments.programming import problems_dataset_builder as base
from environments.programming.humaneval import humaneval_dataset_builder


class Builder(base.ProblemsBuilder):
  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name='sanitized', description='427 tasks.'),
      tfds.core.BuilderConfig(name='full', description='974 tasks.')]
  HUB_REPO = 'google-research-datasets/mbpp'

  @property
  def SPLIT_FILES(self):
    return {
        split: (f'{self.builder_config.name}/{split}-*.parquet',)
        for split in ('train', 'validation', 'test', 'prompt')}

  @property
  def FIELDS(self):
    fields = {'code': (str,), 'test_list': (list[str],)}
    if self.builder_config.name == 'full':
      return {'text': (str,), 'test_setup_code': (str,), **fields}
    return {'prompt': (str,), 'test_imports': (list[str],), **fields}

  def task(self, row):
    if self.builder_config.name == 'full':
      text, setup = row['text'], row['test_setup_code'].strip()
    else:
      text, setup = row['prompt'], '\n'.join(row['test_imports']).strip()
    tests = row['test_list']
    function = _tested_function(row['code'], setup, tests)
    asserts = '\n'.join(ast.unparse(ast.parse(test)) for test in tests)
    check = f'def check({function.name}):\n' + textwrap.indent(asserts, '    ')
    return base.make_check_task(
        _make_stub(function, text.strip(), tests[0]), f'{setup}\n{check}\n',
        function.name, humaneval_dataset_builder.TIME_LIMIT,
        preamble=f'{setup}\n', reference=row['code'].replace('\r\n', '\n'))


def _tested_function(
    code: str, setup: str, tests: list[str]) -> ast.FunctionDef:
  """Returns the only function of the reference that the tests call."""
  try:
    names = {
        node.id for test in tests for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.Name)}
    tested = [
        node for node in ast.parse(code).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and node.name in names]
    classes = [
        node.name for node in (*ast.parse(setup).body, *tested)
        if isinstance(node, ast.ClassDef)]
  except SyntaxError as error:
    raise base.UnusableRowError(
        f'its code or a test is not Python: {error}') from error
  if classes:
    raise base.UnusableRowError(
        f'its tests use the class {classes[0]}; instances cannot be sent to a '
        'program')
  if len(tested) != 1:
    raise base.UnusableRowError(
        f'its tests call {len(tested)} functions of its code instead of 1')
  return tested[0]


def _make_stub(function: ast.FunctionDef, text: str, example: str) -> str:
  """Returns the head of the function with a docstring."""
  head = f'def {function.name}({ast.unparse(function.args)}):'
  example = example.strip().replace('\n', '\n        ')
  docstring = f'{text}\n\n>>> {example}'.replace('\\', '\\\\')
  docstring = docstring.replace('"""', "'''")
  return f'{head}\n' + textwrap.indent(f'"""{docstring}\n"""\n', '    ')
