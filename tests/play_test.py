"""`--mode play` plays an environment with given replies, without a model."""

import dataclasses
import io
import json
import sys
import time

import pytest

from atgrpo_jax import errors
from atgrpo_jax import play
from atgrpo_jax import settings
from tests import echo


def replies(folder, *texts):
  path = folder / 'replies.jsonl'
  path.write_text('\n'.join(map(json.dumps, texts)))
  return str(path)


def test_prompts_replies_and_rewards_are_printed(tmp_path, capsys, monkeypatch):
  letter = echo.tasks('train')[0]['letter']
  file = replies(tmp_path, letter, letter.upper(), 'x', '')
  play.play(echo.get_config(), file, 2)
  first, second = capsys.readouterr().out.split('==== task ')[1:]
  assert first == f'''echo/train/0
---- prompt of 'first' in turn 1
[user] first {letter}
---- reply of 'first'
{letter}
---- team reward 0; first: local reward 1, ok
     right 1
     success 0
---- prompt of 'second' in turn 1
[user] second {letter}
---- reply of 'second'
{letter.upper()}
---- team reward 1; second: local reward 1, ok
     right 1
     success 1
     done, success
'''
  assert second.endswith('     done, truncated\n')
  with pytest.raises(errors.UserError, match='too few lines; add one for each'):
    play.play(echo.get_config(), file, 3)
  with pytest.raises(errors.UserError, match='JSON text per line'):
    play.play(echo.get_config(), replies(tmp_path, letter, 3), 1)
  monkeypatch.setattr(sys, 'stdin', io.StringIO(f'{letter}\n'))
  with pytest.raises(errors.UserError, match='the standard input has ended'):
    play.play(echo.get_config(), play.TYPED, 1)


@dataclasses.dataclass(frozen=True)
class Slow(echo.Echo):

  def step(self, state, actions):
    time.sleep(60)


def test_a_slow_step_ends_its_episode(monkeypatch, capsys):
  monkeypatch.setattr(settings, 'make_environment', lambda *_: Slow(1))
  config = echo.get_config()
  config.environment.step_seconds = 0.1
  play.play(config, play.EMPTY, 1)
  assert 'local reward 0, timeout' in capsys.readouterr().out
