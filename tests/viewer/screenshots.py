"""Makes the pictures of docs/report.md from the workdir of the quickstart.

  python -m tests.viewer.screenshots WORKDIR
"""

import pathlib
import sys

from atgrpo_jax import errors
from atgrpo_jax.viewer import report
from tests import checkout
from tests.viewer import browser as browser_lib

# File -> arguments of `Browser.open`.
PICTURES = {
    'report_tree.png': {
        'width': 1280, 'height': 860, 'anchor': '#tree/step/000000/2'},
    'report_phone.png': {
        'width': 400, 'height': 800, 'scheme': 'dark',
        'anchor': '#tree/evaluation/after/3'},
}


def main(workdir: str) -> None:
  program = browser_lib.find()
  if program is None:
    raise errors.UserError(
        f'no browser on the PATH; install one of {browser_lib.NAMES}.')
  path = report.write(pathlib.Path(workdir))
  with browser_lib.start(program) as browser:
    for name, options in PICTURES.items():
      page = browser.open(path, **options)
      if options['width'] < 600:
        page.evaluate("document.getElementById('trees').scrollIntoView()")
      page.evaluate('new Promise(requestAnimationFrame)')
      page.screenshot(checkout.ROOT / 'docs' / name)


if __name__ == '__main__':
  main(*sys.argv[1:])
