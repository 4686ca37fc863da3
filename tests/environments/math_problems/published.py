"""Published rows of the hub data sets, and helpers that write and load them."""

import json

import pyarrow
from pyarrow import parquet

from environments import datasets
from environments.math_problems.dapo import dapo_dataset_builder as dapo

# Data set -> file in its repository, and a row as it is published.
ROWS = {
    'aime24': ('data/train-00000-of-00001.parquet', {
        'id': 60, 'problem': 'Find $x+1$. ', 'solution': 'By hand.',
        'answer': '025', 'url': 'https://example.org', 'year': '2024'}),
    'aime25': ('aime2025-II.jsonl', {
        'question': 'Find $x+1$.', 'answer': '025'}),
    'olympiadbench': (
        'OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet', {
            'id': 1, 'question': 'Find $x+1$.', 'solution': ['By hand.'],
            'final_answer': ['025'], 'context': None, 'unit': None,
            'is_multiple_answer': False}),
    'gsm8k': ('main/test-00000-of-00001.parquet', {
        'question': 'Find $x+1$.', 'answer': 'It is <<24+1=25>>25.\n#### 025'}),
    'polaris': ('polaris-data-53K.jsonl', {
        'problem': 'Find $x+1$.', 'answer': '025', 'difficulty': '3/8'}),
    'dapo': ('data/dapo-math-17k.parquet', {
        'data_source': 'math_dapo', 'ability': 'MATH', 'prompt': [{
            'content': f'{dapo.PREFIX}\n\nFind $x+1$.\n\n{dapo.SUFFIX}',
            'role': 'user'}],
        'reward_model': {'ground_truth': '025', 'style': 'rule'},
        'extra_info': {'index': 'a'}}),
}


def module(name):
  return f'environments.math_problems.{name}.{name}_dataset_builder'


def write(root, name, rows, file=None):
  path = root / 'downloads' / 'manual' / name / (file or ROWS[name][0])
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == '.parquet':
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  else:
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def load(root, name):
  split = 'train' if name in ('polaris', 'dapo') else 'test'
  if name == 'gsm8k':
    write(root, name, [ROWS[name][1]], 'main/train-00000-of-00001.parquet')
  return datasets.load(module(name), split, str(root))
