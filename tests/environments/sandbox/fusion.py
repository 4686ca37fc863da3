"""A stand-in for a SandboxFusion service."""

import contextlib
import dataclasses
import http.server
import json
import threading

from environments import sandbox
from environments.sandbox import Status


class _Handler(http.server.BaseHTTPRequestHandler):
  """Replies like `POST /run_code`; `server.failures` come first."""

  def do_POST(self):
    assert self.path == '/run_code'
    request = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
    self.server.requests.append(request)
    if self.server.failures:
      status, reply = self.server.failures.pop(0)
    else:
      status, reply = 200, _run(self.server.programs, request)
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    self.send_response(status)
    self.end_headers()
    with contextlib.suppress(ConnectionError):
      self.wfile.write(data)

  def log_message(self, *args):
    """Prints nothing."""


def _run(programs, request):
  seconds = request['run_timeout']
  result = dataclasses.replace(programs, limits=sandbox.Limits(
      cpu_seconds=seconds + 1.0, wall_seconds=seconds,
      output_bytes=4 << 20)).run(request['code'], request['stdin'])
  status, code, stderr = {
      Status.OK: ('Finished', 0, result.stderr),
      Status.ERROR: ('Finished', 1, result.stderr),
      Status.TIMEOUT: ('TimeLimitExceeded', None, ''),
  }[result.status]
  return {
      'status': 'Failed' if code != 0 else 'Success', 'message': '',
      'run_result': {
          'status': status, 'return_code': code, 'stdout': result.stdout,
          'stderr': stderr}}


@contextlib.contextmanager
def running(programs, port=0):
  """A server with `url`, `requests` and `failures`.

  It runs each program in the sandbox `programs`, which should be unconfined.
  """
  with http.server.ThreadingHTTPServer(('127.0.0.1', port), _Handler) as server:
    server.url = f'http://127.0.0.1:{server.server_port}'
    server.programs = programs
    server.requests, server.failures = [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()
