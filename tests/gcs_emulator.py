"""The part of Google Cloud Storage's JSON API that a run uses, in this process.

  with gcs_emulator.Emulator() as emulator:
    subprocess.run(..., env=os.environ | emulator.env)

It has uploads (media, multipart, resumable), ranged downloads, listings,
deletions, and preconditions on generations. tensorstore needs preconditions,
which packages that emulate this API do not implement.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import email.parser
import hashlib
import http.server
import json
import re
import threading
import time
from urllib import parse

import google_crc32c

BUCKET = 'bucket'
_OBJECT = re.compile(r'/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)')


@dataclasses.dataclass(frozen=True)
class _Object:
  """A stored object."""

  name: str
  data: bytes
  generation: int

  def fields(self) -> dict[str, object]:
    now = datetime.datetime.fromtimestamp(
        self.generation / 1e6, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')
    crc32c = google_crc32c.value(self.data).to_bytes(4)
    return {
        'kind': 'storage#object', 'id': f'{BUCKET}/{self.name}',
        'name': self.name, 'bucket': BUCKET, 'size': str(len(self.data)),
        'generation': str(self.generation), 'metageneration': '1',
        'timeCreated': now, 'updated': now, 'storageClass': 'STANDARD',
        'contentType': 'application/octet-stream',
        'crc32c': base64.b64encode(crc32c).decode(),
        'md5Hash': base64.b64encode(hashlib.md5(self.data).digest()).decode()}


class _HttpError(Exception):
  """Its argument is the HTTP status."""


class Emulator:
  """A context manager that serves one bucket, empty at first.

  Attributes:
    objects: object name -> object.
    env: environment variables that direct clients to the server.
  """

  def __init__(self):
    self.objects: dict[str, _Object] = {}
    self._uploads: dict[str, tuple[str, bytearray]] = {}
    self._lock = threading.Lock()
    self._generation = 0
    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    self._server.emulator = self
    url = f'http://127.0.0.1:{self._server.server_port}'
    self.env = {
        'STORAGE_EMULATOR_HOST': url, 'TENSORSTORE_GCS_HTTP_URL': url,
        # Clients must not ask a metadata server for credentials.
        'GCE_METADATA_HOST': '127.0.0.1:1', 'NO_GCE_CHECK': 'true',
        'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
        'GOOGLE_CLOUD_PROJECT': 'project'}

  def __enter__(self) -> Emulator:
    self._thread = threading.Thread(
        target=self._server.serve_forever, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *exception):
    self._server.shutdown()
    self._server.server_close()

  def answer(
      self, method: str, url: str, headers, body: bytes
  ) -> tuple[int, dict[str, str], bytes]:
    """Returns the status, headers and body of the response."""
    split = parse.urlsplit(url)
    query = dict(parse.parse_qsl(split.query, keep_blank_values=True))
    bucket = re.search(r'/b/([^/]+)', split.path)
    with self._lock:
      if bucket and bucket[1] != BUCKET:
        raise _HttpError(404)
      if split.path.startswith('/upload/'):
        return self._upload(query, headers, body)
      if match := _OBJECT.fullmatch(split.path):
        return self._object(
            method, parse.unquote(match[2]), query, headers,
            is_media=(query.get('alt') == 'media'
                      or split.path.startswith('/download/')))
      if split.path == f'/storage/v1/b/{BUCKET}/o' and method == 'GET':
        return self._list(query)
      if split.path == f'/storage/v1/b/{BUCKET}':
        return _json({
            'kind': 'storage#bucket', 'name': BUCKET, 'id': BUCKET,
            'location': 'US', 'locationType': 'multi-region'})
      raise _HttpError(404)

  def _object(self, method, name, query, headers, *, is_media):
    stored = self._get(name, query)
    if method == 'DELETE':
      del self.objects[name]
      return 204, {}, b''
    if not is_media:
      return _json(stored.fields())
    crc32c = stored.fields()['crc32c']
    common = {
        'Content-Type': 'application/octet-stream',
        'x-goog-generation': str(stored.generation),
        'x-goog-stored-content-length': str(len(stored.data)),
        'x-goog-hash': f'crc32c={crc32c}'}
    match = re.fullmatch(r'bytes=(\d+)-(\d*)', headers.get('Range', ''))
    if not match:
      return 200, common, stored.data
    size = len(stored.data)
    first = int(match[1])
    last = min(int(match[2] or size - 1), size - 1)
    if first >= size:
      raise _HttpError(416)
    return 206, {
        **common, 'Content-Range': f'bytes {first}-{last}/{size}',
    }, stored.data[first:last + 1]

  def _list(self, query):
    prefix, delimiter = query.get('prefix', ''), query.get('delimiter')
    items, prefixes = [], set()
    for name, stored in sorted(self.objects.items()):
      if not name.startswith(prefix) or name < query.get('startOffset', ''):
        continue
      if 'endOffset' in query and name >= query['endOffset']:
        continue
      head, cut, _ = name[len(prefix):].partition(delimiter or '\0')
      if cut:
        prefixes.add(prefix + head + cut)
      else:
        items.append(stored.fields())
    return _json({
        'kind': 'storage#objects', 'items': items,
        'prefixes': sorted(prefixes)})

  def _upload(self, query, headers, body):
    kind = query.get('uploadType')
    if 'upload_id' in query:  # A chunk of a resumable upload.
      name, content = self._uploads[query['upload_id']]
      found = re.fullmatch(
          r'bytes (?:\*|(\d+)-\d+)/(\d+|\*)', headers['Content-Range'])
      if found[1]:
        del content[int(found[1]):]
        content += body
      if found[2] == '*' or len(content) < int(found[2]):
        return 308, {'Range': f'bytes=0-{len(content) - 1}'}, b''
      return _json(self._put(name, bytes(content), query).fields())
    if kind == 'media':
      return _json(self._put(query['name'], body, query).fields())
    if kind == 'resumable':
      name = query.get('name') or json.loads(body)['name']
      upload = str(self._next_generation())
      self._uploads[upload] = name, bytearray()
      location = parse.urlencode(
          {**query, 'uploadType': 'resumable', 'upload_id': upload})
      return 200, {
          'Location': f'{self.env["STORAGE_EMULATOR_HOST"]}/upload/storage/v1/b'
                      f'/{BUCKET}/o?{location}'}, b''
    # Multipart: metadata, then content.
    fields, content = _parts(headers['Content-Type'], body)
    name = json.loads(fields)['name']
    return _json(self._put(name, content, query).fields())

  def _next_generation(self) -> int:
    """Returns the time in microseconds, made unique and increasing."""
    self._generation = max(self._generation + 1, time.time_ns() // 1000)
    return self._generation

  def _get(self, name, query) -> _Object:
    if name not in self.objects:
      raise _HttpError(404)
    _check(self.objects[name].generation, query)
    return self.objects[name]

  def _put(self, name, data, query) -> _Object:
    _check(self.objects[name].generation if name in self.objects else 0, query)
    self.objects[name] = _Object(name, data, self._next_generation())
    return self.objects[name]


def _check(generation: int, query) -> None:
  """Raises an error unless the preconditions of the request hold."""
  if int(query.get('ifGenerationMatch', generation)) != generation:
    raise _HttpError(412)
  if int(query.get('ifGenerationNotMatch', -1)) == generation:
    raise _HttpError(304)


def _json(fields) -> tuple[int, dict[str, str], bytes]:
  return 200, {'Content-Type': 'application/json'}, json.dumps(fields).encode()


def _parts(content_type: str, body: bytes) -> list[bytes]:
  """Returns the contents of the parts of a multipart body."""
  boundary = email.parser.Parser().parsestr(
      f'Content-Type: {content_type}').get_boundary().encode()
  return [
      part.partition(b'\r\n\r\n')[2].removesuffix(b'\r\n')
      if b'\r\n\r\n' in part else
      part.partition(b'\n\n')[2].removesuffix(b'\n')
      for part in body.split(b'--' + boundary)[1:-1]]


class _Handler(http.server.BaseHTTPRequestHandler):

  protocol_version = 'HTTP/1.1'

  def _serve(self):
    body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
    try:
      status, headers, content = self.server.emulator.answer(
          self.command, self.path, self.headers, body)
    except _HttpError as error:
      status, headers, content = error.args[0], {}, json.dumps(
          {'error': {'code': error.args[0], 'message': 'refused'}}).encode()
    if status in (204, 304):
      content = b''
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(content)

  do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _serve

  def log_message(self, *args):
    """Logs nothing."""
