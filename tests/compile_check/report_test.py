"""report.py: the verdict on a run, and what it advises."""

import re

import pytest

from atgrpo_jax import config_checks
from atgrpo_jax import errors
from atgrpo_jax.compile_check import collectives
from atgrpo_jax.compile_check import lower
from atgrpo_jax.compile_check import report as report_lib
from atgrpo_jax.compile_check import work
from atgrpo_jax.distributed import chips
from configs import pod


def _report(peak, parameters, name='decode a', **changes):
  """A program of `peak` GiB on a pool that keeps `parameters` GiB."""
  program = lower.Program(
      name=name, arguments=parameters << 30, peak=peak << 30, kept=0,
      flops=2e12, traffic=4e9, **changes)
  return report_lib.Report(
      ('a',), parameters=parameters << 30, optimiser=0, cache=0,
      programs=(program,))


@pytest.mark.parametrize('peak, words', [
    (10, ['FITS: 5.75 of 15.75 GiB', "left in 'decode a'"]),
    (20, ["DOES NOT FIT: 'decode a' needs 4.25 GiB more", 'What would help'])])
def test_verdict(peak, words, capsys):
  report_lib.print_report(
      _report(peak, 1), chips.TPUS['v5e'], pod.get_config())
  printed = capsys.readouterr().out
  for word in [*words, '0.010 s']:  # 2e12 FLOPs; 4e9 bytes take 0.005 s.
    assert word in printed


@pytest.mark.parametrize('report, changes, first', [
    (_report(20, 15), {}, ['mesh.fsdp', 'policies=lora_per_role']),
    (_report(20, 1), {}, ['mesh.tensor', 'buckets.groups']),
    (_report(20, 1, 'gradient a'), {'mesh.tensor': 8, 'model.remat': False},
     ['model.remat', 'buckets.prompt']),
    (_report(20, 1, 'gradient a'), {'buckets.microbatch_tokens': 1 << 20},
     ['mesh.tensor', 'buckets.microbatch_tokens']),
])
def test_what_helps_most_is_advised_first(report, changes, first):
  config = pod.get_config()
  config.update_from_flattened_dict(changes)
  for key, advice in zip(first, report_lib.knobs(report, config)):
    assert key in advice


def test_what_the_chips_send_takes_time_too(capsys):
  gathers = collectives.Collective('all-gather', 2 * 10**9, 2, (3,), 4)
  report_lib.print_report(
      _report(10, 1, collectives=(gathers,)), chips.TPUS['v5e'],
      pod.get_config())
  printed = capsys.readouterr().out
  # Half of 2 GB, 12 times, at 200 GB/s.
  assert re.search(r'decode a .* 12 +12\.0 +0\.060 s  links\n', printed)
  assert re.search(
      r'decode a +2000\.000 MB all-gather of 2 chips, 4 in a loop of 3\n',
      printed)


def test_a_refusal_without_a_number_is_one(capsys):
  report = _report(3, 1, refusal='RESOURCE_EXHAUSTED: Out of vmem.')
  assert not report.fits(chips.TPUS['v5e'])
  report_lib.print_report(report, chips.TPUS['v5e'], pod.get_config())
  printed = capsys.readouterr().out
  assert re.search(
      "DOES NOT FIT: the compiler gives up on 'decode a': RESOURCE_EXHAUSTED: "
      'Out of vmem. What would help: ', printed)


@pytest.mark.parametrize('message, gib', [
    ('RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory '
     'in memory space hbm. Used 21.50G of 15.75G hbm. Exceeded ...', 21.5),
    ('RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required '
     'for HLO temporaries (512.00M) exceeds available HBM (15.75G).', 0.5),
    ('RESOURCE_EXHAUSTED: Allocation (size=34359738368) would exceed memory '
     '(size=17179869184) :: #allocation1', 32),
    ('RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 32.42M '
     'of 16.00M vmem.', 0)])
def test_what_a_refused_program_needs(message, gib):
  assert work.needed_bytes(message) == gib * 2**30


@pytest.mark.parametrize('name, value, words', [
    ('prompt_lengths', (900,), 'a median and a 95th percentile'),
    ('prompt_lengths', (3000, 900), 'at least 3000, the median'),
    ('completion_lengths', (0, 0), 'completion_lengths=0'),
    ('completion_lengths', ('a', 'b'), 'must be a number'),
    ('num_turns', -1, 'num_turns=-1'),
    ('talk_seconds', -1.0, 'at least 0'),
    ('disk_bytes_per_second', 0.0, 'above 0')])
def test_what_no_step_can_have_is_refused(name, value, words):
  config = pod.get_config('topology=v5e:4x4')
  config_checks.check_run(config)
  with config.ignore_type():
    config.compile_check[name] = value
  with pytest.raises(errors.UserError, match=words):
    config_checks.check_run(config)
