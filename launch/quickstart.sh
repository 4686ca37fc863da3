#!/usr/bin/env bash
# Trains a team of two agents on Plan-Path, on a CPU; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/quickstart.sh [OPTION ...] [-- CONFIG OVERRIDE ...]

Makes .venv in the checkout, installs atgrpo_jax (skipped where that is up to
date), trains a small two-agent team on Plan-Path and prints its held-out
success before and after. Needs Python 3.11 or newer (PYTHON names one) and,
the first time, a package index. Run it again to resume a run that was stopped.

  --seed N        seed of the run (default 0)
  --workdir DIR   where the run is kept (default runs/quickstart-seed-N)
  --fresh         do not resume: rename an earlier run in that place and start
                  afresh
  --help          print this

What follows -- goes to the trainer, for instance:

  bash launch/quickstart.sh --seed 1 -- --config.KEY=VALUE
EOF
}

seed=0
workdir=''
fresh=false
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --fresh) fresh=true ;;
    --seed | --workdir)
      check_value "$@"
      if [[ "$1" == --seed ]]; then seed="$2"; else workdir="$2"; fi
      shift
      ;;
    --)
      shift
      break
      ;;
    *)
      stop "unknown option $1; see --help (config overrides follow --, as in" \
        "-- $1)"
      ;;
  esac
  shift
done
[[ "$seed" =~ ^[0-9]+$ ]] ||
  stop "--seed is '$seed', but must be a whole number, such as 0"
workdir="${workdir:-$ROOT/runs/quickstart-seed-$seed}"
# The training starts in the checkout, but DIR is the caller's.
[[ "$workdir" == /* ]] || workdir="$PWD/$workdir"
workdir="${workdir%/}"

ensure_installed ''
if [[ -e "$workdir" ]] && "$fresh"; then
  [[ -f "$workdir/config.json" ]] ||
    stop "--fresh does not rename $workdir, which is no earlier run (it has" \
      'no config.json); name another --workdir'
  number=1
  while [[ -e "$workdir.old-$number" ]]; do number=$((number + 1)); done
  mv "$workdir" "$workdir.old-$number"
  say "kept the earlier run as $workdir.old-$number"
fi
if [[ -e "$workdir" ]]; then
  say "resuming the run in $workdir (--fresh starts afresh)"
else
  say "starting afresh in $workdir"
fi

use_all_cores
cd "$ROOT"
command=("$VENV/bin/python" -m atgrpo_jax.main
  --config configs/plan_path.py:size=nano
  --workdir "$workdir" --config.seed="$seed" "$@")
say "running$(printf ' %q' "${command[@]}")"
exec "${command[@]}"
