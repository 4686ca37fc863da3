"""Programs on a SandboxFusion service; `grading_test` covers `call`."""

import pytest

from environments import sandbox
from environments.sandbox import remote
from environments.sandbox import Status
from tests.environments.sandbox import fusion

LIMITS = sandbox.Limits(wall_seconds=5.0, output_bytes=10_000)
SANDBOX_ERROR = {
    'status': 'SandboxError', 'message': 'out of pods', 'run_result': None}


@pytest.fixture(scope='module')
def service(unsafe):
  with fusion.running(unsafe.sandbox) as server:
    yield server


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
  monkeypatch.setattr(sandbox.RemoteSandbox, '_pauses', (0.0, 0.0))
  monkeypatch.setattr(remote, '_RESTART_PAUSE', 0.0)
  monkeypatch.setattr(remote, '_RESTART_SECONDS', 0.3)


@pytest.fixture
def programs(service):
  del service.requests[:], service.failures[:]
  return sandbox.RemoteSandbox(service.url, LIMITS)


@pytest.mark.parametrize('program, status, stdout, stderr', [
    ('print(int(input()) + 1)', Status.OK, '42\n', ''),
    ('print("\ud800")', Status.ERROR, '', 'surrogates not allowed'),
    ('print("x" * 20_000)', Status.RESOURCE_LIMIT, 'x' * 10_000,
     'stopped: more than 10000 bytes of output'),
    ('print("x" * 2_000_000)', Status.RESOURCE_LIMIT, '',
     'stopped: more than 10000 bytes of output')])
def test_program_ends_as_it_would_here(
    programs, program, status, stdout, stderr):
  result = programs.run(program, '41')
  assert result.status is status, result
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
    (503, b'busy'), (200, SANDBOX_ERROR),
    (200, SANDBOX_ERROR | {'run_result': {'status': 'Error'}}),
    (200, b'<html>'), (200, [])])
def test_failing_service_is_retried_and_never_blamed_on_the_program(
    service, programs, failure):
  service.failures[:] = [failure] * 2
  assert programs.run('print(1)').stdout == '1\n'
  assert len(service.requests) == 3
  service.failures[:] = [failure] * 3
  result, = programs.call('def f(): return 1', 'f', [()])
  assert (result.status, result.value) == (Status.INFRASTRUCTURE, None)


def test_server_that_comes_back_is_used_again(unsafe):
  with fusion.running(unsafe.sandbox) as service:
    server = sandbox.RemoteServer(service.url)
    server.start()
    assert server.level.value == 'remote' and server.is_running()
  with pytest.raises(RuntimeError, match='infrastructure'):
    server.restart()
  with pytest.raises(sandbox.NoSandboxError, match=service.url):
    server.start()
  with fusion.running(unsafe.sandbox, service.server_port):
    server.restart()
    assert server.sandbox.run('print(1)').stdout == '1\n'


@pytest.mark.parametrize('url', [
    '', 'host:1', 'tcp://host:1', 'http://', 'http://me:secret@host:1'])
def test_url_without_host_is_refused(url):
  with pytest.raises(ValueError, match='http://HOST:PORT') as caught:
    sandbox.RemoteServer(url)
  assert 'sandbox.url' in str(caught.value)
  assert 'secret' not in str(caught.value)
