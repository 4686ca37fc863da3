"""Runs started from Python."""

import pytest

from atgrpo_jax import api
from atgrpo_jax import errors
from atgrpo_jax import evaluate
from tests import echo


@pytest.fixture(scope='module')
def config(echo_folder):
  config = echo.get_config()
  config.update_from_flattened_dict({
      'model.folder': str(echo_folder), 'train.num_steps': 12,
      'train.checkpoint_every': 6, 'evaluation.validate_every': 6})
  return config


def test_train_evaluate_export_and_generate(
    config, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
      evaluate, 'find_problems', lambda result: [f'problem {result["step"]}'])
  workdir = tmp_path / 'run'
  with api.Run(config, workdir) as run:
    chat = [{'role': 'user', 'content': 'first b'}]
    drawn = run.generate('first', chat, num_samples=64)
    assert len(drawn) == 64 and len(set(drawn)) > 4  # Untrained.
    results = run.train()
    printed = capsys.readouterr().out
    for step in 0, 12:  # Problems of both evaluations are printed.
      assert printed.count(f'warning: problem {step}\n') == 1
    assert results['before']['success'] < 0.2 < results['after']['success']
    assert run.evaluate() == results['after']
    assert run.train() == results  # There is nothing left to do.
    assert run.export() == [workdir / 'export/shared']

  # The workdir alone is enough.
  with api.Run(None, workdir) as run:
    assert run.config.train.num_steps == 12
    said = {
        letter: run.generate(
            'first', [{'role': 'user', 'content': f'first {letter}'}],
            temperature=0.0)[0].split()[0]
        for letter in echo.LETTERS}
    assert sum(word == letter for letter, word in said.items()) >= 4, said
    again = run.generate('second', chat, num_samples=3, seed=5)
    assert again == run.generate('second', chat, num_samples=3, seed=5)
    with pytest.raises(errors.UserError, match="role='third'"):
      run.generate('third', chat)
    with pytest.raises(errors.UserError, match='num_samples=0: '):
      run.generate('first', chat, num_samples=0)
  with pytest.raises(errors.UserError, match='The run is not open'):
    api.Run(config, workdir).train()
  with pytest.raises(errors.UserError, match='config.json'):
    api.Run(None, tmp_path / 'nothing')
