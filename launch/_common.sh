# Sourced by the scripts beside it: finds a Python, keeps .venv up to date and
# says where downloads and compiled programs go. Runs nothing by itself.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

: "${TFDS_DATA_DIR:=$ROOT/.cache/datasets}"
: "${JAX_COMPILATION_CACHE_DIR:=$ROOT/.cache/jax}"
export TFDS_DATA_DIR JAX_COMPILATION_CACHE_DIR

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }

stop() {
  say "error: $*" >&2
  exit 1
}

# Prints the version ("3.11") of the Python named $1; fails if it does not run
# (pyenv leaves names on the PATH that do not) or lacks a module of "$2".
python_version() {
  "$1" -c "import $2; print('%d.%d' % sys.version_info[:2])" 2> /dev/null
}

# Sets PYTHON_FOUND and PYTHON_VERSION: $PYTHON where that is set, else the
# first of the candidates below that will do.
find_python() {
  local candidate version problem=''
  local advice='install Python 3.11 or newer, or name one in PYTHON'
  local candidates=(
    "$VENV/bin/python" python3.13 python3.12 python3.11 python3)
  if [[ -n "${PYTHON:-}" ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if ! version="$(python_version "$candidate" sys)"; then
      continue
    elif [[ ! "$version" =~ ^3\.([0-9]+)$ ]] || ((BASH_REMATCH[1] < 11)); then
      problem="${problem:-$candidate is Python $version, but atgrpo_jax needs \
3.11 or newer; $advice}"
    elif ! python_version "$candidate" 'ensurepip, sys, venv' > /dev/null; then
      problem="${problem:-$candidate (Python $version) has no module venv or \
ensurepip; install them (Debian, Ubuntu: apt-get install python$version-venv) \
or name another Python in PYTHON}"
    else
      PYTHON_FOUND="$candidate"
      PYTHON_VERSION="$version"
      return
    fi
  done
  stop "${problem:-${PYTHON:-python3} does not run; $advice}"
}

# ensure_installed EXTRA: makes .venv hold this checkout, with the extra EXTRA
# of setup.py unless that is empty. A stamp in .venv says what it holds.
ensure_installed() {
  local extra="$1" log="$ROOT/.cache/install.log" target="$ROOT" wanted
  find_python
  wanted="$(
    "$PYTHON_FOUND" -c '
import hashlib, pathlib, sys
setup = pathlib.Path(sys.argv[1], "setup.py").read_text()
print(hashlib.sha256("\0".join([setup, *sys.argv[1:]]).encode()).hexdigest())
' "$ROOT" "$PYTHON_VERSION")"
  if [[ "$(cat "$VENV/installed-$extra" 2> /dev/null)" == "$wanted" ]]; then
    say "using $VENV (Python $PYTHON_VERSION), which is up to date"
    return
  fi

  mkdir -p "$ROOT/.cache"
  if [[ "$(python_version "$VENV/bin/python" 'pip, sys')" \
      != "$PYTHON_VERSION" ]]; then
    say "making $VENV with $PYTHON_FOUND (Python $PYTHON_VERSION)"
    "$PYTHON_FOUND" -m venv --clear "$VENV" > "$log" 2>&1 ||
      stop "$PYTHON_FOUND could not make $VENV; the reason is in $log"
  fi
  if [[ -n "$extra" ]]; then target="${ROOT}[$extra]"; fi
  say "installing $target, which takes minutes the first time; log: $log"
  if ! "$VENV/bin/python" -m pip install --disable-pip-version-check \
      --no-input --editable "$target" > "$log" 2>&1; then
    if grep -q 'connection broken by' "$log"; then
      stop "the package index cannot be reached (pip's log: $log); check the" \
        'network, or name another index in PIP_INDEX_URL, and run this again'
    fi
    stop "pip could not install $target; the reason ends its log, $log"
  fi
  printf '%s\n' "$wanted" > "$VENV/installed-$extra"
  # Every extra comes with the plain installation.
  printf '%s\n' "$wanted" > "$VENV/installed-"
}
