"""Which curves are drawn of which metrics."""

from atgrpo_jax.viewer import charts

NAMES = [
    'step', 'rollout/success', 'return/mean', 'tool/first_return',
    'tool/return', 'tool/length', 'tool/outcome/ok', 'tool/outcome/timeout',
    'planner/first_return', 'planner/return', 'planner/length',
    'planner/outcome/ok', 'planner/term/solved', 'shared/num_updates',
    'shared/entropy', 'shared/approx_kl', 'diagnosis/tool/kl_to_start',
    'diagnosis/planner/kl_to_start', 'diagnosis/cosine/tool+planner',
    'time/sample', 'time/update', 'time/step', 'validation/success']


def _metrics():
  return {
      chart['title']: [it['metric'] for it in chart['series']]
      for chart in charts.charts(NAMES)}


def test_roles_and_learners_are_told_apart():
  assert charts.roles_of(NAMES) == ['tool', 'planner']
  assert charts.learners_of(NAMES) == ['shared']


def test_charts_have_what_was_measured():
  found = _metrics()
  assert found['Success'] == ['rollout/success', 'validation/success']
  assert found['Return'] == ['return/mean', 'tool/return', 'planner/return']
  assert found['Length of answers'] == ['tool/length', 'planner/length']
  assert found['Outcomes of tool'] == [
      'tool/outcome/ok', 'tool/outcome/timeout']
  assert found['Reward terms of planner'] == ['planner/term/solved']
  assert found['Entropy'] == ['shared/entropy']
  assert found['KL of the update'] == ['shared/approx_kl']
  assert found['KL to the start'] == [
      'diagnosis/tool/kl_to_start', 'diagnosis/planner/kl_to_start']
  assert found['Cosine of gradients'] == ['diagnosis/cosine/tool+planner']
  assert found['Seconds of a step'] == ['time/sample', 'time/update']


def test_charts_without_data_are_left_out():
  assert 'Groups without a signal' not in _metrics()
  assert 'Reward terms of tool' not in _metrics()
  assert charts.charts(['step']) == []


def test_one_owner_or_outcome_has_one_color():
  colors = {}
  for chart in charts.charts(NAMES):
    for series in chart['series']:
      if series['label'] in ('tool', 'planner', 'ok', 'validation'):
        colors.setdefault(series['label'], set()).add(series['color'])
  assert all(len(found) == 1 for found in colors.values())
  assert colors['tool'] != colors['planner']


def test_policies_of_roles_are_drawn_as_these():
  names = ['a/first_return', 'a/num_updates', 'a/entropy', 'a/return']
  labels = {
      chart['title']: [it['color'] for it in chart['series']]
      for chart in charts.charts(names)}
  assert labels['Entropy'] == labels['Return']


def test_validation_is_drawn_as_dots():
  for chart in charts.charts(NAMES):
    for series in chart['series']:
      is_sparse = series['metric'].startswith(('validation/', 'diagnosis/'))
      assert series['dots'] == is_sparse
