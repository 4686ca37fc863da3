#!/usr/bin/env bash
# Trains each combination of config values; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/sweep.sh --config CONFIG --workdir DIR [OPTION ...]
                            -- KEY=VALUE,VALUE ... [CONFIG OVERRIDE ...]

Installs atgrpo_jax into .venv (skipped if that is up to date), trains a run on
CPUs for each combination of values in DIR/KEY=VALUE,..., and compares all runs
in DIR/comparison/compare.html. Run it again to resume, or with more values. A
failed run does not end the others; its log is DIR/KEY=VALUE,....log.

  --config CONFIG   config file and its arguments
  --workdir DIR     folder of the workdirs
  --jobs N          runs at a time (default 1)
  --dry-run         print the commands without running them
  --help            print this

Example:

  bash launch/sweep.sh --config configs/plan_path.py:size=nano \
      --workdir runs/rates --jobs 2 \
      -- optimizer.learning_rate=1e-4,3e-4 seed=0,1,2
EOF
}

jobs=1
parse_trainer_options jobs '' "$@"
check_positive --jobs "$jobs"
[[ "$mode" == train ]] || stop "--mode is '$mode', but a sweep trains"
runs=('') overrides=()
for word in ${rest[@]+"${rest[@]}"}; do
  if [[ "$word" == --* ]]; then
    overrides+=("$word")
    continue
  fi
  [[ "$word" =~ ^[a-z_.]+=[^,/]+(,[^,/]+)*$ ]] ||
    stop "'$word' must be a key and its values, such as seed=0,1,2"
  IFS=, read -ra values <<< "${word#*=}"
  combined=()
  for one in "${runs[@]}"; do
    for value in "${values[@]}"; do
      combined+=("${one:+$one,}${word%%=*}=$value")
    done
  done
  runs=("${combined[@]}")
done
[[ -n "${runs[0]}" ]] ||
  stop 'no values are given; give some after --, such as seed=0,1,2'
ensure_installed ''
# A run needs no second device if another run uses its core.
((jobs == 1)) || export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-1}"
tune_for_cpu
resolve_workdir
cd "$ROOT"
folders=() lines=()
for name in "${runs[@]}"; do
  IFS=, read -ra values <<< "$name"
  folders+=("$workdir/$name")
  lines+=("$(show "$VENV/bin/python" -m atgrpo_jax.main --config "$config" \
    --workdir "$workdir/$name" ${overrides[@]+"${overrides[@]}"} \
    "${values[@]/#/--config.}") > $(show "$workdir/$name.log") 2>&1")
done
compare=("$VENV/bin/python" -m atgrpo_jax.main --mode compare
  --workdir "$workdir/comparison" "${folders[@]}")
status=0
if "$dry_run"; then
  printf '%s\n' "${lines[@]}"
else
  mkdir -p "$workdir"
  say "training ${#lines[@]} runs, $jobs at a time; logs: $workdir/*.log"
  printf '%s\0' "${lines[@]}" | xargs -0 -n 1 -P "$jobs" bash -c || status=1
fi
run "${compare[@]}"
((status == 0)) || stop "a run has failed; its log is one of $workdir/*.log"
