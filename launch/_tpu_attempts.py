"""What each attempt of a run on TPU VMs cost, and the log that was watched."""

from __future__ import annotations

import datetime
import pathlib
import re
import time

_EVENTS = 'asked', 'ready', 'started', 'ended'
_SHOWN = 'attempt', 'asked', 'waited', 'set up', 'ran', 'steps', 'outcome'
_COLUMNS = ('attempt', *_EVENTS, 'waited', 'set up', 'ran', 'steps', 'outcome')
_FIRST_STEP = re.compile(r'resumes after step (\d+)|starts afresh')
_LAST_STEP = re.compile(r'step (\d+)/| after step (\d+);')


class Attempts:
  """A line in attempts.tsv for each, and its log in attempt-N.log.

  Times are of UTC; `waited`, `set up` and `ran` are minutes until the TPU VM
  was ready, until the run was started, and until it ended or was lost. `steps`
  is the step that the run went on from, and the last one that it showed.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._path = folder / 'attempts.tsv'
    self._number = 0
    self._clock: dict[str, float] = {}
    self._times: dict[str, str] = {}
    self._steps: list[str] = []

  def begin(self) -> None:
    self._number = max(len(self._rows()), 1)
    self._clock, self._times, self._steps = {}, {}, []
    self.note('asked')

  def note(self, event: str) -> None:
    """Something of `_EVENTS` has happened."""
    now = datetime.datetime.now(datetime.timezone.utc)
    self._times[event] = now.strftime('%Y-%m-%dT%H:%M:%SZ')
    self._clock[event] = time.monotonic()

  def has_started(self) -> bool:
    return 'started' in self._clock

  def take_line(self, line: str) -> None:
    """Keeps and prints a line of the log that is watched."""
    print(line, end='', flush=True)
    with (self._folder / f'attempt-{self._number}.log').open('a') as file:
      file.write(line)
    if found := _FIRST_STEP.search(line):
      self._steps = [found[1] or '0']
    elif found := _LAST_STEP.search(line):
      self._steps[1:] = [found[1] or found[2]]

  def end(self, outcome: str) -> None:
    """Writes what the attempt has cost."""
    self.note('ended')
    clock = [self._clock.get(event) for event in _EVENTS[:-1]]
    # What has not come to its end has lasted until now.
    minutes = []
    for start, end in zip(clock, [*clock[1:], None]):
      end = self._clock['ended'] if end is None else end
      minutes.append('-' if start is None else f'{(end - start) / 60:.1f}')
    row = (
        str(self._number),
        *(self._times.get(event, '-') for event in _EVENTS), *minutes,
        '-'.join(self._steps) or '-', outcome)
    with self._path.open('a') as file:
      if not file.tell():
        file.write('\t'.join(_COLUMNS) + '\n')
      file.write('\t'.join(row) + '\n')

  def table(self) -> str:
    """All attempts that there were, for a terminal."""
    rows = [
        [row[_COLUMNS.index(name)] for name in _SHOWN] for row in self._rows()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ''.join(
        '  '.join(map(str.ljust, row, widths)).rstrip() + '\n' for row in rows)

  def _rows(self):
    if not self._path.exists():
      return []
    return [
        line.split('\t') for line in self._path.read_text().splitlines()]
