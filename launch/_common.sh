# Sourced by the scripts beside it: finds a Python, keeps .venv up to date, says
# where downloads and compiled programs go, and parses the options that all
# launch scripts share. Runs nothing by itself, and keeps to bash 3.2, which is
# what macOS has.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

: "${TFDS_DATA_DIR:=$ROOT/.cache/datasets}"
: "${JAX_COMPILATION_CACHE_DIR:=$ROOT/.cache/jax}"
# Small programs are kept as well: a run has dozens of them.
: "${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:=0}"
export TFDS_DATA_DIR JAX_COMPILATION_CACHE_DIR
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }

stop() {
  say "error: $*" >&2
  exit 1
}

# With --dry-run, commands are printed by `show` where `run` would run them.
dry_run=false

# Prints a command so that it can be pasted into a shell: one line, quoted.
show() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

run() { if "$dry_run"; then show "$@"; else "$@"; fi; }

# parse_options VALUES SWITCHES ARGUMENT ...: sets a variable for each option
# of the command line: config for --config X, dry_run=true for --dry-run, ...
# VALUES and SWITCHES are the names of the options of a script beyond those
# that all have; the script sets their defaults. What follows -- is for the
# trainer: it ends the array `trainer`.
parse_options() {
  local values=" config workdir mode $1 " switches=" dry-run $2 "
  local option value
  config='' workdir='' mode=train
  shift 2
  while (($# > 0)); do
    option="${1%%=*}"
    option="${option#--}"
    if [[ "$1" == -h || "$1" == --help ]]; then
      usage
      exit
    elif [[ "$1" == -- ]]; then
      shift
      break
    elif [[ "$1" == --* && "$switches" == *" ${1#--} "* ]]; then
      printf -v "${option//-/_}" true
    elif [[ "$1" == --* && "$values" == *" $option "* ]]; then
      if [[ "$1" == *=* ]]; then
        value="${1#*=}"
      else
        check_value "$@"
        value="$2"
        shift
      fi
      printf -v "${option//-/_}" %s "$value"
    else
      stop "unknown option $1; see --help (config overrides follow --, as in" \
        "-- $1)"
    fi
    shift
  done

  [[ -n "$config" ]] ||
    stop '--config is missing; give one such as configs/plan_path.py:size=nano'
  (cd "$ROOT" && [[ -f "${config%%:*}" ]]) ||
    stop "--config: there is no file '${config%%:*}' in $ROOT; give a config" \
      'such as configs/plan_path.py:size=nano'
  [[ -n "$workdir" ]] ||
    stop '--workdir is missing; give the folder of the run, such as runs/x'
  [[ "$workdir" != *://* || "$workdir" =~ ^gs://[^/]+/. ]] ||
    stop "--workdir is '$workdir'; give a folder, or one of a bucket, as" \
      'gs://bucket/folder'
  workdir="${workdir%/}"
  [[ "$mode" =~ ^(train|evaluate|export|doctor)$ ]] ||
    stop "--mode is '$mode', but must be train, evaluate, export or doctor"
  trainer=(--config "$config" --mode "$mode" "$@")
}

# check_value OPTION [VALUE ...]: a value is there, and is no option.
check_value() {
  [[ -n "${2:-}" && "$2" != --* ]] || stop "$1 needs a value; see --help"
}

# check_count OPTION VALUE: the value must be a whole number above 0.
check_count() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] ||
    stop "$1 is '$2', but must be a whole number above 0, such as 2"
}

# absolute_workdir FOLDER: makes `workdir` one of FOLDER unless it is absolute
# or in a bucket, where no log can be written on: sets `logs`, their folder.
absolute_workdir() {
  if [[ "$workdir" == gs://* ]]; then
    logs="$ROOT/runs/$(basename "$workdir").logs"
    return
  fi
  [[ "$workdir" == /* ]] || workdir="$1/$workdir"
  # shellcheck disable=SC2034  # Used by the scripts.
  logs="$workdir.logs"
}

# trainer_command PLATFORMS: sets `command` to a trainer on these platforms of
# jax, unless JAX_PLATFORMS names others. A platform that is named must be
# there: without its name jax would make do with the CPU.
trainer_command() {
  # shellcheck disable=SC2034  # Used by the scripts.
  command=(env PYTHONUNBUFFERED=1 TFDS_DATA_DIR="$TFDS_DATA_DIR"
    JAX_COMPILATION_CACHE_DIR="$JAX_COMPILATION_CACHE_DIR"
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="$JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    JAX_PLATFORMS="${JAX_PLATFORMS:-$1}"
    "$VENV/bin/python" -m atgrpo_jax.main --workdir "$workdir"
    "${trainer[@]}")
}

# What makes a run on a CPU fast, unless the caller has set it.
use_all_cores() {
  # glibc hands large arrays back when they are freed, and the system clears
  # each page of the next ones: a fifth of the CPU time of an update. Keep them.
  local keep=glibc.malloc.mmap_threshold=8589934592
  keep+=:glibc.malloc.trim_threshold=17179869184
  keep+=:glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1
  export GLIBC_TUNABLES="${GLIBC_TUNABLES:-$keep}"
  # Where there is no accelerator: two devices, each with half of the groups.
  # One device would leave a core idle in most of what sampling computes.
  export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-2}"
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
  local install make_venv=false
  find_python
  wanted="$(
    "$PYTHON_FOUND" -c '
import hashlib, pathlib, sys
setup = pathlib.Path(sys.argv[1], "setup.py").read_text()
print(hashlib.sha256("\0".join([setup, *sys.argv[1:]]).encode()).hexdigest())
' "$ROOT" "$PYTHON_VERSION")"
  if [[ "$(cat "$VENV/installed-$extra" 2> /dev/null)" == "$wanted" ]]; then
    "$dry_run" ||
      say "using $VENV (Python $PYTHON_VERSION), which is up to date"
    return
  fi

  if [[ -n "$extra" ]]; then target="${ROOT}[$extra]"; fi
  install=("$VENV/bin/python" -m pip install --disable-pip-version-check
    --no-input --editable "$target")
  if [[ "$(python_version "$VENV/bin/python" 'pip, sys')" \
      != "$PYTHON_VERSION" ]]; then
    make_venv=true
  fi
  if "$dry_run"; then
    ! "$make_venv" || show "$PYTHON_FOUND" -m venv --clear "$VENV"
    show "${install[@]}"
    return
  fi
  mkdir -p "$ROOT/.cache"
  if "$make_venv"; then
    say "making $VENV with $PYTHON_FOUND (Python $PYTHON_VERSION)"
    "$PYTHON_FOUND" -m venv --clear "$VENV" > "$log" 2>&1 ||
      stop "$PYTHON_FOUND could not make $VENV; the reason is in $log"
  fi
  say "installing $target, which takes minutes the first time; log: $log"
  if ! "${install[@]}" > "$log" 2>&1; then
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
