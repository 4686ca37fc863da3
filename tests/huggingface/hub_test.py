"""Model names resolve to folders, and config.json to a ModelConfig."""

import pathlib
import shutil

import huggingface_hub
from huggingface_hub import constants
import pytest

from atgrpo_jax import errors
from atgrpo_jax.huggingface import hub

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / 'tests' / 'goldens'


def test_folders_and_cached_hub_names_resolve(tmp_path, monkeypatch):
  assert hub.resolve_folder(str(tmp_path)) == tmp_path
  monkeypatch.chdir(tmp_path)  # Messages name the folder.
  assert hub.resolve_folder('.') == tmp_path
  assert hub.resolve_folder('models/nano') == ROOT / 'models/nano'
  own = tmp_path / 'models' / 'nano'
  own.mkdir(parents=True)
  assert hub.resolve_folder('models/nano') == own
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  repository = tmp_path / 'models--Qwen--Qwen3-0.6B'
  snapshot = repository / 'snapshots' / ('0' * 40)
  shutil.copytree(GOLDENS / 'qwen3_tied', snapshot)
  (repository / 'refs').mkdir()
  (repository / 'refs' / 'main').write_text('0' * 40)
  assert hub.resolve_folder('Qwen/Qwen3-0.6B') == snapshot
  assert hub.base_name(snapshot) == 'Qwen/Qwen3-0.6B'
  (tmp_path / 'link').symlink_to(snapshot)
  assert hub.base_name(tmp_path / 'link') == 'Qwen/Qwen3-0.6B'


@pytest.mark.parametrize('folder, expected', [
    ('/snapshots/x', '/snapshots/x'), ('/c/models--gpt2/snapshots/0', 'gpt2'),
    ('/c/models--a--b--c/snapshots/0', 'a/b--c'),
    ('/c/models--a--b/copies/0', '/c/models--a--b/copies/0'),
    ('./x/y', str(pathlib.Path.cwd() / 'x/y'))])
def test_base_models_have_a_hub_name_or_an_absolute_path(folder, expected):
  assert hub.base_name(pathlib.Path(folder)) == expected


@pytest.mark.parametrize('name, words', [
    ('Qwen/Qwen3-0.7B', 'cannot be downloaded'), ('na no/x', 'expected'),
    ('models/nanoo', 'did you mean models/nano?'),
    ('tests/golden', 'did you mean tests/goldens?'),
    ('models/x', 'in the checkout'),
    ('elsewhere/smollm2', 'python -m models.smollm2')])
def test_other_names_are_refused(name, words, monkeypatch):
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  with pytest.raises(errors.UserError) as error:
    hub.resolve_folder(name)
  assert repr(name) in str(error.value) and words in str(error.value)


def test_an_error_of_a_proxy_is_a_failed_download(monkeypatch):
  def fail(*_, **__):
    raise Exception('403 Forbidden')  # As httpx2's, which is no OSError.

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fail)
  with pytest.raises(errors.UserError, match='cache .403 Forbidden'):
    hub.resolve_folder('Qwen/Qwen3-0.7B')


@pytest.mark.parametrize('content', ['null', '[true]', '[' * 9])
def test_other_json_is_refused(content, tmp_path):
  path = tmp_path / 'config.json'
  path.write_text(content)
  with pytest.raises(errors.UserError) as error:
    hub.read_json(path)
  assert str(path) in str(error.value)
  assert ('damaged' if content == '[' * 9 else content) in str(error.value)
