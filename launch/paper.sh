#!/usr/bin/env bash
# Runs every cell of the paper's tables; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/paper.sh [OPTION ...]

Makes .venv in the checkout, installs atgrpo_jax with its paper extra (skipped
where that is up to date), runs the cells of the tables, and writes the tables
and curves to DIR/SIZE/tables. A cell that is done is skipped, so run it again
to go on with what was stopped, or to add cells.

  --scale SIZE   nano (default), 1.7b or 8b; beyond nano the commands are
                 printed, with the hardware they need, and not run
  --seeds N      seeds of each cell (default 3)
  --only CELLS   patterns of the cells' paths, with commas between them, such
                 as 'main/sokoban/*,agents/*' (default: all); cells that these
                 need are run as well
  --jobs N       cells at a time, each with its share of the cores (default 1);
                 one core each gets most done, but the minutes in the tables
                 are then those of a core
  --out DIR      folder of all workdirs (default runs/paper)
  --keep DIR     folder of kept records, such as paper/results/nano: what is in
                 it is not run again unless its checkpoints are needed, and the
                 runs that have finished are added to it at the end
  --sandbox LEVEL
                 bwrap, kernel or unsafe_rlimit (see docs/sandbox.md) for all
                 cells; default the strongest that works here. A table refuses
                 rows of several levels; docs/results.md says which those in
                 paper/results/nano have
  --dry-run      install, print the commands and run none
  --help         print this

--dry-run shows all paths. They begin with the table: main (systems on games),
problems (mathematics and code), writing, functions, reward, roles (apart,
combined, swapped), cross_play, agents, unchanged, rollout, selection,
return_type, advantage, loss, group_size or turns. Beyond nano it also says what
is read of the hub, and how many bytes of that are here.
EOF
}

scale=nano seeds=3 only='*' jobs=1 out="$ROOT/runs/paper" keep='' sandbox=auto
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --dry-run) dry_run=true ;;
    --scale | --seeds | --only | --jobs | --out | --keep | --sandbox)
      check_value "$@"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    *) stop "unknown option $1; see --help" ;;
  esac
  shift
done
[[ "$scale" =~ ^(nano|1\.7b|8b)$ ]] ||
  stop "--scale is '$scale', but must be nano, 1.7b or 8b"
[[ "$sandbox" =~ ^(auto|bwrap|kernel|unsafe_rlimit)$ ]] ||
  stop "--sandbox is '$sandbox', but must be bwrap, kernel or unsafe_rlimit"
check_count --seeds "$seeds"
check_count --jobs "$jobs"
# The cells start in the checkout, but DIR is the caller's.
[[ "$out" == /* ]] || out="$PWD/$out"
[[ -z "$keep" || "$keep" == /* ]] || keep="$PWD/$keep"

prints=$dry_run dry_run=false  # What to print, the installation knows.
ensure_installed paper
use_all_cores
cd "$ROOT"
exec "$VENV/bin/python" -m paper.run --scale "$scale" \
  --seeds "$seeds" --only "$only" --jobs "$jobs" --out "$out" \
  --keep "$keep" --sandbox "$sandbox" --dry_run="$prints"
