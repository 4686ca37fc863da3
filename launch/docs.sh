#!/usr/bin/env bash
# Builds the documentation site; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/docs.sh [--serve]

Installs atgrpo_jax with its docs extra into .venv and builds the site from the
README, docs/ and the docstrings into build/site. A warning, such as a broken
link, is an error. Open build/site/index.html; only the search needs a server.

  --serve   show the site at http://127.0.0.1:8000 and rebuild it on changes;
            warnings are no errors then
  --help    print this
EOF
}

serve=false
parse_options '' serve "$@"

ensure_installed docs
cd "$ROOT"
export NO_MKDOCS_2_WARNING=1  # The theme warns about its successor.
if "$serve"; then
  exec "$VENV/bin/python" -m mkdocs serve --no-strict
fi
say 'building build/site'
exec "$VENV/bin/python" -m mkdocs build
