"""Warm start of `models/reckoner`, the small base model of words and programs.

  python -m atgrpo_jax.main --mode pretrain --config configs/reckoner.py \
      --workdir runs/reckoner

It drills copying numbers, then solving stories
(`environments/math_problems/stories`) and following recipes
(`environments/programming/recipes`), then the same in the prompts of the roles,
and at last learns drafts, in which a third of all choices is wrong, answers of
all kinds, and that a helper mostly takes all steps of a recipe.
"""

from ml_collections import config_dict

from configs import nano


def _taught(groups, **kinds):
  return {'groups': groups, 'kinds': kinds}


def get_config():
  c = nano.get_config()
  c.unlock()
  c.seed = 1
  c.tokenizer.vocab_size = 1536
  c.tokenizer.num_demonstrations = 200
  # A number is one token, and so are an operator and what is asked of a list:
  # each is a choice. A bracket behind a letter is a call.
  c.tokenizer.pieces = (
      r'\n *|(?:print\(|return )(?:sum|len|min|max)|\d\d?|//|[-+*/<>%]|'
      r'(?<![a-z])[()]')

  c.tasks = config_dict.ConfigDict()
  c.tasks.stories = {
      'module': 'environments.math_problems.stories.demonstrations',
      'max_turns': (1, 2),
      'copying': {
          'copyist': _taught(64, adopt=1.0)},
      'solving': {
          'copyist': _taught(8, adopt=1.0), 'solver': _taught(32, right=1.0)},
      'roles': {
          'tool': _taught(14, right=1.0), 'reasoner': _taught(10, adopt=1.0)},
      'practice': {
          'tool': _taught(10, right=0.5, draft=0.3, broken=0.2),
          'reasoner': _taught(6, adopt=0.6, invent=0.2, silent=0.2),
          'solo': _taught(1, invent=0.8, silent=0.2)},
      'mixture': {
          'tool': _taught(7, right=0.0, draft=0.8, broken=0.2),
          'reasoner': _taught(5, adopt=0.3, invent=0.5, silent=0.2),
          'solo': _taught(1, invent=0.8, silent=0.2)},
      'division': {
          'tool': _taught(7, right=0.3, draft=0.5, broken=0.2),
          'reasoner': _taught(5, adopt=0.3, invent=0.5, silent=0.2),
          'solo': _taught(1, invent=0.8, silent=0.2)}}
  drafts = dict(right=0.0, draft=0.8, broken=0.2)
  few_right = dict(right=0.2, draft=0.6, broken=0.2)
  tests = dict(case=0.4, guess=0.4, broken=0.2)
  c.tasks.contests = {
      'module': 'environments.programming.recipes.coder_demonstrations',
      'max_turns': (1, 2),
      'copying': {},
      'solving': {'writer': _taught(24, right=1.0)},
      'roles': {
          'coder': _taught(8, right=1.0), 'tester': _taught(2, **tests),
          'solo': _taught(2, right=1.0)},
      'practice': {
          'coder': _taught(5, right=0.5, draft=0.3, broken=0.2),
          'tester': _taught(3, **tests),
          'solo': _taught(3, right=0.5, draft=0.3, broken=0.2)},
      'mixture': {
          'coder': _taught(5, **drafts), 'tester': _taught(3, **tests),
          'solo': _taught(3, **drafts)},
      'division': {
          'coder': _taught(5, **few_right), 'tester': _taught(3, **tests),
          'solo': _taught(3, **few_right)}}
  helpers = dict(whole=0.25, first=0.35, broken=0.4)
  callers = dict(asks=0.15, rest=0.15, alone=0.3, broken=0.4)
  alone = dict(alone=0.6, broken=0.4)
  c.tasks.functions = {
      'module': 'environments.programming.recipes.writer_demonstrations',
      'max_turns': (1,), 'copying': {}, 'solving': {},
      'roles': {
          'aux': _taught(3, whole=0.5, first=0.5),
          'main': _taught(3, asks=0.3, rest=0.3, alone=0.4),
          'solo': _taught(2, alone=1.0)},
      **dict.fromkeys(
          ('practice', 'mixture'), {
              'aux': _taught(3, **helpers), 'main': _taught(4, **callers),
              'solo': _taught(2, **alone)}),
      'division': {
          'aux': _taught(3, whole=0.45, first=0.1, broken=0.45),
          'main': _taught(4, asks=0.35, rest=0.05, alone=0.15, broken=0.45),
          'solo': _taught(2, **alone)}}
  c.phases = config_dict.ConfigDict()
  c.phases.copying = {'order': 0, 'num_steps': 500, 'group_size': 1}
  c.phases.solving = {'order': 1, 'num_steps': 800, 'group_size': 1}
  c.phases.roles = {'order': 2, 'num_steps': 1800, 'group_size': 1}
  c.phases.practice = {'order': 3, 'num_steps': 300, 'group_size': 4}
  c.phases.mixture = {'order': 4, 'num_steps': 200, 'group_size': 4}
  c.phases.division = {'order': 5, 'num_steps': 200, 'group_size': 4}

  c.buckets.prompt = (48, 80, 144, 256)
  c.buckets.completion = (16, 32, 64)
  c.buckets.groups = (16,)
  c.lock()
  return c
