"""Makes a small model that answers sums.py in the right form, often wrongly."""

import sums

from models import pretrain


def demonstrate(rng, role, kinds, group_size):
  """Several answers to a random prompt of a role."""
  a, b = (int(x) for x in rng.integers(1, 20, 2))
  state = {'a': a, 'b': b, 'proposal': 'none'}
  if role == 'checker':
    state['proposal'] = a + b + int(rng.integers(-9, 10))
  messages = sums.Sums().observe(state, role)
  return pretrain.Demonstration(state, messages, tuple(
      f'#### {a + b if kind == "right" else rng.integers(2, 39)}'
      for kind in pretrain.draw_kinds(rng, kinds, group_size)))


LESSON = pretrain.Lesson(num_groups=8, kinds={'right': 0.5, 'wrong': 0.5})
RECIPE = pretrain.Recipe(
    tasks={'sums': demonstrate},
    phases={'answers': pretrain.Phase(
        num_steps=300, group_size=4,
        lessons={'sums': {'solver': LESSON, 'checker': LESSON}})},
    tokenizer=pretrain.BytePairs(512, r'\d+', num_steps=20),
    prompt_buckets=(128,), completion_buckets=(16,), groups_per_batch=16)

if __name__ == '__main__':
  pretrain.main(RECIPE)
