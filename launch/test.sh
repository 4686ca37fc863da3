#!/usr/bin/env bash
# Installs the test extra and runs all checks; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/test.sh [--browser] [--python VERSION] [PYTEST ARGUMENT ...]

Installs atgrpo_jax with its test extra into .venv (skipped if that is up to
date), and runs ruff and pytest. Needs Python 3.11 or newer (PYTHON names one)
and, the first time, a package index.

  --browser           first install Debian's Chromium if no browser is found;
                      the tests of the report's page are skipped without one
  --python VERSION    test with another Python, such as 3.12, in an environment
                      next to .venv, such as .venv-3.12

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

# Sets PYTHON and VENV for a version of Python, such as "3.12".
use_python() {
  # With PYENV_VERSION, pyenv finds versions that it has not activated.
  if [[ "$1" != 3.* ]] ||
    ! PYTHON="$(PYENV_VERSION="$1" "python$1" -c \
      'import sys; print(sys.executable)' 2> /dev/null)"; then
    stop "--python is '$1', but must be a version of Python, such as 3.12, of" \
      'which a program such as python3.12 is on the PATH'
  fi
  VENV="$ROOT/.venv-$1"
}

while (($# > 0)); do
  case "$1" in
    -h | --help) usage && exit ;;
    --browser) install_browser ;;
    --python) use_python "${2:-}" && shift ;;
    *) break ;;
  esac
  shift
done

ensure_installed test
cd "$ROOT"
say 'running ruff check'
"$VENV/bin/python" -m ruff check
# One worker per core, up to eight. A worker takes over tests of another one as
# soon as it has none left.
options=(-q -n auto --maxprocesses 8 --dist worksteal)
say "running pytest ${options[*]}${*:+ $*}"
exec "$VENV/bin/python" -m pytest "${options[@]}" "$@"
