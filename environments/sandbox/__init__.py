"""Runs programs that models wrote, each in a process of its own.

  with sandbox.SandboxServer() as server:
    programs = sandbox.Sandbox(server.address)
    result = programs.run('print(int(input()) + 1)', stdin='41')

A program is Python text with the standard library, numpy and sympy. It reads
`stdin`, writes stdout and stderr, and its `Status` says how it ended.
`run_tests` runs it on many inputs, and `call` calls one of its functions and
gives the values. Grade outside: expected answers never belong in a program, its
input or its arguments.

INFRASTRUCTURE means that the sandbox failed, and not the program. The owner of
the server then gives it a `restart`; `atgrpo_jax.rollout.workers` does that in
a run, and does the work again.

A server takes the strongest `Level` that the machine offers, or none:

  bwrap          namespaces by bubblewrap, and inside them all of `kernel`
  kernel         Landlock, a list of allowed system calls, no capabilities, and
                 the limits; for any user, also in a container
  unsafe_rlimit  the limits alone, if the user asks for that: no boundary

A server on another machine is reached through a gateway there, by a
`RemoteServer` in the place of the `SandboxServer`.

docs/sandbox.md says what each level covers and what it does not. Every line of
what is covered has attacks in tests/environments/sandbox/.

  launcher     Starts the server; the levels, and the refusal.
  remote       A server on another machine, behind a `gateway`.
  client       What runs a program, and its result.
  connections  How a client reaches a server, here or on another machine.
  protocol     What client, supervisor and program tell each other.
  server       The fork-server, its supervisors (`supervisor`) and what happens
               in a program's process (`program`).
  isolation    What a program enters before it runs: limits, `landlock` and
               `seccomp`.
  literals     Arguments and values of functions as text.
  processes    Options, states and ends of processes.
"""

from environments.sandbox.client import CallResult
from environments.sandbox.client import check_given
from environments.sandbox.client import ProgramResult
from environments.sandbox.client import Sandbox
from environments.sandbox.connections import Remote
from environments.sandbox.launcher import LEVELS
from environments.sandbox.launcher import MOST_SLOTS
from environments.sandbox.launcher import NoSandboxError
from environments.sandbox.launcher import SandboxServer
from environments.sandbox.protocol import Level
from environments.sandbox.protocol import Limits
from environments.sandbox.protocol import Status
from environments.sandbox.remote import REMOTE_LEVELS
from environments.sandbox.remote import RemoteServer
