"""Programs on a SandboxFusion service; `grading_test` covers `call`."""

import pickle

import pytest

from environments import sandbox
from environments.sandbox import remote
from environments.sandbox import Status
from tests.environments.sandbox import fusion

LIMITS = sandbox.Limits(wall_seconds=5.0, output_bytes=10_000)
SANDBOX_ERROR = {
    'status': 'SandboxError', 'message': 'out of pods', 'run_result': None}


@pytest.fixture(scope='module')
def service():
  with fusion.running() as server:
    yield server


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
  monkeypatch.setattr(remote, '_PAUSES', (0.0, 0.0))
  monkeypatch.setattr(remote, '_RESTART_PAUSE', 0.0)
  monkeypatch.setattr(remote, '_RESTART_SECONDS', 0.3)


@pytest.fixture
def programs(service):
  del service.requests[:], service.failures[:]
  return sandbox.RemoteSandbox(service.url, LIMITS)


@pytest.mark.parametrize('program, status, exit_code, stdout, stderr', [
    ('print(int(input()) + 1)', Status.OK, 0, '42\n', ''),
    ('import sys; print(sys.stdin.read())', Status.OK, 0, '41\n', ''),
    ('import sys; sys.exit(3)', Status.ERROR, 3, '', ''),
    ('1 / 0', Status.ERROR, 1, '', 'division by zero\n'),
    ('f(', Status.ERROR, 1, '', "'(' was never closed\n"),
    ('import os; os.kill(os.getpid(), 9)', Status.ERROR, -9, '', ''),
    ('print("\ud800")', Status.ERROR, 1, '', 'surrogates not allowed'),
    ('print("x" * 20_000)', Status.RESOURCE_LIMIT, 0, 'x' * 10_000,
     'stopped: more than 10000 bytes of output'),
    ('print("x" * 2_000_000)', Status.RESOURCE_LIMIT, -9, '',
     'stopped: more than 10000 bytes of output')])
def test_a_program_ends_as_it_would_here(
    programs, program, status, exit_code, stdout, stderr):
  result = programs.run(program, '41')
  assert (result.status, result.exit_code) == (status, exit_code), result
  assert result.stdout == stdout and result.stderr.endswith(stderr)


def test_limits_are_sent_and_a_slow_program_times_out(service):
  programs = sandbox.RemoteSandbox(
      service.url + '/', LIMITS._replace(wall_seconds=0.5))
  result = programs.run('print(1, flush=True)\nwhile True: pass')
  assert (result.status, result.stdout) == (Status.TIMEOUT, '1\n')
  assert result.stderr == 'stopped: wall-clock limit of 0.5 s'
  assert service.requests[-1]['run_timeout'] == 0.5
  assert service.requests[-1]['language'] == 'python'


@pytest.mark.parametrize('failure', [
    (500, {}), (503, b'busy'), (429, {}), (200, SANDBOX_ERROR),
    (200, SANDBOX_ERROR | {'run_result': {'status': 'Error'}}),
    (200, b'<html>'), (200, []), (200, {'status': 'Success'})])
def test_a_failing_service_is_retried_and_never_blamed_on_the_program(
    service, programs, failure):
  # Bite: a failure counts as a program error.
  service.failures[:] = [failure] * 2
  assert programs.run('print(1)').stdout == '1\n'
  assert len(service.requests) == 3
  service.failures[:] = [failure] * 3
  result = programs.run('print(1)')
  assert (result.status, result.exit_code) == (Status.INFRASTRUCTURE, None)
  service.failures[:] = [failure] * 3
  result, = programs.call('def f(): return 1', 'f', [()])
  assert (result.status, result.value) == (Status.INFRASTRUCTURE, None)


def test_a_wrong_path_is_not_retried(service, programs):
  result = sandbox.RemoteSandbox(service.url + '/wrong').run('print(1)')
  assert result.status is Status.INFRASTRUCTURE and '404' in result.stderr
  assert len(service.requests) == 1


def test_results_keep_the_order_and_the_handle_is_a_value(programs):
  results = programs.run_tests('print(input())', [str(i) for i in range(8)])
  assert [r.stdout for r in results] == [f'{i}\n' for i in range(8)]
  copy = pickle.loads(pickle.dumps(programs))
  assert copy == programs and hash(copy) == hash(programs)
  assert programs != sandbox.Sandbox(programs.address, LIMITS)


def test_a_server_that_comes_back_is_used_again():
  with fusion.running() as service:
    server = sandbox.RemoteServer(service.url)
    server.start()
    assert server.level.value == 'remote' and server.is_running()
  with pytest.raises(RuntimeError, match='infrastructure'):
    server.restart()
  with pytest.raises(sandbox.NoSandboxError, match=service.url):
    server.start()
  with fusion.running(service.server_port):
    server.restart()
    assert server.sandbox.run('print(1)').stdout == '1\n'


@pytest.mark.parametrize('url', [
    '', 'host:1', 'tcp://host:1', 'http://', 'http://host:x',
    'http://me:secret@host:1'])
def test_a_url_without_host_and_port_is_refused(url):
  with pytest.raises(ValueError, match='http://HOST:PORT') as caught:
    sandbox.RemoteServer(url)
  assert 'sandbox.url' in str(caught.value)
  assert 'secret' not in str(caught.value)
