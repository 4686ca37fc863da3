"""Makes the pictures of docs/report.md from the workdir of the quickstart.

  python -m tests.viewer.screenshots WORKDIR
"""

import pathlib
import sys

from atgrpo_jax.viewer import report
from tests import checkout
from tests.viewer import browser as browser_lib

# File -> arguments of `open_page`.
PICTURES = {
    'report_tree.png': {
        'width': 1280, 'height': 860, 'anchor': '#tree/step/000000/2'},
    'report_phone.png': {
        'width': 400, 'height': 800, 'scheme': 'dark',
        'anchor': '#tree/evaluation/after/3'},
}


def main(workdir: str) -> None:
  path = report.write(pathlib.Path(workdir))
  with browser_lib.start(browser_lib.find()) as browser:
    for name, options in PICTURES.items():
      page = browser_lib.open_page(browser, path, **options)
      if options['width'] < 600:
        page.evaluate("document.getElementById('trees').scrollIntoView()")
      page.screenshot(path=checkout.ROOT / 'docs' / name)


if __name__ == '__main__':
  main(*sys.argv[1:])
