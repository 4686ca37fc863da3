"""AIME 2024: 30 competition problems."""

from environments.math_problems import problems_dataset_builder as base


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'HuggingFaceH4/aime_2024'
  SPLIT_FILES = {'test': ('data/train-*.parquet',)}  # The hub's only split.
  FIELDS = {'problem': (str,), 'answer': (str, int)}
