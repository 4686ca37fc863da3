#!/usr/bin/env bash
# Trains each combination of config values; see usage below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_common.sh"

usage() {
  cat << 'EOF'
Usage: bash launch/sweep.sh --config CONFIG --workdir DIR [OPTION ...]
                            -- KEY=VALUE,VALUE ... [--config.KEY=VALUE ...]

Installs atgrpo_jax into .venv (skipped if that is up to date), trains a run on
CPUs for each combination of values in DIR/KEY=VALUE,..., and compares all runs
in DIR/comparison/compare.html. Prints a line when a run has ended. The same
command resumes; with more values it trains only the new combinations. Keep the
keys and their order, which name the folders. A failed run does not end the
others; its log is DIR/KEY=VALUE,....log.

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
[[ "$workdir" != gs://* ]] ||
  stop "--workdir is '$workdir', but a sweep writes to a local folder"
runs=('') overrides=() keys=' '
for word in ${rest[@]+"${rest[@]}"}; do
  if [[ "$word" == --* ]]; then
    overrides+=("$word")
    continue
  fi
  key="${word%%=*}"
  [[ "$word" =~ ^[a-z0-9_.]+=[^,/\(\'\"]+(,[^,/\(\'\"]+)*$ ]] ||
    stop "'$word' must be a key and its values, such as seed=0,1,2; a value" \
      'cannot contain commas, slashes, parentheses and quotes'
  [[ "$keys" != *" $key "* ]] || stop "the key $key is given twice"
  keys+="$key "
  IFS=, read -ra values <<< "${word#*=}"
  combined=()
  for one in "${runs[@]}"; do
    for value in "${values[@]}"; do
      combined+=("${one:+$one,}$key=$value")
    done
  done
  runs=("${combined[@]}")
done
[[ -n "${runs[0]}" ]] || stop 'no values are given; give some after --, such as' \
  'seed=0,1,2, without --config.'
twice="$(printf '%s\n' "${runs[@]}" | sort | uniq -d)"
[[ -z "$twice" ]] || stop "a value is given twice, in $twice"
ensure_installed ''
# A run needs no second device if another run uses its core.
((jobs == 1)) || export JAX_NUM_CPU_DEVICES="${JAX_NUM_CPU_DEVICES:-1}"
tune_for_cpu
resolve_workdir
cd "$ROOT"
folders=() lines=()
for name in "${runs[@]}"; do
  IFS=, read -ra values <<< "$name"
  trainer=(--config "$config" ${overrides[@]+"${overrides[@]}"}
    "${values[@]/#/--config.}")
  ((${#lines[@]})) || check_trainer  # A wrong key ends all runs at once.
  folders+=("$workdir/$name")
  lines+=("$(show "$VENV/bin/python" -m atgrpo_jax.main \
    --workdir "$workdir/$name" "${trainer[@]}") >> $(
      show "$workdir/$name.log") 2>&1")
done
compare=("$VENV/bin/python" -m atgrpo_jax.main --mode compare
  --workdir "$workdir/comparison" "${folders[@]}")
run mkdir -p "$workdir"
if "$dry_run"; then
  printf '%s\n' "${lines[@]}"
  run "${compare[@]}"
  exit
fi
say "training ${#lines[@]} runs, $jobs at a time; logs: $workdir/*.log"
# On Ctrl-C the trainers save and end with 42, and xargs starts no other.
trap '' INT
status=0
# shellcheck disable=SC2016  # The inner shell expands them.
for i in "${!runs[@]}"; do
  printf '%s\0%s\0' "${runs[i]}" "${lines[i]}"
done | xargs -0 -n 2 -P "$jobs" bash -c 'eval "$1"; status=$?
  case "$status" in
    0) echo "finished $0" ;;
    42) exit 255 ;;
    *) echo "failed $0, with status $status" ;;
  esac
  exit "$status"' || status=$?
trap - INT
((status != 124)) || stop 'stopped; the same command resumes'
"${compare[@]}" || status=$?
((status == 0)) || stop "a run has failed; its log is one of $workdir/*.log"
