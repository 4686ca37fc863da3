"""The part of Google Cloud Storage's JSON API that a run uses, in this process.

  with gcs_emulator.Emulator() as emulator:
    subprocess.run(..., env=os.environ | emulator.env)

It has uploads (media, multipart, resumable in one piece), ranged downloads,
listings, deletions, and preconditions on generations. tensorstore needs
preconditions, which packages that emulate this API do not implement.
"""

import datetime
import http.server
import json
import re
import threading
import time
from urllib import parse

BUCKET = 'bucket'
_NO_BODY = {}, b''  # The headers and the body of an answer.


class Emulator(http.server.ThreadingHTTPServer):
  """A context manager that serves one bucket, empty at first.

  Attributes:
    objects: object name -> (content, generation).
    env: environment variables that direct clients to the server.
  """

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.objects: dict[str, tuple[bytes, int]] = {}
    self._lock = threading.Lock()
    self._generation = 0
    self._url = f'http://127.0.0.1:{self.server_port}'
    self.env = {
        'STORAGE_EMULATOR_HOST': self._url,
        'TENSORSTORE_GCS_HTTP_URL': self._url,
        # Clients must not ask a metadata server for credentials.
        'GCE_METADATA_HOST': '127.0.0.1:1', 'NO_GCE_CHECK': 'true',
        'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
        'GOOGLE_CLOUD_PROJECT': 'project'}

  def __enter__(self):
    threading.Thread(target=self.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *exception):
    self.shutdown()
    self.server_close()

  def answer(
      self, method: str, url: str, headers, body: bytes
  ) -> tuple[int, dict[str, str], bytes]:
    """Returns the status, headers and body of the response."""
    split = parse.urlsplit(url)
    query = dict(parse.parse_qsl(split.query, keep_blank_values=True))
    kind, _, path = split.path.partition('storage/v1/b/')
    bucket, *name = path.split('/o', 1)
    name = parse.unquote(''.join(name).removeprefix('/'))
    with self._lock:
      if bucket != BUCKET:
        return 404, *_NO_BODY
      if kind == '/upload/':
        return self._upload(query, headers, body)
      if name:
        is_media = kind == '/download/' or query.get('alt') == 'media'
        return self._object(method, name, query, headers, is_media)
      return _json({'name': BUCKET} if path == BUCKET else self._list(query))

  def _object(self, method, name, query, headers, is_media):
    if name not in self.objects:
      return 404, *_NO_BODY
    content, generation = self.objects[name]
    if status := _refusal(generation, query):
      return status, *_NO_BODY
    if method == 'DELETE':
      del self.objects[name]
      return 204, *_NO_BODY
    if not is_media:
      return _json(self._fields(name))
    fields = {'x-goog-generation': str(generation)}
    if 'Range' not in headers:
      return 200, fields, content
    first, last = map(int, re.findall(r'\d+', headers['Range']))
    content, size = content[first:last + 1], len(content)
    last = first + len(content) - 1
    return 206, fields | {
        'Content-Range': f'bytes {first}-{last}/{size}'}, content

  def _fields(self, name):
    content, generation = self.objects[name]
    updated = datetime.datetime.fromtimestamp(
        generation / 1e6, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')
    return {
        'name': name, 'bucket': BUCKET, 'size': str(len(content)),
        'generation': str(generation), 'updated': updated}

  def _list(self, query):
    items, prefixes, prefix = [], set(), query.get('prefix', '')
    for name in sorted(self.objects):
      if name.startswith(prefix):
        head, cut, _ = name[len(prefix):].partition(
            query.get('delimiter') or '\0')
        if cut:
          prefixes.add(prefix + head + cut)
        else:
          items.append(self._fields(name))
    return {'items': items, 'prefixes': sorted(prefixes)}

  def _upload(self, query, headers, body):
    name = query.get('name')
    # The time in microseconds, made unique and increasing.
    self._generation = max(self._generation + 1, time.time_ns() // 1000)
    if query['uploadType'] == 'resumable' and 'upload_id' not in query:
      query = parse.urlencode(query | {'upload_id': self._generation})
      return 200, {
          'Location': f'{self._url}/upload/storage/v1/b/{BUCKET}/o?{query}'
      }, b''
    if query['uploadType'] == 'multipart':
      _, fields, body, _ = (
          part.partition(b'\r\n\r\n')[2].removesuffix(b'\r\n')
          for part in body.split(b'--' + headers.get_boundary().encode()))
      name = json.loads(fields)['name']
    _, generation = self.objects.get(name, (b'', 0))
    if status := _refusal(generation, query):
      return status, *_NO_BODY
    self.objects[name] = body, self._generation
    return _json(self._fields(name))


def _refusal(generation: int, query) -> int:
  """The status of a request whose preconditions do not hold, else 0."""
  if int(query.get('ifGenerationMatch', generation)) != generation:
    return 412
  return 304 * (int(query.get('ifGenerationNotMatch', -1)) == generation)


def _json(fields) -> tuple[int, dict[str, str], bytes]:
  return 200, {'Content-Type': 'application/json'}, json.dumps(fields).encode()


class _Handler(http.server.BaseHTTPRequestHandler):

  protocol_version = 'HTTP/1.1'

  def _serve(self):
    body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
    status, headers, content = self.server.answer(
        self.command, self.path, self.headers, body)
    self.send_response(status)
    for name, value in (
        headers | {'Content-Length': str(len(content))}).items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(content)

  do_GET = do_POST = do_PUT = do_DELETE = _serve

  def log_message(self, *args):
    """Logs nothing."""
