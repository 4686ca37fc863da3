"""Polaris: 53,000 training problems."""

from environments.math_problems import problems_dataset_builder as base


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'POLARIS-Project/Polaris-Dataset-53K'
  SPLIT_FILES = {'train': ('*.jsonl', 'data/train-*.parquet', '*.parquet')}
  FIELDS = {'problem': (str,), 'answer': (str,)}
