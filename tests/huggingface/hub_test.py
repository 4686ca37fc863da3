"""Model names resolve to folders, and config.json to a ModelConfig."""

import json
import pathlib
import shutil

from huggingface_hub import constants
import pytest

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'


def test_folders_and_cached_hub_names_resolve(
    tmp_path, monkeypatch):
  assert hub.resolve_folder(str(tmp_path)) == tmp_path
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  repository = tmp_path / 'models--Qwen--Qwen3-0.6B'
  snapshot = repository / 'snapshots' / ('0' * 40)
  shutil.copytree(GOLDENS / 'qwen3_tied', snapshot)
  (repository / 'refs').mkdir()
  (repository / 'refs' / 'main').write_text('0' * 40)
  assert hub.resolve_folder('Qwen/Qwen3-0.6B') == snapshot


@pytest.mark.parametrize('name, words', [
    ('Qwen/Qwen3-0.7B', 'is not a folder and cannot be downloaded'),
    ('Qwen/Qwen3--0.6B', 'is not a folder and cannot be downloaded'),
    ('nano', 'is not a folder; expected'),
    ('a/b/c', 'is not a folder; expected'),
    ('models/na no', 'is not a folder; expected')])
def test_other_names_are_refused(name, words, monkeypatch):
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  with pytest.raises(errors.UserError) as error:
    hub.resolve_folder(name)
  assert f'{name!r} {words}' in str(error.value)
  assert '\n' not in str(error.value)


def test_error_names_the_config_file(tmp_path):
  path = tmp_path / 'config.json'
  with pytest.raises(errors.UserError, match=f'{path} does not exist'):
    hub.load_config(tmp_path)
  fields = json.loads((GOLDENS / 'qwen3_tied' / 'config.json').read_text())
  path.write_text(json.dumps(fields | {'attention_bias': True}))
  with pytest.raises(
      errors.UserError, match=f'{tmp_path}.*attention_bias=True'):
    hub.load_config(tmp_path)
