"""AIME 2025: 30 competition problems."""

from environments.math_problems import problems_dataset_builder as base


class Builder(base.ProblemsBuilder):
  HUB_REPO = 'opencompass/AIME2025'
  SPLIT_FILES = {'test': ('aime2025-*.jsonl',)}
  FIELDS = {'question': (str,), 'answer': (str, int)}
