"""A stand-in for a SandboxFusion service; it runs programs unconfined."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time


class _Handler(http.server.BaseHTTPRequestHandler):
  """Replies like `POST /run_code`; `server.failures` come first."""

  def do_POST(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    self.server.requests.append(json.loads(body))
    status, reply = 200, None
    if self.path != '/run_code':
      status, reply = 404, {'detail': 'Not Found'}
    elif self.server.failures:
      status, reply = self.server.failures.pop(0)
    if reply is None:
      reply = _run(self.server.requests[-1])
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    self.send_response(status)
    self.end_headers()
    with contextlib.suppress(ConnectionError):
      self.wfile.write(data)

  def log_message(self, *args):
    """Prints nothing."""


def _run(request):
  start = time.monotonic()
  try:
    done = subprocess.run(
        [sys.executable, '-I', '-c', request['code']], capture_output=True,
        input=request['stdin'].encode(), timeout=request['run_timeout'])
    status, code = 'Finished', done.returncode
  except subprocess.TimeoutExpired as error:
    status, code, done = 'TimeLimitExceeded', None, error
  stdout, stderr = (
      (data or b'').decode(errors='replace')
      for data in (done.stdout, done.stderr))
  return {
      'status': 'Failed' if code != 0 else 'Success', 'message': '',
      'run_result': {
          'status': status, 'execution_time': time.monotonic() - start,
          'return_code': code, 'stdout': stdout, 'stderr': stderr}}


@contextlib.contextmanager
def running(port=0):
  """A server with `url`, `requests` and `failures`."""
  with http.server.ThreadingHTTPServer(('127.0.0.1', port), _Handler) as server:
    server.url = f'http://127.0.0.1:{server.server_port}'
    server.requests, server.failures = [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()
