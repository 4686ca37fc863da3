"""Opens reports in a headless Chromium."""

from collections.abc import Iterator
import contextlib
import pathlib
import shutil

from playwright import sync_api
import pytest

NAMES = (
    'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')


def find() -> str | None:
  """The path of a browser, or None."""
  return next(filter(None, map(shutil.which, NAMES)), None)


needed = pytest.mark.skipif(
    find() is None, reason=f'no browser on the PATH: {", ".join(NAMES)}')


@contextlib.contextmanager
def start() -> Iterator[sync_api.Browser]:
  """A browser, closed at the end of the block."""
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=find(), args=['--no-sandbox'])
    yield browser
    browser.close()


def open_page(
    browser: sync_api.Browser, path: pathlib.Path, complaints: list[str], *,
    width: int = 1400, height: int = 900, anchor: str = '') -> sync_api.Page:
  """Opens a file and waits until its scripts are done.

  Appends errors, console messages and requests of the page to `complaints`.
  """
  page = browser.new_page(viewport={'width': width, 'height': height})
  url = path.resolve().as_uri()
  page.on('pageerror', lambda error: complaints.append(str(error)))
  page.on('console', lambda message: complaints.append(message.text))
  page.on('request', lambda request: request.url.startswith(url)
          or complaints.append(request.url))
  page.goto(url + anchor)
  page.wait_for_selector('body[data-ready=true]')
  return page
