#!/usr/bin/env bash
# Runs the jobs of the paper's tables; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/paper.sh [OPTION ...]

Creates .venv in the checkout, installs atgrpo_jax with its paper extra (if it
is not up to date), runs the jobs of the tables, and writes tables and curves to
DIR/SIZE/tables. Finished jobs are skipped, so run it again to resume or to add
jobs.

  --scale SIZE   nano (default), 1.7b or 8b; for 1.7b and 8b the commands are
                 printed, not run
  --seeds N      seeds per job (default 3)
  --only PATTERNS
                 paths of jobs, separated by commas, such as
                 'main/sokoban/*,agents/*' (default: all); jobs that these need
                 run as well
  --jobs N       jobs at a time, which divide the cores (default 1). One core
                 per job has the highest throughput, but the minutes in the
                 tables are then minutes of one core
  --out DIR      folder of all workdirs (default runs/paper)
  --keep DIR     folder of records, such as paper/results/nano: their results
                 are not computed again unless their checkpoints are needed, and
                 finished runs are added
  --sandbox LEVEL
                 bwrap, kernel or unsafe_rlimit (see docs/sandbox.md) for all
                 jobs; default: the strongest that works here. A table refuses
                 rows of different levels
  --dry-run      install and print the commands, but run none
  --help         print this

--dry-run shows all paths. They begin with the table: main (systems on games),
problems (mathematics and code), writing, functions, reward, roles (apart,
combined, swapped), agents, unchanged, rollout, selection, return_type,
advantage, loss, group_size or turns.
EOF
}

scale=nano seeds=3 only='*' jobs=1 out="$ROOT/runs/paper" keep='' sandbox=auto
parse_options 'scale seeds only jobs out keep sandbox' dry-run "$@"
[[ "$scale" =~ ^(nano|1\.7b|8b)$ ]] ||
  stop "--scale is '$scale', but must be nano, 1.7b or 8b"
[[ "$sandbox" =~ ^(auto|bwrap|kernel|unsafe_rlimit)$ ]] ||
  stop "--sandbox is '$sandbox', but must be bwrap, kernel or unsafe_rlimit"
check_positive --seeds "$seeds"
check_positive --jobs "$jobs"
# Jobs start in the checkout, but DIR is relative to the caller.
[[ "$out" == /* ]] || out="$PWD/$out"
[[ -z "$keep" || "$keep" == /* ]] || keep="$PWD/$keep"

print_only=$dry_run dry_run=false  # The installation is not a dry run.
ensure_installed paper
tune_for_cpu
cd "$ROOT"
exec "$VENV/bin/python" -m paper.run --scale "$scale" \
  --seeds "$seeds" --only "$only" --jobs "$jobs" --out "$out" \
  --keep "$keep" --sandbox "$sandbox" --dry_run="$print_only"
