"""Which curves a report draws, of the metrics that a run has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
import re
from typing import Any

from environments import env_api

# What JavaScript calls a chart: its title, unit, form and series.
Chart = dict[str, Any]

# Colors, by number.
_ALL, _VALIDATION, _ROLES = range(3)


def roles_of(names: Collection[str]) -> list[str]:
  """The roles that played, in their order."""
  return _before('/first_return', names)


def learners_of(names: Collection[str]) -> list[str]:
  """The policies and critics that were updated, in their order."""
  return _before('/num_updates', names)


def _before(suffix: str, names: Collection[str]) -> list[str]:
  return [
      name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def charts(names: Collection[str]) -> list[Chart]:
  """The charts of the metrics `names`, without what nobody measured.

  `unit` is 'share' or ''; `form` is 'lines', or 'stack' where the series are
  parts of a whole. A series with `dots` was not measured in every step. Equal
  owners and outcomes have one `color` in all charts.
  """
  return [chart for chart in _all(names) if chart['series']]


def _all(names: Collection[str]) -> Iterator[Chart]:
  roles, learners = roles_of(names), learners_of(names)
  colors = {
      name: _ROLES + i for i, name in enumerate(dict.fromkeys(roles + learners))
  }

  def chart(title, *series, unit='', form='lines', note=''):
    return {
        'title': title, 'unit': unit, 'form': form, 'note': note,
        'series': [
            {'label': label, 'metric': metric, 'color': color, 'dots': dots}
            for label, metric, color, dots in series if metric in names]}

  def of_each(owners, metric, dots=False):
    return [
        (owner, metric.format(owner), colors[owner], dots) for owner in owners]

  def of_parts(prefix, dots=False):
    found = sorted(
        name for name in names
        if name.startswith(prefix) and name != 'time/step')
    return [
        (re.sub('[_+]+', ' ', name.removeprefix(prefix)), name, color, dots)
        for color, name in enumerate(found)]

  yield chart(
      'Success', ('rollout', 'rollout/success', _ALL, False),
      ('validation', 'validation/success', _VALIDATION, True), unit='share',
      note='In the rollout a selection may choose what goes on. Validation '
      'plays one answer for each prompt.')
  yield chart(
      'Return', ('all', 'return/mean', _ALL, False),
      *of_each(roles, '{}/return'),
      ('validation', 'validation/return', _VALIDATION, True),
      note='What advantages compare; in validation, of the team alone.')
  yield chart('Turns', ('rollout', 'rollout/turns', _ALL, False),
              ('validation, to solve', 'validation/turns_to_solve',
               _VALIDATION, True))
  yield chart('Length of answers', *of_each(roles, '{}/length'),
              note='Mean tokens.')
  yield chart('Groups without a signal', *of_each(roles, '{}/without_signal'),
              unit='share', note='All their advantages are 0.')
  for role in roles:
    prefix = f'{role}/outcome/'
    yield chart(
        f'Outcomes of {role}', *(
            (outcome.value.replace('_', ' '), prefix + outcome.value, color,
             False)
            for color, outcome in enumerate(env_api.Outcome)),
        unit='share', form='stack', note='What became of its answers.')
  for role in roles:
    yield chart(
        f'Reward terms of {role}', *of_parts(f'{role}/term/'),
        note='Means, before they are weighted.')
  yield chart('Entropy', *of_each(learners, '{}/entropy'),
              note='Nats for a token, in the update of each policy.')
  yield chart('Entropy of each role',
              *of_each(roles, 'diagnosis/{}/entropy', dots=True))
  yield chart('KL of the update', *of_each(learners, '{}/approx_kl'),
              note='From who sampled to the policy that is updated, in nats '
              'for a token.')
  yield chart('KL to the start',
              *of_each(roles, 'diagnosis/{}/kl_to_start', dots=True),
              note='Nats for a token.')
  yield chart('Gradient norm', *of_each(learners, '{}/grad_norm'))
  yield chart('Gradient norm of each role',
              *of_each(roles, 'diagnosis/{}/grad_norm', dots=True))
  yield chart('Cosine of gradients', *of_parts('diagnosis/cosine/', dots=True),
              note='Of roles that share a policy.')
  yield chart(
      'Seconds of a step', *of_parts('time/'), form='stack',
      note='The first step compiles. The algorithm is what the host does '
      'between samples and environments.')
