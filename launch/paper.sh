#!/usr/bin/env bash
# Runs the jobs of the paper's tables; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/paper.sh [OPTION ...]

Installs atgrpo_jax with its paper extra into .venv (skipped if that is up to
date), runs the jobs of the tables, and writes tables and curves to
DIR/SIZE/tables. Finished jobs are skipped, so run it again to resume or to add
jobs. Folders are relative to the checkout.

  --scale SIZE    nano (default); coder-0.5b, two teams of Qwen2.5-Coder-0.5B,
                  10 GiB and up to two hours per job; or 1.7b, 8b or, for MAGRPO's
                  coding tables, coder-3b, whose commands are printed without
                  --launch
  --seeds N       seeds per job (default 5)
  --only PATTERNS
                  paths of jobs, separated by commas, such as
                  'main/sokoban/*,agents/*' (default: all); jobs that these
                  need run as well
  --jobs N        jobs at a time, which divide the cores (default 1). One core
                  per job has the highest throughput, but the minutes in the
                  tables are then minutes of one core
  --out DIR       folder of all workdirs (default runs/paper); for scales
                  that are printed also in a bucket, as gs://BUCKET/DIR
  --keep DIR      folder of records, such as paper/results/nano: their results
                  are not computed again unless their checkpoints are needed,
                  and finished runs are added
  --sandbox LEVEL
                  bwrap, kernel or unsafe_rlimit (see docs/sandbox.md) for all
                  jobs; default: the strongest that works here. A table refuses
                  rows of different levels
  --launch CMD    starts each job of a scale that is otherwise printed with this
                  command, whose words {mode}, {config}, {workdir} and
                  {overrides} are replaced. Fills in the tokens of finished
                  jobs, and waits until each job has its result; for example
                  'bash launch/tpu_pod.sh --name POD --zone ZONE --mode {mode}
                  --config {config} --workdir {workdir} -- {overrides}'
  --dry-run       print the commands, which name all paths, but run none; for
                  nano with the minutes of the recorded trainings; in a new
                  checkout only the commands that install atgrpo_jax
  --help          print this
EOF
}

if [[ " $* " == *' --help '* ]]; then
  usage
  exit
fi
extras=paper
if [[ " $* " == *[=\ ]coder-0.5b\ * ]]; then
  extras+=,gguf,maths
  export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-1}"
fi
if [[ " $* " == *' --dry-run '* ]]; then dry_run=true; fi
ensure_installed "$extras"
! lacks_installation pandas ||
  stop 'the jobs can be listed after these commands, which install atgrpo_jax'
tune_for_cpu
cd "$ROOT"
if [[ "$extras" != paper ]] && ! "$dry_run"; then
  "$VENV/bin/python" -m models.qwen25_coder --out .cache/qwen25_coder
  fetch_humaneval
fi
exec "$VENV/bin/python" -m paper.run "${@/#--dry-run/--dry_run}"
