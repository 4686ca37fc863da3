"""Policies with separate models, adapters, tokenizers and sampling."""

import json
import shutil

import jax
import numpy as np
import pytest

from atgrpo_jax import errors
from atgrpo_jax import experiment as experiment_lib
from atgrpo_jax import train
from atgrpo_jax.learner import update
from tests import echo


def _flip_a_bit(path):
  content = bytearray(path.read_bytes())
  content[-2] ^= 1
  path.write_bytes(content)


def test_adapters_over_one_frozen_model_are_sampled_together(echo_folder):
  experiment = echo.experiment(
      echo_folder, policies='lora_per_role',
      per_policy=(('second', 'lora.alpha', 4.0),))
  params = experiment_lib.params_of(experiment.initial_states())
  sampled = experiment.runner(params, step=0, temperature=1.0).policies
  assert sampled['first'].model is sampled['second'].model
  assert (sampled['first'].adapter, sampled['second'].adapter) == (0, 1)
  np.testing.assert_allclose(
      sampled['first'].model.adapters.scales, [32 / 16, 4 / 16])
  assert experiment.frozen_params['first'] is experiment.frozen_params['second']
  # Roles start from different adapters.
  first, second = map(jax.tree.leaves, params.values())
  assert any(np.any(x != y) for x, y in zip(first, second, strict=True))


def test_policies_with_different_models_and_tokenizers(
    echo_folder, tmp_path):
  other = shutil.copytree(echo_folder, tmp_path / 'other')
  # The same words with other ids.
  tokenizer = json.loads((other / 'tokenizer.json').read_text())
  vocab = tokenizer['model']['vocab']
  words = list(vocab)
  tokenizer['model']['vocab'] = dict(
      zip(words, [vocab[words[0]], *range(len(words) - 1, 0, -1)]))
  (other / 'tokenizer.json').write_text(json.dumps(tokenizer))
  experiment = echo.experiment(
      echo_folder, policies='per_role',
      per_policy=(('second', 'model.folder', str(other)),))
  prompts = {
      group.key.role: group.prompt
      for group in echo.groups(experiment, experiment.initial_states())}
  tokenizers = {
      name: policy.tokenizer for name, policy in experiment.policies.items()}
  for role, prompt in prompts.items():
    assert tokenizers[role].decode(prompt).startswith(role)
  assert not tokenizers['first'].decode(prompts['second']).startswith('second')


@pytest.mark.parametrize('policies', ['lora_per_role', 'shared'])
def test_roles_are_sampled_and_learn_at_their_own_temperatures(
    policies, echo_folder):
  experiment = echo.experiment(
      echo_folder, policies=policies, per_policy=(
          ('first', 'rollout.temperature', 2.0),
          ('second', 'rollout.temperature', 0.01),
          ('second', 'rollout.max_new_tokens', 1),
          ('first', 'evaluation.temperature', 0.0)))
  states = experiment.initial_states()
  groups = echo.groups(experiment, states)
  texts = {
      role: [{candidate.completion.tobytes() for candidate in group.candidates}
             for group in groups if group.key.role == role]
      for role in ('first', 'second')}
  # A first agent of so high a temperature says many different words.
  assert min(map(len, texts['first'])) > 4 > max(map(len, texts['second']))
  assert {len(candidate.completion)
          for group in groups if group.key.role == 'second'
          for candidate in group.candidates} == {1}
  assert experiment.evaluation_sampling['per_policy'] == {
      'first': {'temperature': 0.0}, 'second': {'max_new_tokens': 1}}
  for name, state in states.items():
    _, updates = update.update_policy(
        experiment.policies[name], state,
        [group for group in groups if group.policy == name], num_updates=1,
        order='mixed', buckets=experiment.buckets,
        frozen_params=experiment.frozen_params.get(name), reference=None)
    if updates.updates:  # Equal words of the second one have no advantage.
      assert updates.metrics(name)['mismatch'] < 1e-5


def test_frozen_policy_acts_but_is_not_saved(echo_folder, tmp_path):
  folder = shutil.copytree(echo_folder, tmp_path / 'model')
  workdir = tmp_path / 'run'
  changes = {
      'policies': 'per_role',
      'per_policy': (('first', 'model.trained', 'none'),),
      'rollout.num_tasks': 4, 'train.num_steps': 1}
  experiment = echo.experiment(folder, **changes)
  assert train.train(experiment, workdir)
  params, step = experiment.trained_params(workdir)
  assert step == 1 and set(params) == {'second'}
  line = json.loads((workdir / 'metrics.jsonl').read_text())
  assert 'first/return' in line and 'first/grad_norm' not in line

  # A checkpoint is tied to the weights of its frozen models.
  _flip_a_bit(folder / 'model.safetensors')
  with pytest.raises(errors.UserError, match="weights in .*have changed"):
    echo.experiment(folder, **changes).trained_params(workdir)


def test_a_run_resumes_only_with_the_files_that_it_read(echo_folder, tmp_path):
  """The weights are the reference of the KL penalty."""
  folder = shutil.copytree(echo_folder, tmp_path / 'model')

  def experiment(num_steps):
    return echo.experiment(folder, **{
        'loss.kl_estimator': 'k3', 'loss.kl_coefficient': 0.1,
        'rollout.num_tasks': 4, 'train.num_steps': num_steps})

  first = experiment(1)
  assert train.train(first, tmp_path / 'run')
  identity = first.identity()
  (folder / 'README.md').write_text('Not read.')
  assert train.train(experiment(2), tmp_path / 'run')
  for name, words in (
      ('model.safetensors', 'weights'), ('chat_template.jinja', 'template'),
      ('tokenizer_config.json', 'tokenizer')):
    path = folder / name
    content = path.read_bytes()
    if words == 'weights':
      _flip_a_bit(path)
    else:
      path.write_bytes(content + b'\n')
    # A running trainer saves the digests of what it has read.
    assert first.identity() == identity
    with pytest.raises(
        errors.UserError, match=f'{words}.*{folder} have changed'):
      train.train(experiment(3), tmp_path / 'run')
    path.write_bytes(content)
