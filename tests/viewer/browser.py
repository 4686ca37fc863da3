"""A headless Chromium, driven through its DevTools pipe.

The browser reads commands from file descriptor 3 and writes responses and
events to 4, as JSON terminated by a zero byte.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
import contextlib
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

NAMES = (
    'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
_FLAGS = (
    '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
    '--disable-background-networking', '--disable-component-update',
    '--disable-sync', '--disable-dev-shm-usage', '--hide-scrollbars',
    '--remote-debugging-pipe')
# The shell duplicates the pipes to descriptors 3 and 4.
_START = 'exec "$0" "$@" 3<&"$COMMANDS" 4>&"$RESPONSES"'
_SECONDS = 60.0
_READY = "document.body.dataset.ready === 'true'"

# Name -> key code, typed text.
_KEYS = {
    'Tab': (9, ''), 'Enter': (13, '\r'), 'ArrowRight': (39, ''), ' ': (32, ' ')}


def find() -> str | None:
  """The path of a browser, or None."""
  return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def start(program: str) -> Iterator[Browser]:
  """A browser with a temporary profile, closed at the end of the block."""
  commands, send = os.pipe()
  receive, responses = os.pipe()
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    process = subprocess.Popen(
        ['bash', '-c', _START, program, *_FLAGS,
         f'--user-data-dir={profile}', 'about:blank'],
        pass_fds=(commands, responses), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {
            'COMMANDS': str(commands), 'RESPONSES': str(responses)})
    os.close(commands)
    os.close(responses)
    try:
      yield Browser(send, receive)
    finally:
      os.close(send)
      os.close(receive)
      process.terminate()
      process.wait()


class Browser:
  """Sends commands and records events."""

  def __init__(self, send: int, receive: int):
    self._send, self._receive = send, receive
    self._numbers = itertools.count(1)
    self._unread = b''
    self.events: list[dict[str, Any]] = []

  def command(self, method: str, session: str = '', **params) -> dict[str, Any]:
    """The result of a command of the DevTools protocol."""
    number = next(self._numbers)
    message = {'id': number, 'method': method, 'params': params}
    if session:
      message['sessionId'] = session
    os.write(self._send, json.dumps(message).encode() + b'\0')
    deadline = time.monotonic() + _SECONDS
    while True:
      message = self._read(deadline)
      if message.get('id') == number:
        assert 'error' not in message, (method, message['error'])
        return message['result']
      self.events.append(message)

  def _read(self, deadline: float) -> dict[str, Any]:
    while b'\0' not in self._unread:
      left = deadline - time.monotonic()
      assert left > 0, 'the browser does not respond'
      if select.select([self._receive], [], [], left)[0]:
        found = os.read(self._receive, 1 << 20)
        assert found, 'the browser has exited'
        self._unread += found
    message, _, self._unread = self._unread.partition(b'\0')
    return json.loads(message)

  def open(
      self, path: pathlib.Path, *, width: int = 1400, height: int = 900,
      scheme: str = 'light', anchor: str = '') -> Page:
    """Opens a file and waits until its scripts are done."""
    target = self.command('Target.createTarget', url='about:blank')['targetId']
    session = self.command(
        'Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    page = Page(self, session, path.resolve().as_uri())
    for domain in ('Page', 'Runtime', 'Network', 'Log'):
      page.command(f'{domain}.enable')
    page.command(
        'Emulation.setDeviceMetricsOverride', width=width, height=height,
        deviceScaleFactor=1, mobile=width < 600)
    page.command('Emulation.setEmulatedMedia', features=[
        {'name': 'prefers-color-scheme', 'value': scheme}])
    page.command('Page.navigate', url=page.url + anchor)
    page.wait_for(f'document.body && {_READY}')
    return page


class Page:
  """An open page."""

  def __init__(self, browser: Browser, session: str, url: str):
    self._browser, self._session, self.url = browser, session, url

  def command(self, method: str, **params) -> dict[str, Any]:
    return self._browser.command(method, self._session, **params)

  def evaluate(self, expression: str) -> Any:
    """The value of a JavaScript expression, or of its promise."""
    found = self.command(
        'Runtime.evaluate', expression=expression, returnByValue=True,
        awaitPromise=True)
    assert 'exceptionDetails' not in found, found['exceptionDetails']
    return found['result'].get('value')

  def wait_for(self, condition: str) -> None:
    """Waits until a JavaScript expression is true."""
    deadline = time.monotonic() + _SECONDS
    while not self.evaluate(f'Boolean({condition})'):
      assert time.monotonic() < deadline, f'timeout waiting for {condition}'
      time.sleep(0.02)

  def text(self, selector: str) -> str:
    """Visible text of the first matching element."""
    return self.evaluate(
        f'document.querySelector({json.dumps(selector)}).innerText')

  def texts(self, selector: str) -> list[str]:
    """Visible text of each matching element."""
    return self.evaluate(
        f'[...document.querySelectorAll({json.dumps(selector)})].map('
        '(element) => element.innerText)')

  def focus(self, selector: str) -> None:
    self.evaluate(f'document.querySelector({json.dumps(selector)}).focus()')

  def press(self, *keys: str) -> None:
    """Presses and releases keys."""
    for key in keys:
      code, text = _KEYS[key]
      named = {'key': key, 'code': 'Space' if key == ' ' else key,
               'windowsVirtualKeyCode': code}
      typed = {'text': text} if text else {}
      self.command('Input.dispatchKeyEvent', type='keyDown', **named, **typed)
      self.command('Input.dispatchKeyEvent', type='keyUp', **named)

  def choose(self, selector: str, value: str) -> None:
    """Selects an option of a <select>."""
    self.evaluate(
        f'(() => {{ const it = document.querySelector({json.dumps(selector)}); '
        f'it.value = {json.dumps(value)}; '
        "it.dispatchEvent(new Event('change', {bubbles: true})); })()")

  def screenshot(self, path: pathlib.Path) -> None:
    """Writes a PNG of the viewport."""
    found = self.command('Page.captureScreenshot', format='png')
    path.write_bytes(base64.b64decode(found['data']))

  def requests(self) -> list[str]:
    """URLs that the page requested, except itself."""
    urls = [
        event['params']['request']['url']
        for event in self._events_of('Network.requestWillBeSent')]
    return [url for url in urls if url.partition('#')[0] != self.url]

  def complaints(self) -> list[Any]:
    """Errors, warnings and policy violations of the page."""
    return [
        *self._events_of('Runtime.exceptionThrown'),
        *(event for event in self._events_of('Runtime.consoleAPICalled')
          if event['params']['type'] in ('error', 'warning')),
        *self._events_of('Log.entryAdded')]

  def _events_of(self, method: str) -> list[dict[str, Any]]:
    return [
        event for event in self._browser.events
        if event.get('method') == method
        and event.get('sessionId') == self._session]
