#!/usr/bin/env bash
# Installs the test extra into .venv and runs all checks; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/test.sh [PYTEST ARGUMENT ...]

Makes .venv in the checkout, installs atgrpo_jax with its test extra (skipped
where that is up to date), and runs ruff and pytest. Needs Python 3.11 or newer
(PYTHON names one) and, the first time, a package index.

  bash launch/test.sh                             all tests
  bash launch/test.sh tests/rl -k losses -x       some of them
EOF
}

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit
fi

ensure_installed test
cd "$ROOT"
say 'running ruff check'
"$VENV/bin/python" -m ruff check
# A worker on each core, up to eight; a file's tests stay together.
options=(-q -n auto --maxprocesses 8 --dist loadfile)
say "running pytest ${options[*]}${*:+ $*}"
exec "$VENV/bin/python" -m pytest "${options[@]}" "$@"
