"""The example of docs/environments.md trains outside the checkout."""

import json
import os
import shutil
import subprocess
import sys

from tests import checkout
from tests import echo

EXAMPLE = checkout.ROOT / 'docs/examples/guess_number'


def _write_model(folder):
  """The model of `tests.echo`, with words for an answer and longer prompts."""
  echo.write_model(folder)
  tokenizer = json.loads((folder / 'tokenizer.json').read_text())
  words = [echo._WORDS[0], '####', '<unknown>', *map(str, range(1, 10))]
  words += [f'word_{i}' for i in range(len(words), len(echo._WORDS))]
  tokenizer['model'] |= {
      'vocab': {word: i for i, word in enumerate(words)},
      'unk_token': '<unknown>'}
  (folder / 'tokenizer.json').write_text(json.dumps(tokenizer))
  config = json.loads((folder / 'config.json').read_text())
  config['max_position_embeddings'] = 64
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'chat_template.jinja').write_text('{{ messages[0].content }}')
  return folder


def test_example_trains_outside_the_checkout(tmp_path):
  outside = tmp_path / 'outside'
  shutil.copytree(EXAMPLE, outside / 'guess_number')
  done = subprocess.run(
      [sys.executable, '-m', 'atgrpo_jax.main',
       '--config=guess_number/config.py', '--workdir=run',
       f'--config.model.folder={_write_model(tmp_path / "model")}',
       f'--config.dataset.data_dir={tmp_path / "data"}',
       '--config.evaluation.test=test[:8]',
       '--config.rollout.max_new_tokens=4', '--config.buckets.prompt=(32,)',
       '--config.buckets.completion=(4,)', '--config.train.num_steps=1'],
      cwd=outside, env=os.environ | {'PYTHONPATH': str(checkout.ROOT)},
      text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert done.returncode == 0, done.stderr
  *_, success, report = done.stdout.splitlines()
  assert success.endswith(' (8 tasks)')
  assert report == 'report: run/report.html'
  metrics = json.loads((outside / 'run/metrics.jsonl').read_text())
  assert metrics['advisor/outcome/ok'] > 0
  assert metrics['shared/grad_norm'] > 0


def test_the_page_shows_the_environment_of_the_example():
  page = (EXAMPLE.parents[1] / 'environments.md').read_text()
  assert f'```python\n{(EXAMPLE / "env.py").read_text()}```' in page
