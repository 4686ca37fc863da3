#!/usr/bin/env bash
# Installs the test extra into .venv and runs all checks; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/test.sh [--browser] [PYTEST ARGUMENT ...]

Installs atgrpo_jax with its test extra into .venv (skipped if that is up to
date), and runs ruff and pytest. Needs Python 3.11 or newer (PYTHON names one)
and, the first time, a package index.

  --browser   first install Debian's Chromium if no browser is found; the tests
              of the report's page are skipped without one

  bash launch/test.sh                             all tests
  bash launch/test.sh tests/rl -k losses -x       some of them
EOF
}

# Installs Chromium with apt-get as root; otherwise says how.
install_browser() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" > /dev/null; then return; fi
  done
  if [[ "$(id -u)" != 0 ]] || ! command -v apt-get > /dev/null; then
    say 'no browser found; install Chromium (Debian: sudo apt-get install' \
      'chromium), or the browser tests are skipped'
    return
  fi
  say 'installing Chromium'
  { apt-get update && apt-get install --yes --no-install-recommends chromium; \
    } > /dev/null || say 'apt-get could not install Chromium; its reason is' \
    'above, and the browser tests are skipped'
}

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit
fi
if [[ "${1:-}" == --browser ]]; then
  install_browser
  shift
fi

ensure_installed test
cd "$ROOT"
say 'running ruff check'
"$VENV/bin/python" -m ruff check
# One worker per core, up to eight. A worker takes over tests of another one as
# soon as it has none left.
options=(-q -n auto --maxprocesses 8 --dist worksteal)
say "running pytest ${options[*]}${*:+ $*}"
exec "$VENV/bin/python" -m pytest "${options[@]}" "$@"
