"""Makes the picture of docs/running.md from the workdir of the quickstart.

  python -m tests.viewer.screenshots WORKDIR
"""

import pathlib
import sys

from atgrpo_jax.viewer import report
from tests import checkout
from tests.viewer import browser as browser_lib


def main(workdir: str) -> None:
  path = report.write(pathlib.Path(workdir))
  with browser_lib.start() as browser:
    page = browser_lib.open_page(
        browser, path, [], width=1280, height=860,
        anchor='#tree/step/000000/2')
    page.screenshot(path=checkout.ROOT / 'docs/report_tree.png')


if __name__ == '__main__':
  main(*sys.argv[1:])
