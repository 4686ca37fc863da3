"""Plan-Path steps whose action is a program: the sandbox and its rival."""

from __future__ import annotations

from concurrent import futures
import dataclasses
import subprocess
import sys

import numpy as np

from environments import sandbox as sandbox_lib
from environments.boards.plan_path import env as plan_path
from environments.boards.plan_path import maze
from models.nano import programs


@dataclasses.dataclass(frozen=True)
class FreshInterpreter:
  """Runs each program as `python -c`, in the place of a sandbox.

  With `-I -S` an interpreter starts about twice as fast: it looks for no
  site-packages, and neither does the sandbox.
  """

  options: tuple[str, ...] = ()

  def run(self, source: str, stdin: str = '') -> sandbox_lib.ProgramResult:
    done = subprocess.run(
        [sys.executable, *self.options, '-c', source], input=stdin,
        capture_output=True, text=True)
    status = sandbox_lib.Status
    return sandbox_lib.ProgramResult(
        status.ERROR if done.returncode else status.OK, done.returncode,
        done.stdout, done.stderr, 0.0, 0.0)


class Steps:
  """Steps mazes whose tool agent searches breadth first."""

  def __init__(
      self, sandbox: sandbox_lib.Sandbox | FreshInterpreter, num_steps: int,
      num_slots: int):
    self._environment = plan_path.make_environment(
        team='pair', max_turns=4, reward='mixed', sandbox=sandbox)
    rng = np.random.default_rng(0)
    self._states = [
        self._environment.reset({'task_id': str(i), **maze.random_task(rng)})
        for i in range(num_steps)]
    self._action = {'tool': programs.PLAN_PATH[0].reply}
    self._num_slots = num_slots

  def __call__(self) -> None:
    with futures.ThreadPoolExecutor(self._num_slots) as pool:
      steps = list(pool.map(
          lambda state: self._environment.step(state, self._action),
          self._states))
    assert all(step.reward_terms['plan_solved'] for step in steps)
