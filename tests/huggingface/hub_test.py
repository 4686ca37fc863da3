"""hub.py: a name becomes a folder, and its config.json a ModelConfig."""

import json
import pathlib
import shutil

from huggingface_hub import constants
import pytest

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'


def test_a_folder_is_taken_as_it_is(tmp_path):
  assert hub.resolve_folder(str(tmp_path)) == tmp_path


def test_a_hub_name_is_found_in_the_cache(tmp_path, monkeypatch):
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  repository = tmp_path / 'models--Qwen--Qwen3-0.6B'
  snapshot = repository / 'snapshots' / ('0' * 40)
  shutil.copytree(GOLDENS / 'qwen3_tied', snapshot)
  (repository / 'refs').mkdir()
  (repository / 'refs' / 'main').write_text('0' * 40)
  assert hub.resolve_folder('Qwen/Qwen3-0.6B') == snapshot
  for name in ('Qwen/Qwen3-0.7B', 'Qwen/Qwen3--0.6B'):
    with pytest.raises(errors.UserError) as error:
      hub.resolve_folder(name)
    assert f'{name!r} is not a folder and cannot be downloaded' in (
        str(error.value))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', ['nano', 'a/b/c', 'models/na no'])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match='is not a folder; expected'):
    hub.resolve_folder(name)


def test_a_config_that_cannot_be_used_is_named_with_its_folder(tmp_path):
  with pytest.raises(errors.UserError) as error:
    hub.load_config(tmp_path)
  assert f'{tmp_path}/config.json does not exist' in str(error.value)
  path = GOLDENS / 'qwen3_tied' / 'config.json'
  (tmp_path / 'config.json').write_text(
      json.dumps(json.loads(path.read_text()) | {'attention_bias': True}))
  with pytest.raises(errors.UserError) as error:
    hub.load_config(tmp_path)
  for text in (str(tmp_path), 'attention_bias=True'):
    assert text in str(error.value)
