"""Runs model-written programs, each in its own process.

  with sandbox.SandboxServer() as server:
    result = server.sandbox.run('print(int(input()) + 1)', stdin='41')

docs/sandbox.md describes the use, the levels of isolation, and which attacks
are covered. The status INFRASTRUCTURE means that the sandbox failed. The owner
of the server then restarts it and repeats the work, as
`atgrpo_jax.rollout.workers` does.

  launcher    Starts the server and chooses its level.
  client      `Sandbox`, which runs a program, and its results.
  remote      Both for a service on other machines.
  protocol    Messages between client, server and program.
  server      The fork-server.
  program     The life of a program's process.
  isolation   Limits, Landlock and `seccomp`, entered before a program runs.
  literals    Arguments and values of functions as text.
  processes   Options, states and ends of processes.
"""

from environments.sandbox.client import check_given
from environments.sandbox.client import ProgramResult
from environments.sandbox.client import Sandbox
from environments.sandbox.launcher import LEVELS
from environments.sandbox.launcher import MAX_SLOTS
from environments.sandbox.launcher import NoSandboxError
from environments.sandbox.launcher import SandboxServer
from environments.sandbox.protocol import Level
from environments.sandbox.protocol import Limits
from environments.sandbox.protocol import Status
from environments.sandbox.remote import RemoteSandbox
from environments.sandbox.remote import RemoteServer
