"""Warm start of `models/nano`, the small base model of this repository.

  python -m atgrpo_jax.main --mode pretrain --config configs/nano.py \
      --workdir runs/nano

The model is trained on demonstrations of mixed quality, so that it masters
every kind of behaviour and mostly shows the useless ones.
"""

from ml_collections import config_dict

# Prompts of one step that drill copying, of the one proposal and of one of
# several: a path is longer than a small grid, and the other games' moves are
# paths as well.
_COPIES = {'plan_path': (26, 12), 'sokoban': (2, 4), 'sudoku': (4, 8)}


def _taught(groups, **kinds):
  return {'groups': groups, 'kinds': kinds}


def _team(programs, decisions, inventions):
  """What tools, who decides, and who proposes or plays alone are taught."""
  return {
      'tool': _taught(3, **programs),
      'tool_1': _taught(1, **programs),
      'planner': _taught(4, **decisions),
      'judge': _taught(4, **decisions),
      'advisor_1': _taught(1, **inventions),
      'solo': _taught(1, **inventions),
  }


def get_config():
  c = config_dict.ConfigDict()
  c.seed = 0
  # A model folder to start from, with its tokenizer; '' starts from nothing,
  # with the tokenizer and dimensions below.
  c.init_folder = ''
  c.save_dtype = 'bfloat16'

  c.tokenizer = config_dict.ConfigDict()
  c.tokenizer.vocab_size = 2048
  # What tokens never cross: a newline with the indentation after it, a quoted
  # move with its comma, a digit, five cells of a grid. All else may merge over
  # word boundaries, which keeps prompts short.
  c.tokenizer.pieces = (
      r'\n *|"[UDLR]"(?:, )?|\d|(?<=[#.AG\n])[#.AG]{5}(?=[#.AG\n])')
  c.tokenizer.num_demonstrations = 100  # Steps' worth.

  c.model = config_dict.ConfigDict()
  c.model.hidden_size = 128
  c.model.intermediate_size = 384
  c.model.num_layers = 4
  c.model.num_heads = 4
  c.model.num_kv_heads = 2
  c.model.head_dim = 32
  c.model.rope_theta = 10000.0
  c.model.norm_eps = 1e-6
  c.model.tied_head = True
  c.model.max_positions = 2048
  c.model.init_std = 0.02

  c.tasks = config_dict.ConfigDict()
  for name, (one, of_several) in _COPIES.items():
    c.tasks[name] = config_dict.ConfigDict()
    task = c.tasks[name]
    task.module = f'environments.boards.{name}.demonstrations'
    task.max_turns = (1, 2, 3, 4, 6, 8)  # Limits of an episode; one is drawn.
    # phase -> role -> prompts of one step, and probabilities of the kinds.
    programs = dict(right=0.25, greedy=0.25, wrong=0.25, broken=0.25)
    task.drill = {
        'copyist': _taught(one, adopt=1.0),
        'tool': _taught(2, **programs),
    }
    task.choice = {
        'copyist': _taught(one // 2, adopt=1.0),
        'chooser': _taught(of_several, adopt=1.0),
        'tool': _taught(1, **programs),
    }
    task.judgement = {
        'copyist': _taught(one // 2, adopt=1.0),
        'judge': _taught(of_several, adopt=1.0),
        'tool': _taught(1, **programs),
    }
    task.practice = _team(
        programs, dict(adopt=0.6, ignore=0.2, invent=0.2),
        dict(ignore=0.5, invent=0.5))
    task.mixture = _team(
        dict(right=0.2, greedy=0.1, wrong=0.3, broken=0.4),
        dict(adopt=0.12, ignore=0.05, invent=0.83),
        dict(ignore=0.1, invent=0.9))

  # Order of the phases, their steps, and answers to one prompt.
  c.phases = config_dict.ConfigDict()
  c.phases.drill = {'order': 0, 'num_steps': 600, 'group_size': 1}
  c.phases.choice = {'order': 1, 'num_steps': 400, 'group_size': 4}
  c.phases.judgement = {'order': 2, 'num_steps': 350, 'group_size': 4}
  c.phases.practice = {'order': 3, 'num_steps': 350, 'group_size': 4}
  c.phases.mixture = {'order': 4, 'num_steps': 200, 'group_size': 4}

  c.optimizer = config_dict.ConfigDict()
  c.optimizer.learning_rate = 2e-3
  c.optimizer.warmup_updates = 30
  c.optimizer.final_lr_ratio = 0.03
  c.optimizer.weight_decay = 0.0
  c.optimizer.max_grad_norm = 1.0
  c.optimizer.b1 = 0.9
  c.optimizer.b2 = 0.95

  c.buckets = config_dict.ConfigDict()
  c.buckets.prompt = (96, 128, 176, 288, 416)
  c.buckets.completion = (40, 104, 144)
  c.buckets.groups = (64,)
  c.buckets.microbatch_tokens = 1024

  c.log_every = 20  # Steps.
  c.check_every = 200
  c.num_checked = 128  # Prompts of each role.
  c.lock()
  return c
