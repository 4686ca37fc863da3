#!/usr/bin/env bash
# Builds the documentation site; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/docs.sh [--serve]

Makes .venv in the checkout, installs atgrpo_jax with its docs extra (skipped
where that is up to date), and builds the site from the README, the pages of
docs/ and the docstrings into build/site. A warning, such as a link that leads
nowhere, is an error. build/site/index.html opens from the disk and loads
nothing from elsewhere; only its search needs a server.

  --serve   show the site at http://127.0.0.1:8000, and build it again when a
            page or a module changes; warnings are no errors then
  --help    print this
EOF
}

serve=false
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --serve) serve=true ;;
    *) stop "unknown option $1; see --help" ;;
  esac
  shift
done

ensure_installed docs
cd "$ROOT"
export NO_MKDOCS_2_WARNING=1  # The theme's note on its successor.
if "$serve"; then
  exec "$VENV/bin/python" -m mkdocs serve --no-strict
fi
say 'building build/site'
exec "$VENV/bin/python" -m mkdocs build
