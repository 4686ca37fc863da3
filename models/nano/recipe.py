r"""Recipe of `models/nano`, the base model of the board games.

  python -m models.nano.recipe --out runs/nano

It takes half an hour on two cores. The demonstrations have mixed quality: the
model learns every kind of behaviour and mostly shows useless ones, so
reinforcement learning has something to select.
"""

from models import pretrain
from models.nano import demonstrations

# Game -> prompts per step that drill copying the only proposal, and copying one
# of several. A path is longer than a small grid. Plan-Path teaches the paths of
# Sokoban as well.
_COPIES = {'plan_path': (26, 12), 'sokoban': (2, 4), 'sudoku': (4, 8)}
_PROGRAMS = dict(right=0.25, greedy=0.25, wrong=0.25, broken=0.25)
_COPY = dict(adopt=1.0)


def _drill(num_steps, group_size, num_tools, copyist_ratio, chooser=None):
  lessons = {}
  for name, (copies, choices) in _COPIES.items():
    lessons[name] = {
        'copyist': (copies // copyist_ratio, _COPY),
        'tool': (num_tools, _PROGRAMS)}
    if chooser:
      lessons[name][chooser] = (choices, _COPY)
  return pretrain.Phase(num_steps, group_size, lessons)


def _team(num_steps, programs, decisions, inventions):
  """A phase with all roles."""
  return pretrain.Phase(num_steps, 4, dict.fromkeys(_COPIES, {
      'tool': (3, programs),
      'tool_1': (1, programs),
      'planner': (4, decisions),
      'judge': (4, decisions),
      'advisor_1': (1, inventions),
      'solo': (1, inventions)}))


RECIPE = pretrain.Recipe(
    tasks={
        'plan_path': demonstrations.PLAN_PATH.demonstrate,
        'sokoban': demonstrations.SOKOBAN.demonstrate,
        'sudoku': demonstrations.SUDOKU.demonstrate},
    # No token crosses a newline and its indentation, a quoted move and its
    # comma, a digit, or five cells of a grid. Tokens may cross word boundaries,
    # which keeps prompts short.
    tokenizer=pretrain.BytePairs(
        2048, r'\n *|"[UDLR]"(?:, )?|\d|(?<=[#.AG\n])[#.AG]{5}(?=[#.AG\n])',
        num_steps=100),
    phases={
        'drill': _drill(600, 1, num_tools=2, copyist_ratio=1),
        'choice': _drill(400, 4, 1, copyist_ratio=2, chooser='chooser'),
        'judgement': _drill(350, 4, 1, copyist_ratio=2, chooser='judge'),
        'practice': _team(
            350, _PROGRAMS, dict(adopt=0.6, ignore=0.2, invent=0.2),
            dict(ignore=0.5, invent=0.5)),
        'mixture': _team(
            200, dict(right=0.2, greedy=0.1, wrong=0.3, broken=0.4),
            dict(adopt=0.12, ignore=0.05, invent=0.83),
            dict(ignore=0.1, invent=0.9)),
    },
    prompt_buckets=(96, 128, 176, 288, 416),
    completion_buckets=(40, 104, 144),
    groups_per_batch=64)

if __name__ == '__main__':
  pretrain.main(lambda: RECIPE, __doc__)
